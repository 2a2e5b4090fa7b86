"""Every fault of mutations.py can be planted: its text stands once in its file."""

import collections
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "scripts"))
from mutations import MUTATIONS  # noqa: E402


class Mutations(unittest.TestCase):
    def test_texts_stand_once(self):
        for mutation in MUTATIONS:
            with self.subTest(mutation.name):
                self.assertEqual((ROOT / mutation.file).read_text().count(mutation.old), 1)
                self.assertNotEqual(mutation.old, mutation.new)

    def test_each_names_the_tests_that_notice_it(self):
        for mutation in MUTATIONS:
            with self.subTest(mutation.name):
                self.assertTrue(mutation.tests)
                for target, names in mutation.tests:
                    self.assertTrue(target.isidentifier() and names, mutation.tests)

    def test_names_are_unique(self):
        names = collections.Counter(mutation.name for mutation in MUTATIONS)
        self.assertEqual([name for name, count in names.items() if count > 1], [])


if __name__ == "__main__":
    unittest.main()
