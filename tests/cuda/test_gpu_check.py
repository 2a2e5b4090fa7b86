"""gpu_check without a device: what its program measures and writes where host memory plays one, its
comparison with PyTorch on stand-ins, and its script's time limit and exit statuses on a stand-in."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("REGARD_DEV_BUILD_DIR", ROOT / "build" / "dev"))
PROGRAM = BUILD / "tools" / "gpu_check" / "regard_gpu_check"
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_check_torch  # noqa: E402


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=580, cwd=ROOT)


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = pathlib.Path(folder.name) / "check"

    def document(self):
        return json.loads(self.prefix.with_suffix(".json").read_text())

    def report(self):
        return self.prefix.with_suffix(".md").read_text()


@unittest.skipUnless(PROGRAM.exists(), "regard_gpu_check is not built: no CUDA")
class DryRun(InAFolder):
    def test_cases_measurements_and_report(self):
        ran = run(PROGRAM, "--dry-run", "--cases", 150, "--seconds", 500, "--out", self.prefix)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        data = self.document()
        self.assertTrue(data["dry_run"] and data["complete"])
        self.assertEqual(data["failures"], [])
        backends = set(data["conformance"])
        older = "efficient, no tensor cores"
        self.assertLess(data["conformance"][older]["passed"],
                        data["conformance"]["efficient"]["passed"])
        self.assertLessEqual({"math", "efficient", "flash"}, backends)
        for tally in data["conformance"].values():
            self.assertGreater(tally["passed"], 20)
        for section in ("benchmarks", "cudnn_direct", "overhead"):
            self.assertTrue(data[section], section)
            self.assertEqual({row["error"] for row in data[section]}, {""}, section)
        self.assertEqual({row["backend"] for row in data["overhead"]}, backends - {older})
        passes = [(row["case"], row["backward"]) for row in data["cudnn_direct"]]
        cases = {case for case, _ in passes}
        self.assertEqual(sorted(passes), sorted((c, b) for c in cases for b in (False, True)))
        self.assertTrue(any("f8e4m3" in row["case"] for row in data["benchmarks"]))
        for row in data["cudnn_direct"]:
            self.assertGreater(min(row["ms"], row["direct_ms"]), 0)
        report = self.report()
        self.assertIn("no device: a dry run", report)
        self.assertIn("the second call is regard's own", report)
        self.assertNotRegex(report, r"\| (held|missed) \|")
        for line in report.splitlines():  # every row of a table has its columns
            if line.startswith("|---"):
                columns = line.count("|")
            elif line.startswith("| `"):
                self.assertEqual(line.count("|"), columns, line)
        # What it writes is what the comparison with PyTorch reads.
        ran = run(sys.executable, "-B", ROOT / "scripts" / "gpu_check_torch.py", self.prefix,
                  "--dry-run")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        compared = [row["case"] for row in self.document()["torch"]["rows"]]
        self.assertEqual(compared, [row["case"] for row in data["benchmarks"]
                                    if row["backend"] == "efficient"
                                    and "f8e4m3" not in row["case"]])

    def test_it_stops_when_time_is_over(self):
        begin = time.monotonic()
        run(PROGRAM, "--dry-run", "--cases", 100000, "--seconds", 2, "--out", self.prefix)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertFalse(self.document()["complete"])

    def test_wrong_use(self):
        self.assertEqual(run(PROGRAM, "--seconds", 0).returncode, 2)
        self.assertEqual(run(PROGRAM, "--what").returncode, 2)


ROWS = [
    {"case": "b2 hq16 sq4096 d128 bf16 causal diag=tl", "backend": "efficient", "error": "",
     "ms": 2.0},
    {"case": "b8 hq32 hkv8 sq1 skv8192 d128 bf16", "backend": "efficient", "error": "", "ms": 0.5},
    {"case": "b2 hq16 sq4096 d128 bf16", "backend": "cudnn", "error": "", "ms": 1.0},
    {"case": "b2 hq16 sq4096 d128 bf16 lse grad", "backend": "efficient", "error": "no memory",
     "ms": 0.0},
    {"case": "b2 hq16 sq4096 d128 f8e4m3 out=f8e4m3", "backend": "efficient", "error": "",
     "ms": 1.0},
]


class BesidePyTorch(InAFolder):
    def setUp(self):
        super().setUp()
        self.prefix.with_suffix(".json").write_text(json.dumps({"benchmarks": ROWS, "kept": 1}))
        self.prefix.with_suffix(".md").write_text("# Before\n")

    def beside(self, *options):
        ran = run(sys.executable, "-B", ROOT / "scripts" / "gpu_check_torch.py", self.prefix,
                  *options)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.document()["kept"], 1)
        self.assertTrue(self.report().startswith("# Before\n"))
        return self.document()["torch"]

    def test_cases_are_read(self):
        self.assertEqual(
            gpu_check_torch.parse("b8 hq32 hkv8 sq1 skv8192 d128 bf16 lse grad"),
            {"b": 8, "hq": 32, "hkv": 8, "sq": 1, "skv": 8192, "d": 128, "dtype": "bf16",
             "causal": False, "grad": True})
        causal = gpu_check_torch.parse("b2 hq16 sq64 d128 f32 causal diag=tl")
        self.assertTrue(causal["causal"] and causal["hkv"] == 16 and causal["skv"] == 64)
        for words in ("b2 sq4 d8 f8e4m3 out=f8e4m3", "b2 sq4 d8 bf16 causal diag=br", "sq4 d8 f32"):
            self.assertIsNone(gpu_check_torch.parse(words), words)

    def test_every_case_of_the_program_is_known_or_left_out_on_purpose(self):
        words = re.findall(r'"(b\d[^"]*)"', (ROOT / "tools/gpu_check/cases.h").read_text())
        left_out = [w for w in words if gpu_check_torch.parse(w) is None]
        self.assertGreater(len(words) - len(left_out), 12)
        for case in left_out:
            self.assertRegex(case, "f8e4m3|dv|window|diag=br|layout|mask|bias")

    def test_stand_ins(self):
        torch = self.beside("--dry-run")
        self.assertEqual([(row["case"], row["torch_ms"]) for row in torch["rows"]],
                         [(ROWS[0]["case"], 1.0), (ROWS[1]["case"], 1.0)])
        report = self.report()
        self.assertIn("stand-ins of a dry run", report)
        self.assertIn("| 2.0000 | 1.0000 | 2.000 | missed |", report)
        self.assertIn("| 0.5000 | 1.0000 | 0.500 | held |", report)

    def test_no_time_no_rows(self):
        self.assertEqual(self.beside("--dry-run", "--seconds", "0")["rows"], [])

    def test_without_pytorch(self):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.addCleanup(os.environ.pop, "CUDA_VISIBLE_DEVICES")
        missing = self.beside()["missing"]
        self.assertRegex(missing, "^PyTorch (not installed$|cannot be used: )")
        self.assertIn(missing, self.report())


class Script(InAFolder):
    """gpu_check.sh with a program of a few lines in the place of what it would build."""

    def check(self, lines, *options):
        build = self.prefix.parent / "build"
        program = build / "tools" / "gpu_check" / "regard_gpu_check"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n" + lines)
        program.chmod(0o755)
        self.prefix.with_suffix(".json").write_text(json.dumps({"benchmarks": []}))
        self.prefix.with_suffix(".md").write_text("# The report\n")
        return run("sh", ROOT / "scripts" / "gpu_check.sh", "-b", build, "-o", self.prefix,
                   *options)

    def test_statuses(self):
        for status, expected in ((0, 0), (1, 1), (3, 3), (134, 1)):
            with self.subTest(status=status):
                self.setUp()
                ran = self.check(f"exit {status}\n", "-t", 200)
                self.assertEqual(ran.returncode, expected, ran.stderr)
                self.assertEqual("# The report" in ran.stdout, status != 3)
        self.assertEqual(run("sh", ROOT / "scripts" / "gpu_check.sh", "-t", "soon").returncode, 2)

    def test_libraries_of_wheels(self):
        """Where no loader knows cuDNN the program finds PyTorch's; elsewhere nothing changes."""
        for known in ("", "libcudnn.so.9 (libc6,x86-64) => /opt/libcudnn.so.9"):
            with self.subTest(known=known):
                self.setUp()
                folder = self.prefix.parent
                library = folder / "site" / "nvidia" / "cudnn" / "lib"
                library.mkdir(parents=True)
                ldconfig = folder / "bin" / "ldconfig"
                ldconfig.parent.mkdir()
                ldconfig.write_text(f"#!/bin/sh\necho '{known}'\n")
                ldconfig.chmod(0o755)
                found = {"PATH": f"{ldconfig.parent}:{os.environ['PATH']}",
                         "PYTHONPATH": str(folder / "site")}
                with unittest.mock.patch.dict(os.environ, found):
                    self.check('echo "$LD_LIBRARY_PATH" >"$4.path"\n', "-t", 200)
                searched = self.prefix.with_suffix(".path").read_text()
                self.assertEqual(str(library) in searched, not known)

    def test_time(self):
        self.check('echo "$@" >"$4.arguments"\nexit 0\n', "-t", 200)
        seconds = int(self.prefix.with_suffix(".arguments").read_text().split()[1])
        self.assertTrue(100 < seconds <= 185, seconds)
        self.setUp()
        begin = time.monotonic()
        ran = self.check("echo a case on math\nexec sleep 300\n", "-t", 40)
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr, "status 124(.|\n)*a case on math")
        self.assertLess(time.monotonic() - begin, 60)


if __name__ == "__main__":
    unittest.main()
