"""./dev names every verb that it has in its usage."""

import os
import re
import subprocess
import unittest
from pathlib import Path

DEV = Path(os.environ["REGARD_DEV_SOURCE_DIR"]) / "dev"


class Usage(unittest.TestCase):
    def test_names_every_verb(self):
        ran = subprocess.run(["sh", str(DEV)], capture_output=True, text=True, timeout=60)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""), ran.stderr)
        verbs = re.findall(r"^  ([a-z0-9-]+)\)", DEV.read_text(), flags=re.M)
        self.assertGreater(len(verbs), 15)
        named = re.findall(r"^  ([a-z0-9-]+(?:, [a-z0-9-]+)*)", ran.stderr, flags=re.M)
        self.assertEqual(sorted({verb for names in named for verb in names.split(", ")}), sorted(verbs))


if __name__ == "__main__":
    unittest.main()
