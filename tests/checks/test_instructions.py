"""A build registers the kernels of bf16 pairs exactly where their instructions were compiled."""

import os
import pathlib
import platform
import subprocess
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("REGARD_DEV_BUILD_DIR", ROOT / "build/dev"))
CLI = os.environ.get("REGARD_DEV_CLI") or BUILD / "tools/regard/regard"
KERNELS = {"forward": "flash_avx512_bf16_bf16", "backward": "flash_backward_avx512_bf16_bf16"}


def has_instruction(source, name):
    """Whether the object of a source file of src/ exists and has the instruction."""
    file = BUILD / "src/CMakeFiles/regard.dir" / (source + ".o")
    if not file.exists():
        return False
    listing = subprocess.run(["objdump", "-d", file], capture_output=True, text=True, check=True)
    return name in listing.stdout


def is_emulated():
    return "REGARD_EMULATE_AVX512:BOOL=ON" in (BUILD / "CMakeCache.txt").read_text()


@unittest.skipUnless(platform.machine() == "x86_64", "the instructions are x86-64's")
class Instructions(unittest.TestCase):
    def test_products_of_matrices(self):
        if is_emulated():
            self.skipTest("the kernels are in portable notation here")
        plan = subprocess.run([CLI, "explain", "--backend", "flash", "--json", "sq80 d32 bf16 isa=amx_bf16"],
                              capture_output=True, text=True, check=True).stdout
        compiled = has_instruction("cpu/forward/isa_amx_bf16.cc", "tdpbf16ps")
        self.assertEqual('"flash_amx_bf16_bf16"' in plan, compiled)

    def test_pairs_of_bf16(self):
        if is_emulated():
            self.skipTest("the kernels are in portable notation here")
        plan = subprocess.run(
            [CLI, "explain", "--backend", "flash", "--json", "sq80 d8 bf16 grad isa=avx512_bf16"],
            capture_output=True, text=True, check=True).stdout
        for direction, kernel in KERNELS.items():
            compiled = has_instruction(f"cpu/{direction}/isa_avx512_bf16.cc", "vdpbf16ps")
            self.assertEqual(f'"{kernel}"' in plan, compiled, direction)


if __name__ == "__main__":
    unittest.main()
