"""The CUDA kernels neither spill nor pass their budgets, and check_ptxas.py notices when they do."""

import re
import unittest

import _cuda_gates  # finds scripts/
import check_ptxas

LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for 'sm_80'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {shared} bytes smem, 1272 bytes cmem[0]
"""
NAME = "_ZN6regard4cuda12kernel_entryINS_9cuda_math12ScoresKernelIfEEEEvNT_4ArgsE"
SINKS = "_ZN6regard4cuda12kernel_entryINS0_11SinksKernelIfEEEEvNT_4ArgsE"


def faults_of(kernels=("cuda_math::ScoresKernel",), more="", **numbers):
    values = {"name": NAME, "stack": 0, "spill": 0, "registers": 128, "shared": 20000, **numbers}
    found = check_ptxas.read(LOG.format(**values) + more)
    return list(check_ptxas.faults(found, dict.fromkeys(kernels, 2)))


class Planted(unittest.TestCase):
    def test_names(self):
        self.assertEqual(check_ptxas.kernel_of(NAME), "cuda_math::ScoresKernel")
        self.assertEqual(check_ptxas.kernel_of(SINKS), "cuda::SinksKernel")
        self.assertIsNone(check_ptxas.kernel_of("_Z3foov"))

    def test_faults(self):
        self.assertEqual(faults_of(), [])
        self.assertIn("129 registers, budget 128", faults_of(registers=129)[0])
        self.assertIn("bytes of shared memory", faults_of(shared=49153)[0])
        self.assertIn("4 bytes spilled", faults_of(spill=4)[0])
        self.assertEqual(faults_of(stack=16), [])
        self.assertIn("24 bytes of stack", (faults_of(stack=24) or ["none"])[0])
        self.assertIn("no budget is stated", faults_of(kernels=())[0])
        self.assertIn("no budget is stated", faults_of(kernels=(), name="_Z3foov")[0])
        two = ("cuda_math::ScoresKernel", "cuda::SinksKernel")
        self.assertIn("SinksKernel: not compiled for sm_80", faults_of(kernels=two)[0])
        older = LOG.format(name=SINKS, stack=0, spill=0, registers=8, shared=0).replace("80", "75")
        self.assertEqual([text[-9:] for text in faults_of(kernels=two, more=older)],
                         ["for sm_75", "for sm_80"])

    def test_budgets_are_the_kernels_own(self):
        """KERNELS repeats what the structs state."""
        stated = {}
        for component in ("cuda", "backends/cuda_math", "backends/cuda_efficient", "backends/cuda_flash"):
            for file in (_cuda_gates.ROOT / "src" / component).glob("*.cuh"):
                name = None
                for line in file.read_text().splitlines():
                    if line.startswith("struct ") and "Kernel" in line:
                        name = component.split("/")[-1] + "::" + line.split()[1]
                    elif name and "static constexpr int kBlocks = " in line:
                        # "condition ? 1 : 2": the fewest
                        numbers = re.findall(r"[=?:] (\d+)", line)
                        stated[name] = min(int(n) for n in numbers)
        self.assertEqual(stated, {**check_ptxas.KERNELS, **check_ptxas.WGMMA_KERNELS})


class Build(unittest.TestCase):
    def test_kernels(self):
        _cuda_gates.expect_pass(self, "check_ptxas.py", "regard_cuda", "*.cu.o.log")


if __name__ == "__main__":
    unittest.main()
