"""The CUDA driver is not looked for before a problem, or a question, is about a device."""

import platform
import unittest

from _cli import MINILM, NO_BACKEND, OK, SMALL, CliTest


@unittest.skipUnless(platform.libc_ver()[0] == "glibc", "glibc's loader says what it looks for")
class Driver(CliTest):
    def setUp(self):
        super().setUp()
        machine = self.document("devices")["machine"]
        if not machine["built_with_cuda"]:
            self.skipTest("built without CUDA")
        self.has_device = machine["sm_version"] != 0

    def looks_for_the_driver(self, *args, code=OK):
        done = self.cli(*args, code=code, env={"LD_DEBUG": "libs"})
        self.assertIn("find library=", done.stderr)
        return "find library=libcuda.so" in done.stderr

    def test_a_question_about_devices_does(self):
        self.assertTrue(self.looks_for_the_driver("devices"))
        code = OK if self.has_device else NO_BACKEND
        self.assertTrue(self.looks_for_the_driver("explain", f"{SMALL} device=cuda", code=code))

    def test_the_cpu_does_not(self):
        for line in (["explain", SMALL], ["check", SMALL], ["run", MINILM], ["env"]):
            self.assertFalse(self.looks_for_the_driver(*line), line)


if __name__ == "__main__":
    unittest.main()
