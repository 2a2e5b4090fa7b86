"""What ./dev and .ci/run do: every verb is named, random cases are drawn, and cuda checks all of CUDA."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(os.environ["REGARD_DEV_SOURCE_DIR"])
DEV = ROOT / "dev"


class Usage(unittest.TestCase):
    def test_names_every_verb(self):
        ran = subprocess.run(["sh", str(DEV)], capture_output=True, text=True, timeout=60)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""), ran.stderr)
        verbs = re.findall(r"^  ([a-z0-9-]+)\)", DEV.read_text(), flags=re.M)
        self.assertGreater(len(verbs), 15)
        named = re.findall(r"^  ([a-z0-9-]+(?:, [a-z0-9-]+)*)", ran.stderr, flags=re.M)
        self.assertEqual(sorted({verb for names in named for verb in names.split(", ")}), sorted(verbs))


class ContinuousIntegration(unittest.TestCase):
    def test_draws_random_cases_of_a_fresh_seed(self):
        self.assertRegex((ROOT / ".ci" / "run").read_text(), re.compile(r"^\./dev random \d+$", re.M))
        self.assertIn('seed=$(date +%s)\n    echo "seed $seed"\n', DEV.read_text())


class Cuda(unittest.TestCase):
    def test_runs_every_check_of_cuda(self):
        def preset(kind):
            return next(p for p in presets[kind] if p["name"] == "cuda")

        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        self.assertIn("regard_cuda_tests", preset("buildPresets")["targets"])
        names = re.compile(preset("testPresets")["filter"]["include"]["name"])
        gates = [f for f in (ROOT / "tests" / "checks").glob("test_*.py")
                 if re.search("^import _cuda_gates", f.read_text(), flags=re.M)]
        self.assertGreater(len(gates), 2)
        for name in ["cuda.Packed"] + [f"checks.{f.stem}" for f in gates]:
            self.assertTrue(names.search(name), name)


if __name__ == "__main__":
    unittest.main()
