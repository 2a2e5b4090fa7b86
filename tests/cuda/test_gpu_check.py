"""gpu_check without a device: every phase of its program where host memory plays one, with stand-ins for
the toolkit's tools and PyTorch; what survives a run that is cut off, crashes or hangs; and its script."""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("REGARD_DEV_BUILD_DIR", ROOT / "build" / "dev"))
PROGRAM = BUILD / "tools" / "gpu_check" / "regard_gpu_check"
STAND_INS = ROOT / "tests" / "cuda" / "stand_in"
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_check_cases  # noqa: E402

NOT_BUILT = "regard_gpu_check is not built: no CUDA"
PHASES = ["rates", "conformance", "speed", "cudnn", "torch", "unclaimed", "sanitizer", "python", "large",
          "overhead", "profile", "random"]
# compute-sanitizer and ncu: they run the command behind their options.
SANITIZER = """#!/bin/sh
[ "$1" = --tool ] || exit 2
tool=$2
shift 2
"$@"
[ $tool = racecheck ] && echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ||
  echo "========= ERROR SUMMARY: 0 errors"
"""
NCU = """#!/bin/sh
while [ "$1" != "${1#--}" ]; do
  case $1 in --csv) shift ;; *) shift 2 ;; esac
done
"$@" || exit
echo "==PROF== Disconnected"
echo '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
for kernel in 0,small,100 1,large,"1,200"; do
  name=${kernel#*,}
  echo "\\"${kernel%%,*}\\",\\"${name%%,*}<bf16, 128>\\",\\"LaunchStats\\",\\"Registers Per Thread\\",\\"\\",\\"168\\""
  echo "\\"${kernel%%,*}\\",\\"${name%%,*}<bf16, 128>\\",\\"Speed\\",\\"Duration\\",\\"ns\\",\\"${name#*,}\\""
done
"""


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=300, cwd=ROOT, **options)


