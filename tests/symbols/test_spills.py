"""The kernels' product loops keep their sums in registers, and check_spills.py notices when not."""

import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "scripts"))
import check_spills  # noqa: E402

BUILD = pathlib.Path(os.environ.get("REGARD_BUILD_DIR", ROOT / "build/dev"))
CXX = os.environ.get("CXX", "g++")
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = AVX2 + ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl",
                 "-mprefer-vector-width=512"]
UNITS = {"isa_avx2": AVX2, "isa_avx512": AVX512, "isa_avx512_bf16": AVX512 + ["-mavx512bf16"]}

LISTING = """
0000000000000000 <f>:
{spilled}
   8:	vbroadcastss (%rdx,%rax,1),%ymm3
{products}
  60:	jne    8 <f+0x8>
  62:	ret
"""


def listing(spilled="", extra=""):
    products = [f"  {16 + 4 * n:x}:\tvfmadd231ps %ymm2,%ymm3,%ymm{n}" for n in range(12)]
    return LISTING.format(spilled=spilled, products="\n".join(products + [extra]))


@unittest.skipUnless(platform.machine() == "x86_64", "the listings are x86-64's")
class Spills(unittest.TestCase):
    def test_planted(self):
        clean = check_spills.product_loops(listing())
        self.assertEqual([len(loop) for loop in clean], [14])
        self.assertEqual(check_spills.spills(clean[0]), [])
        before = "   4:\tvmovaps %ymm0,-0x20(%rbp)"  # outside of the loop
        (loop,) = check_spills.product_loops(listing(before))
        self.assertEqual(check_spills.spills(loop), [])
        (loop,) = check_spills.product_loops(listing(extra="  5a:\tvmovaps -0x20(%rbp),%ymm0"))
        self.assertEqual(len(check_spills.spills(loop)), 1)
        selects = listing(extra="  5a:\tvblendvps %ymm1,-0x20(%rbp),%ymm0,%ymm0")
        self.assertEqual(check_spills.product_loops(selects), [])
        self.assertEqual(check_spills.product_loops(listing().replace("jne ", "call")), [])

    def test_this_build(self):
        """The kernels of every room, as they are tested."""
        objects = sorted(BUILD.glob("src/CMakeFiles/regard.dir/**/isa_avx*.cc.o"))
        self.assertTrue(objects, f"no kernels are built in {BUILD}")
        self.assertEqual(check_spills.main(objects), 0)

    def test_release(self):
        """FLASH's at -O3."""
        with tempfile.TemporaryDirectory() as folder:
            for unit, flags in UNITS.items():
                output = pathlib.Path(folder, f"{unit}.o")
                subprocess.run([CXX, "-O3", "-c", "-fPIC", "-std=c++20", "-ffp-contract=off",
                                *flags, f"-I{ROOT}/src", f"-I{ROOT}/include", "-o", output,
                                f"{ROOT}/src/backends/cpu_flash/{unit}.cc"], check=True)
                done = subprocess.run([sys.executable, "-B", ROOT / "scripts/check_spills.py",
                                       output], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
