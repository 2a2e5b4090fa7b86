"""./dev names every verb that it has in its usage, and .ci/run draws random cases."""

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


if __name__ == "__main__":
    unittest.main()
