"""DeviceGuard of CUDA builds, compiled with a runtime of its own: needs no toolkit and no device."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
STAND_IN = ROOT / "tests" / "cuda" / "stand_in"
SOURCES = [STAND_IN / "device_guard.cc", ROOT / "src" / "platform" / "cuda_memory.cc",
           ROOT / "src" / "core" / "text" / "status.cc"]


class DeviceGuard(unittest.TestCase):
    def test_binds_a_context_in_every_thread(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "device_guard"
            command = [os.environ.get("CXX", "c++"), "-std=c++20", "-pthread",
                       "-DREGARD_STATIC_DEFINE", f"-I{STAND_IN}", f"-I{ROOT / 'src'}",
                       f"-I{ROOT / 'include'}", *map(str, SOURCES), "-o", str(program)]
            built = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stderr)
            ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
            self.assertEqual(ran.returncode, 0, ran.stdout)


if __name__ == "__main__":
    unittest.main()
