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

# What is done to the ABI, all in one copy, since a copy takes seconds to compile:
# {what: (what the report says of it, {file: (text, its replacement)...})}
CHANGES = {
    "a field is renamed": ("name of 'regard_executor::user' changed to 'regard_executor::owner'", {
        HEADER: [("* user;", "* owner;")],
        "src/c_api/handles.h": [("_.user", "_.owner"), (".user", ".owner")],
        "src/c_api/read.cc": [("executor.user", "executor.owner")]}),
    "a field is added": ("data member insertion: 'size_t extra'", {
        HEADER: [("size_t workspace_bytes;", "size_t workspace_bytes, extra;")]}),
    "fields change places": ("'const char* deny' offset changed", {
        HEADER: [("  const char* deny; ", "  const char* other; "),
                 ("  const char* prefer; ", "  const char* deny; "),
                 ("  const char* other; ", "  const char* prefer; ")]}),
    "a field has another type": ("type of 'int64_t page_size' changed", {
        HEADER: [("int64_t page_size", "uint64_t page_size")]}),
    "an enumerator is added": ("1 enumerator insertion: 'regard_scores_kind::REGARD_X'", {
        HEADER: [("SCORES_PROBS = 3", "SCORES_PROBS = 3, REGARD_X = 4")]}),
    "an enumerator has another number": (
        "'regard_device_type::REGARD_DEVICE_CUDA' from value '2' to '3'", {
        HEADER: [("REGARD_DEVICE_CUDA = 2", "REGARD_DEVICE_CUDA = 3")]}),
    "a parameter is added": ("parameter 2 of type 'int' was added", {
        HEADER: [("regard_plan_backend(const regard_plan* plan)",
                  "regard_plan_backend(const regard_plan* plan, int)")],
        PLAN: [("regard_plan_backend(const regard_plan* plan)",
                "regard_plan_backend(const regard_plan* plan, int)")]}),
    "a handle becomes another": ("parameter 1 of type 'regard_plan*' changed", {
        HEADER: [("regard_plan_destroy(regard_plan* plan)",
                  "regard_plan_destroy(regard_context* plan)")],
        PLAN: [("regard_plan_destroy(regard_plan* plan)",
                "regard_plan_destroy(regard_context* plan)")]}),
    "a function is removed": (
        "1 Removed function: [D] 'function regard_status regard_plan_explain(", {
        HEADER: [("REGARD_EXPORT regard_status regard_plan_explain(", "regard_status other(")],
        PLAN: [("regard_status regard_plan_explain(", "regard_status other(")]}),
    "a function is added": ("1 Added function: [A] 'function void regard_more()'", {
        PLAN: [("void regard_plan_destroy",
                'extern "C" REGARD_EXPORT void regard_more(void) {}\nvoid regard_plan_destroy')]}),
}


@unittest.skipUnless(shutil.which("abidw") and shutil.which("abidiff"), "no libabigail here")
class Abi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def differences_after(self, *changes):
        copy = self.folder / "copy"
        for part in ("include", "src/c_api"):
            shutil.copytree(ROOT / part, copy / part)
        for change in changes:
            for name, replacements in change.items():
                text = (copy / name).read_text()
                for old, new in replacements:
                    self.assertIn(old, text, name)
                    text = text.replace(old, new)
                (copy / name).write_text(text)
        return check_abi.differences(check_abi.DESCRIPTION, check_abi.describe(copy, self.folder))

    def test_names_no_machine(self):
        self.assertNotIn("='/", check_abi.DESCRIPTION.read_text())

    def test_is_described_and_what_handles_hold_is_no_abi(self):
        change = {"src/c_api/handles.h": [("bool is_default", "double x = 0; bool is_default")]}
        self.assertEqual(self.differences_after(change), "")

    def test_changes_are_noticed(self):
        report = " ".join(self.differences_after(*(c for _, c in CHANGES.values())).split())
        for what, (said, _) in CHANGES.items():
            with self.subTest(change=what):
                self.assertIn(said, report)


if __name__ == "__main__":
    unittest.main()
