"""docs/dev/map.md is true: its paths exist, every folder of the source is on it, kernels have its names.
The paths of docs/dev/contributing.md exist, too."""

import fnmatch
import json
import re
import subprocess
import sys
import pathlib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from _markdown import CLI, ROOT

MAP = (ROOT / "docs" / "dev" / "map.md").read_text(encoding="utf-8")
TOPS = ("include", "src", "oracle", "conformance", "tests", "tools", "scripts", "python")


CONTRIBUTING = (ROOT / "docs" / "dev" / "contributing.md").read_text(encoding="utf-8")


def paths(text):
    """Quoted paths; not "tests/FOLDER", "isa_<name>.cc" or "scripts/*.py"."""
    quoted = re.findall(r"`([\w./-]+)`", text)
    return [path for path in quoted if path.split("/")[0] in TOPS and not path.endswith("FOLDER")]


class Map(unittest.TestCase):
    def test_every_path_exists(self):
        found = paths(MAP)
        self.assertGreater(len(found), 60)
        self.assertEqual([path for path in found + paths(CONTRIBUTING) if not (ROOT / path).exists()], [])

    def test_every_folder_of_the_source_is_on_the_map(self):
        folders = {file.parent.relative_to(ROOT).as_posix()
                   for top in ("src", "include", "oracle", "conformance")
                   for file in (ROOT / top).rglob("*") if file.suffix in (".cc", ".h", ".cu")}
        folders -= {"src", "src/cpu", "src/backends"}  # their folders are listed
        self.assertEqual(sorted(folders - set(paths(MAP))), [])

    def test_kernels_have_the_names_of_the_table(self):
        rows = re.findall(r"^\| `(b\d[^`]*)` \| `([^`]+)` \|", MAP, re.M)
        self.assertGreaterEqual(len(rows), 7)
        for case, kernel in rows:
            ran = subprocess.run([CLI, "explain", case, "--json"], capture_output=True, text=True,
                                 timeout=60, check=True)
            name = json.loads(ran.stdout)["plan"]["kernel"]
            with self.subTest(case):
                self.assertTrue(fnmatch.fnmatch(name, kernel), f"{name} is not {kernel}")


if __name__ == "__main__":
    unittest.main()
