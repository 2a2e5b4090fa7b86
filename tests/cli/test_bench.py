"""`regard bench`: times of every usable backend, and what ends it."""

import functools
import json
import os
import resource
import signal
import subprocess
import time
import unittest

from _cli import CLI, FAILED, INTERRUPTED, MINILM, NO_BACKEND, SMALL, USAGE, CliTest, environment

ONE = ["--rounds", "1"]
# The rates of two threads, beside those of one, take three quarters of a short measurement's time.
ON_ONE = ["--threads", "1", *ONE]


def by_name(problem):
    return {(r["name"], r["direction"]): r for r in problem["rows"]}


class Bench(CliTest):
    def rows(self, *args):
        (problem,) = self.document("bench", *args)["problems"]
        return problem, by_name(problem)

    def test_every_usable_backend(self):
        problem, rows = self.rows(SMALL, *ON_ONE)
        explained = self.document("explain", SMALL, "--threads", "1")
        self.assertEqual(problem["chosen"], explained["chosen"])
        self.assertEqual(problem["rounds"], 1)
        self.assertIsNone(problem["file"])
        for candidate in explained["candidates"]:
            row = rows[candidate["backend"], "forward"]
            self.assertEqual(row["reason"] is None, candidate["usable"])
            if not candidate["usable"]:
                self.assertIsNone(row["seconds"])
                continue
            self.assertEqual(row["workspace_bytes"], candidate["workspace_bytes"])
            self.assertEqual(row["operations"], 2 * (8 + 8) * 2 * 5 * 9)
            self.assertLess(0, row["min_seconds"])
            order = [row[key] for key in ("min_seconds", "first_quartile_seconds", "seconds",
                                          "third_quartile_seconds", "max_seconds")]
            self.assertEqual(order, sorted(order))
            self.assertAlmostEqual(row["gflops"] * row["seconds"] * 1e9, row["operations"], 3)
            self.assertGreater(row["peak_share"], 0)
            self.assertGreater(row["memory_share"], 0)
            self.assertGreaterEqual(row["runs"], 1)

    def test_the_machine_is_measured(self):
        problem, _ = self.rows(SMALL, "--threads", "2", *ONE)
        self.assertEqual(problem["machine"]["threads"], 2)
        self.assertEqual(problem["one_thread"]["threads"], 1)
        self.assertGreater(problem["machine"]["f32_gflops"], 0)
        self.assertGreater(problem["machine"]["read_gbps"], 0)

    def test_gradients(self):
        for args in ([SMALL + " grad", SMALL + " lse grad"], [SMALL, MINILM, "--grad"]):
            problems = self.document("bench", *args, *ON_ONE)["problems"]
            self.assertEqual(len(problems), 2)
            for problem in problems:
                with self.subTest(case=problem["case"]):
                    rows = by_name(problem)
                    for name in ("flash", "efficient", "math"):
                        self.assertGreater(rows[name, "backward"]["seconds"], 0)
                        self.assertEqual(rows[name, "backward"]["operations"],
                                         2.5 * rows[name, "forward"]["operations"])

    def test_text(self):
        text = self.cli("bench", SMALL, "--threads", "2", *ONE).stdout
        self.assertIn("case     " + SMALL.split()[0], text)
        self.assertRegex(text, r"machine  \w+, 2 threads: [\d.]+ GFLOP/s \([\d.]+ on one\) in f32")
        self.assertRegex(text, r"\nflash  .* us .* % .* flash_")
        self.assertRegex(text, r"\ncudnn  ")
        self.assertNotIn("backward", text)

    def test_several_problems(self):
        found = self.document("bench", "b1", "hq2", "sq5", "d8", str(MINILM), "sq7 d8 f16", "sq9 d8",
                              *ON_ONE)
        self.assertEqual([p["case"].split()[3] for p in found["problems"]],
                         ["sq5", "sq47", "sq7", "sq9"])
        self.assertEqual([bool(p["file"]) for p in found["problems"]], [False, True, False, False])
        text = self.cli("bench", "sq7 d8", "sq9 d8", *ON_ONE).stdout
        self.assertEqual(text.count("machine  "), 2)

    def test_policies_threads_and_instruction_sets(self):
        problem, rows = self.rows(SMALL, "--backend", "math", "--threads", "1", "--isa", "scalar", *ONE)
        self.assertEqual(problem["machine"]["isa"], "scalar")
        self.assertEqual(problem["machine"]["threads"], 1)
        self.assertIsNone(rows["flash", "forward"]["seconds"])
        self.assertTrue(rows["flash", "forward"]["reason"])
        self.assertEqual(rows["math", "forward"]["kernel"], "math_scalar_f32")

    def test_rounds_and_seconds(self):
        problem, _ = self.rows(SMALL, "--threads", "1", "--rounds", "4")
        self.assertEqual(problem["rounds"], 4)
        problem, _ = self.rows(SMALL, "--threads", "1", "--seconds", "0.001")
        self.assertEqual(problem["rounds"], 3)

    def test_bad_lines(self):
        self.refused("bench", names=["problem"])
        self.refused("bench", "sq5", *ONE)
        self.refused("bench", SMALL, "--rounds", "0", names=["--rounds", "0"])
        for seconds in ("0", "-1", "nan", "x", "1e9"):
            self.refused("bench", SMALL, "--seconds", seconds, names=["--seconds", seconds])
        self.refused("bench", SMALL + " device=sm90", *ONE, names=["device"])
        self.cli("bench", SMALL, "--backend", "cudnn", *ONE, code=NO_BACKEND)
        found = self.document("bench", "sq5 d8", SMALL + " colour", *ON_ONE, code=USAGE)
        self.assertEqual(len(found["problems"]), 1)

    def test_memory_that_cannot_be_had(self):
        self.cli("bench", "b4096 hq4096 sq65536 d128", *ONE, code=(USAGE, FAILED))


class Interrupt(CliTest):
    @staticmethod
    def processor_seconds(process):
        with open(f"/proc/{process.pid}/stat") as stat:
            user, system = stat.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    @functools.cache
    def seconds_to_begin():
        """Processor seconds until a measurement is under way: tensors and rates take 1 s, by the size of the caches."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([CLI, "bench", SMALL, *ON_ONE], env=environment(), stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1.5 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def interrupted(self, *args):
        """Output and seconds after SIGINT of a measurement that would go on."""
        begun = self.seconds_to_begin()
        process = subprocess.Popen([CLI, "bench", *args, "--threads", "1", "--seconds", "600"], env=environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and self.processor_seconds(process) < begun:
            time.sleep(0.05)
        self.assertIsNone(process.poll(), "it has not ended by itself")
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, err)
        self.assertIn("interrupted", err)
        return out, time.monotonic() - start

    def test_what_there_is_is_printed(self):
        out, _ = self.interrupted(SMALL)
        self.assertRegex(out, r"\nflash  .* us .* flash_")
        self.assertIn("interrupted after", out)

    def test_json(self):
        out, _ = self.interrupted("sq7 d8", "--json")
        found = json.loads(out)
        self.assertEqual(found["exit_code"], INTERRUPTED)
        self.assertEqual(found["error"]["code"], "interrupted")
        self.assertTrue(found["problems"][0]["interrupted"])
        self.assertGreater(found["problems"][0]["rows"][0]["runs"], 0)

    def test_within_a_long_call(self):
        _, seconds = self.interrupted("b1 hq16 sq8192 d128", "--backend", "math", "--isa", "scalar")
        self.assertLess(seconds, 10)  # one call takes a minute


if __name__ == "__main__":
    unittest.main()
