"""`regard freeze` and `diff`, and records that `bench` and `freeze` take."""

import subprocess
import unittest

from _cli import CLI, FAILED, NO_BACKEND, SMALL, CliTest, environment

CASES = [SMALL + " causal diag=tl", "b1 hq2 sq1 skv300 d16 bf16"]
RECORD = """regard-record 1
# calls, direction, case
30 forward b1 hq2 hkv2 sq1 skv300 d16 bf16
7 forward b1 hq2 hkv1 sq5 skv9 d8 f32 saved grad
7 backward b1 hq2 hkv1 sq5 skv9 d8 f32 saved grad
"""


class Freeze(CliTest):
    def frozen(self, name, *args, env=None):
        path = self.dir / name
        self.cli("freeze", *CASES, "-o", path, *args, env=env)
        return path

    def test_what_is_written_is_that_of_this_machine(self):
        path = self.frozen("a.frozen")
        text = path.read_text()
        self.assertEqual(text, self.cli("freeze", *CASES).stdout)
        self.assertEqual(text.splitlines()[0], "regard-frozen 1")
        self.assertEqual(text.splitlines()[-1], "end 2")
        chosen = self.document("explain", CASES[1])["chosen"]
        self.assertIn(f"\nbackend {chosen}\n", text)
        self.assertIn("2 decisions", self.cli("freeze", "--verify", path).stdout)
        self.assertEqual(self.cli("diff", path, path).stdout, "no difference\n")
        self.assertEqual(self.names(), ["a.frozen"])

    def test_another_machine_is_shown_with_the_cause(self):
        here, there = self.frozen("a.frozen"), self.frozen("b.frozen", "--isa", "scalar")
        text = self.cli("diff", here, there, code=FAILED).stdout
        self.assertIn("isa: isa: ", text)
        self.assertIn("isa: forward of b1 hq2 hkv1 sq5 skv9 d8 f32", text)
        found = self.document("diff", here, there, code=FAILED)
        self.assertEqual({d["cause"] for d in found["differences"]}, {"isa"})
        refused = self.cli("freeze", "--verify", there, code=FAILED).stderr
        self.assertIn("isa: isa: scalar -> ", refused)
        denied = self.frozen("c.frozen", "--deny", "flash")
        causes = {d["cause"] for d in self.document("diff", here, denied, code=FAILED)["differences"]}
        self.assertEqual(causes, {"policy"})

    def test_a_program_is_held_to_it(self):
        path = self.frozen("a.frozen")
        self.cli("explain", CASES[0], env={"REGARD_REPLAY": str(path)})
        refused = self.cli("explain", CASES[0], code=NO_BACKEND,
                           env={"REGARD_REPLAY": str(path), "REGARD_DENY": "flash"})
        self.assertIn("policy: policy: ", refused.stdout + refused.stderr)
        self.assertNotIn("next ", refused.stdout)

    def test_bad_input(self):
        path = self.frozen("a.frozen")
        whole = path.read_text()
        for text, word in {"": "regard-frozen", whole[:-20]: "a.txt:", whole + "x": "ends within",
                           whole.replace("backend flash", "backend \x1b[31m", 1): "no backend"}.items():
            bad = self.put("a.txt", text.encode())
            self.refused("diff", path, bad, names=[word])
            self.refused("freeze", "--verify", bad, names=[word])
        self.refused("diff", path, self.dir / "none", names=["none"])
        self.refused("freeze", names=["cases"])
        self.refused("freeze", SMALL + " isa=scalar", names=["isa="])
        self.cli("freeze", SMALL, "-o", self.dir / "no" / "x", code=FAILED)
        with open("/dev/full", "w") as out:
            full = subprocess.run([CLI, "freeze", SMALL], stdout=out, stderr=subprocess.PIPE,
                                  env=environment(), check=False)
        self.assertEqual(full.returncode, FAILED)


class Records(CliTest):
    ONE = ("--rounds", "1", "--threads", "1")

    def test_bench_measures_the_cases(self):
        path = self.put("calls.record", RECORD.encode())
        found = self.document("bench", path, *self.ONE)
        self.assertEqual([p["calls"] for p in found["problems"]], [30, 7])
        self.assertEqual(found["recorded_calls"], 37)
        self.assertGreater(found["recorded_seconds"], 0)
        self.assertIn("37 calls take ", self.cli("bench", path, *self.ONE).stdout)
        self.assertIn("end 2\n", self.cli("freeze", path).stdout)

    def test_a_program_records_what_bench_takes(self):
        path = self.dir / "calls.record"
        self.cli("bench", SMALL, "--rounds", "2", "--threads", "1", env={"REGARD_RECORD": str(path)})
        self.assertEqual(path.read_text().splitlines()[0], "regard-record 1")
        self.assertIn(" forward " + SMALL, path.read_text())
        (problem,) = self.document("bench", path, *self.ONE)["problems"]
        self.assertGreater(problem["calls"], 1)

    def test_bad_records(self):
        for text, word in {"": "regard-record", RECORD[:-3]: "ends within",
                           RECORD.replace("30", "x"): "number", "regard-record 1\n": "no case"}.items():
            self.refused("bench", self.put("a.record", text.encode()), "--rounds", "1", names=[word])
        self.refused("bench", self.dir / "none.record", names=["none.record"])


if __name__ == "__main__":
    unittest.main()