def children(pid):
    """Processes that a process started."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = pathlib.Path(folder.name) / "check"

    def results(self):
        text = self.prefix.with_suffix(".jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def report(self):
        return self.prefix.with_suffix(".md").read_text()

    def ends(self):
        """The result of each phase."""
        return {line["phase"]: line["result"] for line in self.results() if "case" not in line}

    def cases(self, phase=None):
        return [line for line in self.results() if "case" in line and phase in (None, line["phase"])]

    def keys(self):
        return [(line["phase"], line["case"], line.get("backend"), line.get("variant"), line["result"])
                for line in self.cases()]

    def make_tool(self, name, lines):
        """An environment whose PATH begins with this tool."""
        tool = self.prefix.parent / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(lines)
        tool.chmod(0o755)
        return os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


@unittest.skipUnless(PROGRAM.exists(), NOT_BUILT)
class OnTheHost(InAFolder):
    def command(self, *options):
        return [str(word) for word in (PROGRAM, "--rehearse", "--out", self.prefix, *options)]

    def rehearse(self, *options, status=0, **more):
        ran = run(*self.command("--python", sys.executable, *options), **more)
        self.assertEqual(ran.returncode, status, ran.stdout[-3000:] + ran.stderr[-3000:])
        return ran

    def start(self, *options):
        """A run in the background whose child has written some results."""
        process = subprocess.Popen(self.command(*options), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, cwd=ROOT)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        results = self.prefix.with_suffix(".jsonl")
        wait_for(lambda: results.exists() and results.read_text().count("\n") > 5)
        return process


class Rehearsal(OnTheHost):
    def test_every_phase(self):
        self.make_tool("compute-sanitizer", SANITIZER)
        environment = self.make_tool("ncu", NCU) | {"PYTHONPATH": str(STAND_INS)}
        self.rehearse("--cases", 20, env=environment)
        expected = dict.fromkeys(PHASES, "complete") | {"python": "not present"}
        self.assertEqual(self.ends(), expected)
        self.assertEqual(list(self.ends()), PHASES)
        results = {phase: collections.Counter(line["result"] for line in self.cases(phase))
                   for phase in PHASES}
        for phase, counts in results.items():
            self.assertLessEqual(set(counts), {"passed", "refused", "measured", "accepted"}, phase)
        for phase, good in (("conformance", "passed"), ("sanitizer", "passed"), ("large", "passed"),
                            ("random", "passed"), ("speed", "measured"), ("cudnn", "measured"),
                            ("torch", "measured"), ("overhead", "measured"), ("profile", "measured"),
                            ("unclaimed", "accepted")):
            self.assertGreater(results[phase][good], sum(results[phase].values()) / 2, phase)
        self.assertGreater(results["torch"]["refused"], 0)
        self.assertEqual({line["variant"] for line in self.cases("sanitizer")},
                         {"memcheck", "racecheck", "synccheck"})
        for line in self.cases("speed") + self.cases("cudnn") + self.cases("torch"):
            self.assertTrue(line["result"] == "refused" or line["ms"] > 0, line)
        lengths = [line for line in self.cases("unclaimed")
                   if " lens " in line["case"] and line["variant"] == "forward"
                   and " sinks " not in line["case"]]  # whose sums are those of the sinks
        self.assertEqual({(line["out_without_keys"], line["lse_without_keys"], line["out_beyond_length"])
                          for line in lengths}, {("zeros", "-inf", "zeros")})
        self.assertEqual({(line["kernel"], line["ns"], line["registers"])
                          for line in self.cases("profile")}, {("large<bf16, 128>", 1200, 168)})
        self.check_report()

    def check_report(self):
        report = self.report()
        self.assertIn("no device: a rehearsal", report)
        self.assertNotRegex(report, r"\| (held|missed) \|")
        self.assertIn("## regard beside PyTorch", report)
        for line in report.splitlines():  # every row of a table has its columns
            if line.startswith("|---"):
                columns = line.count("|")
            elif line.startswith("| `"):
                self.assertEqual(line.count("|"), columns, line)

    def test_what_is_not_there_is_a_result(self):
        self.prefix.with_name("torch.py").write_text("raise ModuleNotFoundError")
        environment = os.environ | {"PATH": "/nowhere", "CUDA_PATH": "/nowhere",
                                    "PYTHONPATH": str(self.prefix.parent)}
        chosen = ("torch", "sanitizer", "python", "profile")
        self.rehearse("--only", "phase=" + ",".join(chosen), env=environment)
        self.assertEqual(self.ends(), dict.fromkeys(chosen, "not present"))
        self.assertEqual(self.cases(), [])
        # A Python that is not there ends its phase, not the run.
        self.rehearse("--only", "phase=torch,overhead", "--python", "/nowhere/python3")
        self.assertEqual((self.ends()["torch"], self.ends()["overhead"]), ("crashed", "complete"))

    def test_what_the_tools_find(self):
        only = ("--only", "phase=sanitizer", "--only", "backend=efficient", "--only", "case=sq65 skv97")
        for lines, found in (
                (SANITIZER.replace(" 0 errors", " 2 errors"), "memcheck found 2 errors"),
                (SANITIZER.replace("0 hazards", "7 hazards"), "racecheck found 7 hazards"),
                (SANITIZER.replace('echo "=', 'true "='), "printed no summary"),
                (SANITIZER.replace('"$@"', ":"), "the case ended with ''")):
            with self.subTest(found):
                self.setUp()
                self.rehearse(*only, status=1, env=self.make_tool("compute-sanitizer", lines))
                failed = [line["detail"] for line in self.cases() if line["result"] == "failed"]
                self.assertIn(found, "\n".join(failed))
                self.assertIn(found, self.report())
        self.setUp()
        self.rehearse("--only", "phase=profile",
                      env=self.make_tool("ncu", "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\n"))
        self.assertEqual(self.ends()["profile"], "not present")

    def test_a_device_that_is_lost(self):
        """The case that lost it has failed, and another process goes on with the others."""
        text = (STAND_INS / "torch.py").read_text()
        self.prefix.with_name("torch.py").write_text(text.replace("No available kernel", "CUDA error: unspecified"))
        self.rehearse("--only", "phase=torch", status=1,
                      env=os.environ | {"PYTHONPATH": str(self.prefix.parent)})
        self.assertEqual(self.ends(), {"torch": "complete"})
        counts = collections.Counter(("f32" in line["case"], line["result"]) for line in self.cases())
        self.assertEqual(set(counts), {(True, "failed"), (False, "measured")}, counts)

    def test_only(self):
        self.rehearse("--only", "phase=conformance,speed", "--only", "backend=math", "--only", "case=f8e4m3",
                      "--only", "case=hkv2 sq128 skv128")
        self.assertEqual({line["phase"] for line in self.cases()}, {"conformance"})
        self.assertEqual({line["backend"] for line in self.cases()}, {"math"})
        for line in self.cases():
            self.assertRegex(line["case"], "f8e4m3|hkv2 sq128 skv128")
        listed = run(PROGRAM, "--rehearse", "--list", "--only", "phase=large").stdout
        self.assertEqual(len(listed.splitlines()), 7, listed)

    def test_the_documents_phases(self):
        rows = re.findall(r"^\| `(\w+)` \| .* \| (\d*) ?\|$", (ROOT / "docs" / "cuda.md").read_text(), re.M)
        listed = run(PROGRAM, "--rehearse", "--list", "--cases", 1).stdout
        found = re.findall(r"^(\w+): .* \(at most (\d+) s\)$", listed, re.M)
        self.assertEqual([phase for phase, _ in found], PHASES)
        self.assertEqual(rows, [*found[:-1], ("random", "")])
        self.assertLessEqual(sum(int(seconds) for _, seconds in found[:-1]), 540)

    def test_wrong_use(self):
        for words, message in (
                (("--only", "phase=speeds"), r"--only \(phase=speeds\) must be one of rates, .*, random"),
                (("--only", "backend=cuda"), r"--only \(backend=cuda\) must be one of .*efficient"),
                (("--only", "case=d9999"), r"--only \(case=d9999\) must be a part of a case's words"),
                (("--only", "speed"), r"--only \(speed\) must be phase=NAME"),
                (("--only", "phase="), r"--only \(phase=\) must be phase=NAME"),
                (("--seconds", "0"), r"--seconds \(0\) must be a number"),
                (("--seconds", "soon"), r"--seconds \(soon\) must be a number"),
                (("--cases", "-1"), r"--cases \(-1\) must be a number"),
                (("--cases",), "--cases needs a value"),
                (("--child", "what"), r"--child \(what\) must be a phase"),
                (("--what",), "--what is no option")):
            with self.subTest(words):
                ran = self.rehearse(*words, status=2)
                self.assertRegex(ran.stderr, r"^\[gpu_check\] " + message)
                self.assertFalse(self.prefix.with_suffix(".jsonl").exists())


class CutOff(OnTheHost):
    RANDOM = ("--only", "phase=random", "--cases", "40")

    def test_killed_and_resumed(self):
        self.rehearse(*self.RANDOM)
        whole = self.keys()
        results = self.prefix.with_suffix(".jsonl")
        results.unlink()
        process = self.start(*self.RANDOM)
        (child,) = children(process.pid)
        process.kill()
        process.wait()
        wait_for(lambda: not pathlib.Path(f"/proc/{child}").exists())  # it ends with its parent
        before = results.read_bytes()
        self.assertLess(5, before.count(b"\n"))
        self.assertLess(before.count(b"\n"), len(whole))
        results.write_bytes(before + before[:before.index(b"\n") - 9])  # a line that was cut off
        ran = self.rehearse(*self.RANDOM)
        self.assertRegex(ran.stdout, rf"random: {before.count(10)} of {len(whole)} cases have results")
        self.assertEqual(sorted(self.keys(), key=str), sorted(whole, key=str))
        self.assertEqual(len(set(self.keys())), len(whole))
        self.assertEqual(self.ends(), {"random": "complete"})
        self.assertTrue(results.read_bytes().startswith(before))

    def test_a_child_that_crashes_or_hangs(self):
        for sent, result, detail in ((signal.SIGSEGV, "crashed", "signal 11"),
                                     (signal.SIGSTOP, "timed out", "")):
            with self.subTest(result):
                self.setUp()
                process = self.start(*self.RANDOM, "--case-seconds", "3")
                (child,) = children(process.pid)
                os.kill(child, sent)
                self.assertEqual(process.wait(60), 1)
                self.assertEqual(self.ends(), {"random": "complete"})
                counts = collections.Counter(line["result"] for line in self.cases())
                self.assertEqual(counts[result], 1, counts)
                self.assertEqual(counts["failed"], 0)
                self.assertIn(detail, [c.get("detail", "") for c in self.cases() if c["result"] == result][0])
                self.assertIn(result, self.report())
                ran = self.rehearse(*self.RANDOM, status=1)  # its result is kept
                self.assertRegex(ran.stdout, r"random: (\d+) of \1 cases have results")

    def test_time_limits(self):
        begin = time.monotonic()
        self.rehearse("--only", "phase=random,overhead", "--cases", 2000, "--phase-seconds", 2)
        self.assertEqual(self.ends(), {"overhead": "complete", "random": "timed out"})
        self.assertRegex(self.results()[-1]["detail"], r"^\d+ cases have no result$")
        done = len(self.cases())  # a loaded machine may end none of random's in time
        self.rehearse("--only", "phase=random", "--cases", 2000, "--seconds", 2)
        self.assertGreaterEqual(len(self.cases()), done)
        self.assertEqual(self.ends()["random"], "timed out")
        self.assertEqual(len(set(self.keys())), len(self.cases()))
        self.assertLess(time.monotonic() - begin, 30)

    def test_results_that_cannot_be_written(self):
        self.prefix.with_suffix(".jsonl").symlink_to("/dev/full")
        ran = self.rehearse(*self.RANDOM, status=4)
        self.assertRegex(ran.stderr, r"^\[gpu_check\] results \(.*\.jsonl\) cannot be written: No space left")
        self.prefix = self.prefix.parent / "nowhere" / "check"
        ran = self.rehearse(*self.RANDOM, status=4)
        self.assertRegex(ran.stderr, r"cannot be opened: No such file")

    def test_damaged_results(self):
        results = self.prefix.with_suffix(".jsonl")
        good = '{"build": "0", "device": "rehearsal", "phase": "random", "result": "complete"}\n'
        for text, line in ((good + "{]\n" + good, 2), ("notes\n", 1), (good + '{"build": "0"}\n', 2),
                           (good.replace("}", "} x"), 1), (good + "my own notes", "the last"),
                           (good.replace('"complete"', "complete"), 1)):
            with self.subTest(text):
                results.write_text(text)
                ran = self.rehearse(*self.RANDOM, status=4)
                self.assertRegex(ran.stderr, rf"are damaged: (line )?{line} (line )?must be a JSON object")
                self.assertEqual(results.read_text(), text)

    def test_results_of_others(self):
        """Those of another program are kept and not counted; two runs do not share a file."""
        results = self.prefix.with_suffix(".jsonl")
        other = ('{"build": "0", "device": "rehearsal", "phase": "overhead", "case": "b1", '
                 '"result": "failed", "detail": "\\u00e9 \\"x\\""}\n')
        results.write_text(other)
        self.rehearse("--only", "phase=overhead")
        self.assertTrue(results.read_text().startswith(other))
        self.assertNotIn("failed:", self.report())
        process = self.start("--only", "phase=random", "--cases", "2000")
        ran = self.rehearse("--only", "phase=overhead", status=4)
        self.assertIn("are being written by another run", ran.stderr)
        process.kill()


class Scripts(InAFolder):
    """What PyTorch's phases are given, and what they print by themselves."""

    def test_cases_are_read(self):
        self.assertEqual(
            gpu_check_cases.parse("b8 hq32 hkv8 sq1 skv8192 d128 bf16 lse grad"),
            {"b": 8, "hq": 32, "hkv": 8, "sq": 1, "skv": 8192, "d": 128, "dtype": "bf16",
             "causal": False, "grad": True, "mask": False})
        causal = gpu_check_cases.parse("b2 hq16 sq64 d128 f32 causal diag=tl")
        self.assertTrue(causal["causal"] and causal["hkv"] == 16 and causal["skv"] == 64)
        for words in ("b2 sq4 d8 f8e4m3 out=f8e4m3", "b2 sq4 d8 bf16 causal diag=br", "sq4 d8 f32"):
            self.assertIsNone(gpu_check_cases.parse(words), words)

    def test_every_measured_case_is_known_or_of_8_bits(self):
        lists = re.findall(r"k(\w+)\[\] = \{(.*?)\};", (ROOT / "tools/gpu_check/cases.h").read_text(), re.S)
        words = {name: re.findall(r'"(b\d[^"]*)"', text) for name, text in lists}
        for case in words["Speeds"]:
            self.assertEqual(gpu_check_cases.parse(case) is None, "f8e4m3" in case, case)
        for case in words["Python"]:
            self.assertIsNotNone(gpu_check_cases.parse(case), case)

    def test_without_pytorch(self):
        self.prefix.with_name("torch.py").write_text("raise ModuleNotFoundError")
        environment = os.environ | {"PYTHONPATH": str(self.prefix.parent)}
        for name in ("torch", "python"):
            ran = run(sys.executable, "-B", ROOT / "scripts" / f"gpu_check_{name}.py", env=environment,
                      input='{"case": "b1 sq4 d8 f32", "backend": "torch flash"}\n')
            self.assertEqual((ran.returncode, ran.stdout), (0, "missing PyTorch is not installed\n"), ran.stderr)


