"""FLASH's wgmma kernels are what check_wgmma.py requires, and the check notices where they are not."""

import unittest

import _cuda_gates  # finds scripts/
import check_wgmma

NAME = ("_ZN6regard4cuda12kernel_entryINS_10cuda_flash12OnWgmmaBlockINS2_18WgmmaForwardKernelILNS_7problem7ElementE"
        "2ELi{dims}ELNS2_8ScheduleE{schedule}E14CUtensorMap_stEEEEEEvNT_4ArgsE")
LOG = """
ptxas info    : Compiling entry function '{name}' for 'sm_90a'
    0 bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
"""


def log_faults(more="", dims=128, schedule=0, spill=0, registers=168):
    name = NAME.format(dims=dims, schedule=schedule)
    return list(check_wgmma.log_faults(LOG.format(name=name, spill=spill, registers=registers) + more))


def code_of(before=16, inside=16, boxes=6, middle="FADD R0, R0, R1"):
    """A loop with products, behind others."""
    code = ["UTMALDG.4D [UR8], [UR4]"] * boxes + ["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24"] * before
    start = 16 * len(code)
    code += ["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24"] * inside + [middle, f"@P0 BRA 0x{start:x}"]
    return [(16 * n, text) for n, text in enumerate(code)]


def code_faults(**changes):
    return list(check_wgmma.code_faults(check_wgmma.kernel_of(NAME.format(dims=128, schedule=0)), code_of(**changes)))


class Planted(unittest.TestCase):
    def test_names(self):
        kernel = check_wgmma.kernel_of(NAME.format(dims=256, schedule=2))
        self.assertEqual(str(kernel), "bf16 d256 plain")
        self.assertEqual((kernel.keys, kernel.products, kernel.copies), (80, 21, 1))

    def test_logs(self):
        self.assertEqual(log_faults(), [])
        self.assertIn("bytes spilled", log_faults(spill=4)[0])
        self.assertEqual(log_faults(schedule=3, registers=128, spill=24), [])
        self.assertIn("169 registers", log_faults(registers=169)[0])
        self.assertIn("C7510", log_faults("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
                                          "instructions are serialized due to function call\n")[0])

    def test_code(self):
        self.assertEqual(code_faults(), [])
        self.assertIn("31 HGMMA, 32 are wanted", code_faults(before=15)[0])
        self.assertIn("5 UTMALDG", code_faults(boxes=5)[0])
        self.assertIn("no loop has", code_faults(before=17, inside=15)[0])
        self.assertIn("spilled", code_faults(middle="LDL R5, [R1]")[0])

    def test_model(self):
        kernel = check_wgmma.kernel_of(NAME.format(dims=128, schedule=0))
        parts, bound, rate = check_wgmma.prediction(kernel, ["HGMMA"] * 800)
        self.assertEqual((bound, parts["tensor"], parts["exp2"]), ("tensor", 2048.0, 1024.0))
        self.assertAlmostEqual(rate, 989, delta=1)


class Build(unittest.TestCase):
    def test_kernels(self):
        _cuda_gates.expect_pass(self, "check_wgmma.py", "regard_wgmma", "wgmma_[12]*.cu.o")


if __name__ == "__main__":
    unittest.main()
