"""The kernels' product loops keep their sums in registers, and check_spills.py notices when not."""

import json
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "scripts"))
import check_spills  # noqa: E402

BUILD = pathlib.Path(os.environ.get("REGARD_DEV_BUILD_DIR", ROOT / "build/dev"))
# From the dev preset's flags to the release preset's, in their order, so that ccache serves both.
RELEASE = {"-O2": ["-O3"], "-g1": [], "-D_GLIBCXX_ASSERTIONS": ["-DNDEBUG"]}

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
        for around in ("vmovups %ymm1,0x20(%rdx)", "vmovaps %ymm1,(%rdx,%rax,4)", "call 0 <f>"):
            self.assertEqual(check_spills.product_loops(listing(extra=f"  5a:\t{around}")), [])
        self.assertEqual(check_spills.product_loops(listing().replace("jne ", "call")), [])

    def test_this_build(self):
        """The kernels of every component, as they are tested."""
        objects = sorted(path for path in BUILD.glob("src/CMakeFiles/regard.dir/**/isa_avx*.cc.o")
                         if path.parent.name != "functions")  # these multiply no matrices
        self.assertTrue(objects, f"no kernels are built in {BUILD}")
        self.assertEqual(check_spills.main(objects), 0)

    def test_release(self):
        """The tiled forward's, which FLASH and EFFICIENT share, at -O3."""
        entries = [entry for entry in json.loads((BUILD / "compile_commands.json").read_text())
                   if "/cpu/forward/isa_avx" in entry["file"]]
        self.assertTrue(entries, f"no kernels are built in {BUILD}")
        ccache = [path for path in [shutil.which("ccache")] if path]
        with tempfile.TemporaryDirectory() as folder:
            objects = []
            for entry in entries:
                words = shlex.split(entry["command"])
                objects.append(pathlib.Path(folder, f"{pathlib.Path(entry['file']).stem}.o"))
                words[words.index("-o") + 1] = str(objects[-1])
                words = [new for word in words for new in RELEASE.get(word, [word])]
                self.assertIn("-O3", words)
                subprocess.run(ccache + words, check=True, cwd=entry["directory"])
            self.assertEqual(check_spills.main(objects), 0)


if __name__ == "__main__":
    unittest.main()
