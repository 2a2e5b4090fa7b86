#!/usr/bin/env python3
"""Looks at what the compiler made of FLASH's wgmma kernels, and predicts how fast their loop can be at most.

usage: check_wgmma.py OBJECT...    the build's objects wgmma_128.cu.o and wgmma_256.cu.o, their .log files beside them

From ptxas's words: no warning that products wait for one another (C7508, C7510 and the like), no spills but those of
SPILLED, no more registers than the launch gives. From the machine code, where cuobjdump is (as for check_sass.py):
each kernel has the HGMMA of its products and the UTMALDG of its boxes, no more and no fewer, and a loop with all
products of a tile. Exit code 1 when a kernel fails, 77 without cuobjdump, when all that ptxas says is in order.
"""

import re
import subprocess
import sys
from typing import NamedTuple

import check_ptxas
import check_sass

NAME = re.compile(r"WgmmaForwardKernelILNS_7problem7ElementE(\d)ELi(\d+)ELNS\w*?_8ScheduleE(\d)E")
SCHEDULES = ["overlapped", "turns", "plain", "wide"]
REGISTERS = {"wide": 128}  # of a thread at the launch; others 168
# Bytes, and instructions of the loop that move them: three warpgroups leave 160 registers for sums that need 128.
SPILLED, MOVES = {"wide": 64}, {"wide": 16}
SERIALIZED = re.compile(r"\(C75\d\d\)")

MULTIPROCESSORS, GIGAHERTZ = 132, 1.83  # H200
PRODUCT = 4096.0                        # operations of wgmma, a cycle of a multiprocessor
EXP2, SHARED, ISSUE = 16.0, 128.0, 4.0  # of a cycle: results, bytes, warps' instructions


class Kernel(NamedTuple):
    dtype: str
    dims: int
    schedule: str

    @property
    def keys(self):
        return 128 if self.dims == 128 else 80

    @property
    def warpgroups(self):
        return 3 if self.schedule == "wide" else 2

    @property
    def copies(self):
        """How often the code has each product: an overlapped loop has one before it, and one behind."""
        return 2 if self.schedule in ("overlapped", "turns") else 1

    @property
    def products(self):
        """Of a tile."""
        return self.dims // 16 + self.keys // 16

    def __str__(self):
        return f"{self.dtype} d{self.dims} {self.schedule}"


def kernel_of(mangled):
    match = NAME.search(mangled)
    return Kernel(check_sass.TYPES[match[1]], int(match[2]), SCHEDULES[int(match[3])]) if match else None


def log_faults(text):
    """What is wrong by a compilation's log."""
    for line in text.splitlines():
        if SERIALIZED.search(line):
            yield line.strip()
    for _, mangled, _, registers, _, _, spilled in check_ptxas.read(text):
        kernel = kernel_of(mangled)
        if kernel is None:
            continue
        if registers > REGISTERS.get(kernel.schedule, 168):
            yield f"{kernel}: {registers} registers"
        if spilled > SPILLED.get(kernel.schedule, 0):
            yield f"{kernel}: {spilled} bytes spilled"


def code_faults(kernel, code):
    texts = [text for _, text in code]
    for name, wanted in (("HGMMA", kernel.products * kernel.copies), ("UTMALDG", 3 * kernel.dims // 64)):
        found = check_sass.count(texts, name)
        if found != wanted:
            yield f"{kernel}: {found} {name}, {wanted} are wanted"
    if not loop_of(kernel, code):
        yield f"{kernel}: no loop has the {kernel.products} products of a tile"
    elif check_sass.count(loop_of(kernel, code), "LDL|STL") > MOVES.get(kernel.schedule, 0):
        yield f"{kernel}: the loop moves spilled registers"


def loop_of(kernel, code):
    """The instructions of the shortest loop that has a tile's products; with those that hide keys."""
    found = []
    for address, text in code:
        match = re.match(r"(?:@!?U?P\d+ )?BRA.*?0x([0-9a-f]+)$", text)
        if not match or int(match[1], 16) > address:
            continue
        inside = [other for at, other in code if int(match[1], 16) <= at <= address]
        if check_sass.count(inside, "HGMMA") == kernel.products and (not found or len(inside) < len(found)):
            found = inside
    return found


def prediction(kernel, loop):
    """{part: cycles} of a multiprocessor for a tile of all warpgroups, and TFLOPS at most."""
    rows, groups = 64 * kernel.warpgroups, kernel.warpgroups
    operations = 4.0 * rows * kernel.keys * kernel.dims
    # Of a product 64 x N x 16, keys are read by N rows of 32 bytes, and queries by 64; probabilities lie in registers.
    shared = groups * (kernel.dims // 16 * (64 + kernel.keys) * 32 + kernel.keys // 16 * kernel.dims * 32)
    parts = {"tensor": operations / PRODUCT,
             "shared": (shared + 2 * kernel.keys * kernel.dims * 2) / SHARED,
             "exp2": rows * kernel.keys / EXP2,
             "issue": len(loop) * 4.0 * groups / ISSUE}
    bound = max(parts, key=parts.get)
    return parts, bound, operations / parts[bound] * MULTIPROCESSORS * GIGAHERTZ / 1000


def main(objects):
    wrong, kernels = [], 0
    for path in objects:
        with open(path + ".log", encoding="utf-8", errors="replace") as file:
            wrong += log_faults(file.read())
    cuobjdump = check_sass.tool()
    for path in objects if cuobjdump else []:
        done = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{cuobjdump} cannot read {path}: {done.stderr.strip() or done.stdout.strip()}")
            return 1
        for mangled, code in check_sass.kernels(done.stdout).items():
            kernel = kernel_of(mangled)
            if kernel is None:
                continue
            kernels += 1
            wrong += code_faults(kernel, code)
            loop = loop_of(kernel, code)
            parts, bound, rate = prediction(kernel, loop)
            cycles = ", ".join(f"{part} {number:.0f}" for part, number in parts.items())
            print(f"{str(kernel):22} {len(loop):5} instructions; cycles of a tile: {cycles}; "
                  f"at most {rate:.0f} TFLOPS ({bound})")
    for line in wrong:
        print(line)
    print(f"{kernels} kernels, {len(wrong)} faults")
    if wrong or (cuobjdump and not kernels):
        return 1
    if not cuobjdump:
        print("cuobjdump is not here: the machine code was not checked")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