class Script(InAFolder):
    """gpu_check.sh with a program of a few lines in the place of what it would build."""

    def check(self, lines, *options):
        build = self.prefix.parent / "build"
        program = build / "tools" / "gpu_check" / "regard_gpu_check"
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\n[ "$1" != --help ] || exit 0\n' + lines)
        program.chmod(0o755)
        self.prefix.with_suffix(".md").write_text("# The report\n")
        return run("sh", ROOT / "scripts" / "gpu_check.sh", "-b", build, "-o", self.prefix,
                   *options)

    def test_statuses(self):
        for status, expected in ((0, 0), (1, 1), (3, 3), (4, 4), (134, 1)):
            with self.subTest(status=status):
                self.setUp()
                ran = self.check(f"echo '[gpu_check] why'\nexit {status}\n", "-t", 200)
                self.assertEqual(ran.returncode, expected, ran.stderr)
                self.assertEqual("# The report" in ran.stdout, status < 2)
                self.assertEqual("[gpu_check] why" in ran.stderr, status > 1)
        self.assertEqual(run("sh", ROOT / "scripts" / "gpu_check.sh", "-t", "soon").returncode, 2)

    def test_a_bundle_whose_program_does_not_start(self):
        script = self.prefix.with_name("gpu_check.sh")
        script.write_bytes((ROOT / "scripts" / "gpu_check.sh").read_bytes())
        self.prefix.with_name("regard_gpu_check").write_text("no program")
        ran = run("sh", script, "-o", self.prefix)
        self.assertEqual(ran.returncode, 4)
        self.assertRegex(ran.stderr, "does not start, and no checkout is here")

    def test_libraries_of_wheels(self):
        """Where no loader knows cuDNN the program finds PyTorch's; elsewhere nothing changes."""
        for known in ("", "libcudnn.so.9 (libc6,x86-64) => /opt/libcudnn.so.9"):
            with self.subTest(known=known):
                self.setUp()
                folder = self.prefix.parent
                library = folder / "site" / "nvidia" / "cudnn" / "lib"
                library.mkdir(parents=True)
                found = self.make_tool("ldconfig", f"#!/bin/sh\necho '{known}'\n")
                found["PYTHONPATH"] = str(folder / "site")
                with unittest.mock.patch.dict(os.environ, found):
                    self.check('echo "$LD_LIBRARY_PATH" >"$4.path"\n', "-t", 200)
                searched = self.prefix.with_suffix(".path").read_text()
                self.assertEqual(str(library) in searched, not known)

    def test_time_and_options(self):
        self.check('echo "$@" >"$4.arguments"\nexit 0\n', "-t", 200, "--", "--only", "phase=speed")
        arguments = self.prefix.with_suffix(".arguments").read_text().split()
        self.assertTrue(100 < int(arguments[1]) <= 195, arguments)
        self.assertEqual(arguments[4:], ["--only", "phase=speed"])
        self.setUp()
        begin = time.monotonic()
        ran = self.check("echo a case on math\nexec sleep 300\n", "-t", 12)
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, "status 124(.|\n)*a case on math")
        self.assertLess(time.monotonic() - begin, 60)


if __name__ == "__main__":
    unittest.main()
