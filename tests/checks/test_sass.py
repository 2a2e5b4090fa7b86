"""FLASH's main loop is what check_sass.py requires, and the check notices where it is not."""

import os
import pathlib
import tempfile
import unittest
import unittest.mock

import _cuda_gates  # finds scripts/
import check_sass

NAME = "_ZN6regard4cuda12kernel_entryINS_10cuda_flash13ForwardKernelILNS_7problem7ElementE2ELi64ELNS2_4KindE0E"
PRODUCTS = check_sass.products_of("Forward", 64)


KEYS_NAME = ("_ZN6regard4cuda12kernel_entryINS_10cuda_flash10KeysKernelILNS_7problem7ElementE2ELi64ELb0EEEEEvNT_4ArgsE")


CODES_NAME = NAME.replace("KindE0E", "KindE3E")


def keys_listing(middle="", exponents=32, name=KEYS_NAME, products=check_sass.products_of("Keys", 64),
                 first="NOP", between=8):
    """The same of the backward's KeysKernel: products, probabilities, products."""
    texts = []
    for load in ("LDSM.16.M88.4", "LDSM.16.MT88.4"):
        texts += [f"{load} R4, [R2]", first] + ["FADD R60, R60, R61"] * between
        texts += ["HMMA.16816.F32.BF16 R20, R4, R12, R20"] * products + ["@P0 BRA 0x10"]
        if load == "LDSM.16.M88.4":
            texts += [middle or "NOP"] + ["MUFU.EX2 R60, R61"] * exponents + ["@P0 BRA 0x10"]
    lines = ["\t\tFunction : " + name, "        /*0000*/   MOV R1, c[0x0][0x28] ;   /* 0x00 */"]
    lines += [f"        /*{16 * n:04x}*/   {text} ;   /* 0x00 */" for n, text in enumerate(texts, 1)]
    return "\n".join(lines)


def keys_faults_of(**changes):
    (name, code), = check_sass.kernels(keys_listing(**changes)).items()
    return list(check_sass.faults("kernel", check_sass.full_tile(name, code)))


def listing(middle="", between=8):
    """What cuobjdump prints of a kernel with one loop: loads, other instructions, products."""
    texts = ["LDSM.16.M88.4 R4, [R2]"] + ["FADD R60, R60, R61"] * between
    texts += ["HMMA.16816.F32.BF16 R20, R4, R12, R20"] * (PRODUCTS // 2)
    texts += [middle] if middle else []
    texts += ["HMMA.16816.F32.BF16 R20, R4, R12, R20"] * (PRODUCTS - PRODUCTS // 2) + ["@P0 BRA 0x10"]
    lines = ["\t\tFunction : " + NAME, "        /*0000*/   MOV R1, c[0x0][0x28] ;   /* 0x00 */"]
    lines += [f"        /*{16 * n:04x}*/   {text} ;   /* 0x00 */" for n, text in enumerate(texts, 1)]
    return "\n".join(lines)


def faults_of(**changes):
    (name, code), = check_sass.kernels(listing(**changes)).items()
    return list(check_sass.faults("kernel", check_sass.full_tile(name, code)))


class Planted(unittest.TestCase):
    def test_faults(self):
        self.assertEqual(faults_of(), [])
        self.assertIn("no block of code has all", faults_of(middle="@P1 BRA 0x20")[0])
        self.assertIn("spilled registers", faults_of(middle="LDL R5, [R1]")[0])
        self.assertIn("before their use", faults_of(between=2)[0])
        self.assertIn("of the instructions are products", faults_of(between=1000)[0])
        self.assertEqual(keys_faults_of(), [])
        self.assertIn("no block of code has all", keys_faults_of(exponents=31)[0])
        self.assertIn("spilled registers", keys_faults_of(middle="STL [R1], R5")[0])

    def test_codes(self):
        """Two blocks of products, whatever lies between them."""
        def faults(**changes):
            return keys_faults_of(**{"name": CODES_NAME, "products": check_sass.products_of("Codes", 64), **changes})

        self.assertEqual(faults(exponents=5, middle="STL [R1], R5"), [])
        self.assertIn("no block of code has all", faults(products=31)[0])
        self.assertIn("spilled registers", faults(first="LDL R5, [R1]")[0])
        self.assertIn("before their use", faults(between=2)[0])

    def test_groups(self):
        """Products with keys of u4 have those with ones beside them."""
        def listing_of(keys, values):
            texts = []
            for load, products in (("LDSM.16.M88.4", keys), ("LDSM.16.MT88.4", values)):
                texts += [f"{load} R4, [R2]"] + ["FADD R60, R60, R61"] * 8
                texts += ["HMMA.16816.F32.BF16 R20, R4, R12, R20"] * products + ["@P0 BRA 0x10"]
            lines = ["\t\tFunction : " + NAME.replace("KindE0E", "KindE5E")]
            lines += [f"        /*{16 * n:04x}*/   {text} ;   /* 0x00 */" for n, text in enumerate(texts, 1)]
            (name, code), = check_sass.kernels("\n".join(lines)).items()
            return list(check_sass.faults("kernel", check_sass.full_tile(name, code)))

        self.assertEqual(listing_of(20, 16), [])
        self.assertIn("no block of code has all", listing_of(16, 16)[0])
        self.assertIn("no block of code has all", listing_of(20, 20)[0])

    def test_moves(self):
        """A kernel may read what ALLOWED_SPILLS states, and no more."""
        (name, code), = check_sass.kernels(listing(middle="LDL R5, [R1]")).items()
        loop = check_sass.full_tile(name, code)
        self.assertEqual(list(check_sass.faults("Forward f16 d192", loop)), [])
        twice = loop._replace(parts=[loop.parts[0] + ["LDL R6, [R1]"]])
        self.assertIn("2 instructions move", list(check_sass.faults("Forward f16 d192", twice))[0])

    def test_model(self):
        (name, code), = check_sass.kernels(listing()).items()
        loop = check_sass.full_tile(name, code)
        rate, bound = check_sass.tflops(loop, check_sass.DEVICES["A100"])
        self.assertEqual(bound, "tensor")
        self.assertAlmostEqual(rate, 312, delta=1)
        # Seven products in place of five.
        backward = check_sass.of_backward(loop, loop, check_sass.DEVICES["A100"])
        self.assertAlmostEqual(backward, rate * 5 / 7, delta=1)


class Tool(unittest.TestCase):
    def test_of_dev_cuda(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, {"PATH": folder}), \
                unittest.mock.patch.object(check_sass, "FOLDERS", [folder + "/none", folder]):
            os.environ.pop("REGARD_CUOBJDUMP", None)
            self.assertIsNone(check_sass.tool())
            found = pathlib.Path(folder, "cuobjdump")
            found.touch(0o755)
            os.environ["PATH"] = ""
            self.assertEqual(check_sass.tool(), str(found))


class Build(unittest.TestCase):
    def test_kernels(self):
        _cuda_gates.expect_pass(self, "check_sass.py", "regard_cuda", "cuda_flash/*[ds]_*.cu.o")


if __name__ == "__main__":
    unittest.main()
