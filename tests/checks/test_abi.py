"""check_abi.py notices what is changed here in a copy of the C ABI."""

import os
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "scripts"))
import check_abi  # noqa: E402

HEADER, PLAN = "include/regard/regard.h", "src/c_api/plan.cc"

# What is done to the ABI: {file: (text, its replacement)...}
CHANGES = {
    "a field is renamed": {HEADER: [("* user;", "* owner;")],
                           "src/c_api/handles.h": [("_.user", "_.owner"), (".user", ".owner")],
                           "src/c_api/read.cc": [("executor.user", "executor.owner")]},
    "a field is added": {HEADER: [("size_t workspace_bytes;", "size_t workspace_bytes, extra;")]},
    "fields change places": {HEADER: [("  const char* deny; ", "  const char* other; "),
                                      ("  const char* prefer; ", "  const char* deny; "),
                                      ("  const char* other; ", "  const char* prefer; ")]},
    "a field has another type": {HEADER: [("int64_t page_size", "uint64_t page_size")]},
    "an enumerator is added": {HEADER: [("SCORES_PROBS = 3", "SCORES_PROBS = 3, REGARD_X = 4")]},
    "an enumerator has another number": {HEADER: [("REGARD_DEVICE_CUDA = 2",
                                                   "REGARD_DEVICE_CUDA = 3")]},
    "a parameter is added": {HEADER: [("regard_plan_destroy(regard_plan* plan)",
                                       "regard_plan_destroy(regard_plan* plan, int)")],
                             PLAN: [("regard_plan_destroy(regard_plan* plan)",
                                     "regard_plan_destroy(regard_plan* plan, int)")]},
    "a handle becomes another": {HEADER: [("regard_plan_destroy(regard_plan* plan)",
                                           "regard_plan_destroy(regard_context* plan)")],
                                 PLAN: [("regard_plan_destroy(regard_plan* plan)",
                                         "regard_plan_destroy(regard_context* plan)")]},
    "a function is removed": {HEADER: [("REGARD_EXPORT void regard_plan_destroy", "void other")],
                              PLAN: [("void regard_plan_destroy", "void other")]},
    "a function is added": {PLAN: [("void regard_plan_destroy",
                                    'extern "C" REGARD_EXPORT void regard_more(void) {}\n'
                                    "void regard_plan_destroy")]},
}


@unittest.skipUnless(shutil.which("abidw") and shutil.which("abidiff"), "no libabigail here")
class Abi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def differences_after(self, changes):
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        for part in ("include", "src/c_api"):
            shutil.copytree(ROOT / part, copy / part)
        for name, replacements in changes.items():
            text = (copy / name).read_text()
            for old, new in replacements:
                self.assertIn(old, text, name)
                text = text.replace(old, new)
            (copy / name).write_text(text)
        return check_abi.differences(check_abi.DESCRIPTION, check_abi.describe(copy, self.folder))

    def test_is_described(self):
        self.assertEqual(self.differences_after({}), "")

    def test_names_no_machine(self):
        self.assertNotIn("='/", check_abi.DESCRIPTION.read_text())

    def test_what_handles_hold_is_no_abi(self):
        change = {"src/c_api/handles.h": [("bool is_default", "double x = 0; bool is_default")]}
        self.assertEqual(self.differences_after(change), "")

    def test_changes_are_noticed(self):
        for what, change in CHANGES.items():
            with self.subTest(change=what):
                self.assertNotEqual(self.differences_after(change), "")


if __name__ == "__main__":
    unittest.main()
