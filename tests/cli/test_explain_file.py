"""`regard explain FILE`: the decision for a file is the one that run makes."""

import os
import unittest

from _cli import MINILM, SMALL, USAGE, CliTest, floats, qkv, tensor_file


class ExplainFile(CliTest):
    def agrees(self, path, *args):
        """explain and run of a file; the decisions must be equal. Returns what explain prints."""
        explained = self.document("explain", path, *args)
        ran = self.document("run", path, "--repeat", "1", "--no-check", *args)
        for key, value in ran["selection"].items():
            self.assertEqual(explained[key], value, key)
        self.assertEqual(explained["case"], ran["case"])
        self.assertEqual(explained["plan"]["kernel"], ran["results"][0]["kernel"])
        self.assertEqual(explained["file"], ran["file"])
        return explained

    def test_the_decision_of_run(self):
        found = self.agrees(MINILM)
        self.assertIn("b6 hq12 hkv12 sq47 skv47 d32 f32 lens=both", found["case"])
        self.agrees(MINILM, "--backend", "math,efficient", "--threads", "1")
        self.agrees(MINILM, "--option", "softcap=20")
        found = self.agrees(MINILM, "--grad")
        self.assertIn(" grad", found["case"])
        self.assertIn("backward", found)

    def test_options_and_layouts_of_the_file(self):
        path = self.put("in.safetensors", tensor_file(qkv(), "causal diag=br window=2,0"))
        self.assertIn("causal diag=br window=2,0", self.agrees(path)["case"])
        path = self.put("in.safetensors", tensor_file(qkv(2, 2, 2, 2, 2), "layout=bshd"))
        self.assertIn("layout=bshd", self.agrees(path)["case"])
        self.assertIn("sinks", self.agrees(
            self.put("in.safetensors", tensor_file({**qkv(), "sinks": ("F32", [2], floats(2))})),
        )["case"])

    def test_names_of_files(self):
        self.put("in.safetensors", tensor_file(qkv()))
        (self.dir / "other").write_bytes((self.dir / "in.safetensors").read_bytes())
        for name in ("in.safetensors", "./other", str(self.dir / "other")):
            self.cli("explain", name, cwd=self.dir)
        self.refused("explain", "other", names=["other"])  # a word of a case
        self.refused("explain", "in.safetensors", "causal", names=["--option"])

    def test_nothing_is_executed(self):
        text = self.cli("explain", MINILM).stdout
        self.assertIn("plan     ", text)
        self.assertNotIn("GFLOP/s", text)

    def test_another_machine(self):
        found = self.document("explain", MINILM, "--isa", "avx512_bf16")
        self.assertIn("avx512", found["plan"]["isa"])

    def test_cases_take_the_same_flags(self):
        found = self.document("explain", SMALL, "--option", "causal diag=br", "--grad")
        self.assertIn("causal diag=br", found["case"])
        self.assertIn(" grad", found["case"])

    def test_a_bad_variable_is_reported_first(self):
        self.refused("explain", self.dir / "missing", env={"REGARD_NUM_THREADS": "x"},
                     names=["REGARD_NUM_THREADS"])

    @unittest.skipUnless(hasattr(os, "mkfifo"), "needs FIFOs")
    def test_a_pipe_is_not_waited_for(self):
        os.mkfifo(self.dir / "pipe")
        self.cli("explain", self.dir / "pipe", code=USAGE, timeout=20)


if __name__ == "__main__":
    unittest.main()
