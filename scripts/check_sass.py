#!/usr/bin/env python3
"""Looks at the machine code of FLASH's main loop, and predicts from it how fast the loop can be at most.

usage: check_sass.py OBJECT...    the build's objects of src/backends/cuda_flash

For each kernel without edits, of sm_80, the block of code that computes a full tile must hold all products of the tile
without a branch, at least DENSITY of its instructions must be products, none but those of ALLOWED_SPILLS may read or
write spilled registers, and half of the loads for products must stand at least AHEAD instructions before their first
use. A tile of the backward's KeysKernel is three blocks: products, probabilities, products. Of forwards over codes,
whose scores are edited between their products, the two blocks of products must be like that. Prints a line for
each kernel, and one for both of the backward's, which counts five products of the seven that they compute. Exit code 1
when a kernel fails, 77 without cuobjdump (REGARD_CUOBJDUMP, the PATH, CUDA's folder, or build/triton, where ./dev cuda
installs it), which needs nvdisasm beside it or on the PATH.
"""

import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

ROWS = 128  # of a block
# The backward has more between its products: with f16 a third of its instructions scale gradients and sum groups.
DENSITY = {"Forward": 0.12, "Queries": 0.1, "Keys": 0.1, "Codes": 0.1, "SplitCodes": 0.1,
           # Scales of each group, of keys times scores and of values times probabilities: 430 instructions at d 128.
           "Groups": 0.07, "SplitGroups": 0.07}
AHEAD = 8
# Of a tile: its loop's bound, or an address, is read back once, for which sums of so many columns leave no register.
ALLOWED_SPILLS = {"Forward f16 d192": 1, "Queries bf16 d256": 1, "Queries f16 d256": 1, "SplitGroups f16 d192": 1,
                  "SplitGroups bf16 d192": 1}
KINDS = {"3": "Codes", "4": "SplitCodes", "5": "Groups", "6": "SplitGroups"}  # of the forward: cuda_flash::Kind

# Where cuobjdump may be that is not on the PATH.
FOLDERS = ["/usr/local/cuda/bin",
           os.path.join(os.path.dirname(__file__), "..", "build", "triton", "triton", "backends", "nvidia", "bin")]

NAME = re.compile(r"1[03](Forward|Queries|Keys)KernelILNS_7problem7ElementE(\d)ELi(\d+)E"
                  r"(?:LNS\w*_4KindE([03456])E|Lb0E)")
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
TYPES = {"2": "bf16", "3": "f16"}


class Device(NamedTuple):
    """Cycles that a warp's instruction keeps a quarter of a multiprocessor; the rates are NVIDIA's, but `product`
    of H200: mma.sync is taken to reach 0.62 of the rate of wgmma there."""
    multiprocessors: int
    gigahertz: float
    product: float  # 16 x 8 x 16
    f32: float
    integer: float


DEVICES = {"A100": Device(108, 1.41, 8.0, 2.0, 2.0), "H200": Device(132, 1.83, 6.5, 1.0, 2.0)}


class Loop(NamedTuple):
    name: str
    dims: int
    parts: list   # blocks of code
    copied: float  # bytes of a tile, a warp's share

    @property
    def code(self):
        return [text for part in self.parts for text in part]


def tool():
    """cuobjdump's path, or None."""
    named = os.environ.get("REGARD_CUOBJDUMP")
    if named:
        return named
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(FOLDERS))


def kernels(text):
    """{mangled name: [(address, instruction)]} of what cuobjdump -sass prints."""
    found, code = {}, None
    for line in text.splitlines():
        if "Function :" in line:
            code = found.setdefault(line.split()[-1], [])
        elif code is not None and (match := LINE.match(line)):
            code.append((int(match[1], 16), match[2]))
    return found


def blocks(code):
    """The instructions between branches and their targets."""
    targets = {int(match[1], 16) for _, text in code
               if (match := re.search(r"(?:BRA|BSSY|CALL)\S*.*?0x([0-9a-f]+)$", text))}
    current = []
    for address, text in code:
        if address in targets and current:
            yield current
            current = []
        current.append(text)
        if re.match(r"(@!?U?P\d+ )?(BRA|EXIT|RET|CALL|BRX|JMP)", text):
            yield current
            current = []
    yield current


def count(code, names):
    return sum(bool(re.match(r"(@!?U?P\w+ )?(" + names + r")(\.|\s|$)", text)) for text in code)


def keys_of(kernel, dims):
    """Of a tile: cuda_flash::tile_keys()."""
    return 16 if kernel in KINDS.values() and dims == 256 else 32


def row_blocks(kernel, dims):
    """Of 16 rows, of a warp."""
    if kernel in KINDS.values():
        return 1
    return 2 if dims <= (64 if kernel == "Queries" else 128) else 1


def products_of(kernel, dims, values=False):
    """Of a warp's rows and a tile, in each block of code that has products: those with keys or, over codes, those with
    `values`. With keys of u4 one more for each 16 columns gives the sums of a query's."""
    times = {"Forward": 2, "Queries": 3}.get(kernel, 1)
    ones = dims // 16 if kernel in ("Groups", "SplitGroups") and not values else 0
    return times * row_blocks(kernel, dims) * (keys_of(kernel, dims) // 8) * (dims // 16) + ones


def kernel_of(name):
    match = NAME.search(name)
    return KINDS.get(match[4], match[1])


def full_tile(name, code):
    """The Loop of a kernel; it has no parts where no block has all products."""
    kernel, dims = kernel_of(name), int(NAME.search(name)[3])
    rows = 64 if kernel == "Queries" and dims == 256 else ROWS  # all rows of the block that read a tile
    warps = 8 if kernel == "Keys" else rows // 16 // row_blocks(kernel, dims)
    copied = 2 * keys_of(kernel, dims) * dims * 2 / warps
    if kernel in KINDS.values():  # where values may be infinite, scores are multiplied once more: the worse of both
        parts = [[b for b in blocks(code) if count(b, "HMMA") == products_of(kernel, dims, values)
                  and any(".MT88" in text for text in b) == values] for values in (False, True)]
        worst = [max(part, key=lambda b: count(b, "LDL|STL")) for part in parts if part]
        return Loop(kernel, dims, worst if all(parts) else [], copied)
    whole = [b for b in blocks(code) if count(b, "HMMA") == products_of(kernel, dims)]
    if kernel != "Keys":
        return Loop(kernel, dims, [min(whole, key=len)] if whole else [], copied)
    exponents = keys_of(kernel, dims) // 2 * row_blocks(kernel, dims)
    parts = [[b for b in whole if not any(".MT88" in text for text in b)],
             [b for b in blocks(code) if count(b, "MUFU") == exponents and not count(b, "HMMA")],
             [b for b in whole if any(".MT88" in text for text in b)]]
    return Loop(kernel, dims, [min(part, key=len) for part in parts] if all(parts) else [], copied)


def distances(code):
    """Of each ldmatrix, how many instructions later its first register is read."""
    for at, text in enumerate(code):
        match = re.match(r"LDSM\S* R(\d+),", text)
        if not match:
            continue
        own = {int(match[1]) + x for x in range(4)}
        for later, other in enumerate(code[at + 1:], 1):
            if not other.startswith("HMMA"):
                continue
            _, *operands = re.findall(r"R(\d+)", other)
            read = {int(operands[0]) + x for x in range(4)} | {int(operands[1]) + x for x in range(2)}
            if own & read:
                yield later
                break


def ahead(loop):
    """distances() of all parts, sorted."""
    return sorted(far for part in loop.parts for far in distances(part))


def faults(name, loop):
    code = loop.code
    if not code:
        yield f"{name}: no block of code has all {products_of(loop.name, loop.dims)} products of a tile"
        return
    density = count(code, "HMMA") / len(code)
    if density < DENSITY[loop.name]:
        yield f"{name}: {density:.2f} of the instructions are products, {DENSITY[loop.name]} are wanted"
    spilled = count(code, "LDL|STL")
    if spilled > ALLOWED_SPILLS.get(name, 0):
        yield f"{name}: {spilled} instructions move spilled registers"
    far = ahead(loop)
    if not far or far[len(far) // 2] < AHEAD:
        middle = far[len(far) // 2] if far else 0
        yield f"{name}: half of the loads stand {middle} instructions before their use, {AHEAD} are wanted"


def cycles(loop, device):
    """{part: cycles} of a quarter of a multiprocessor for a warp's tile."""
    code = loop.code
    floats = count(code, "FFMA|FADD|FMUL|FFMA2|IMAD|CS2R")
    others = count(code, "FMNMX|FSETP|FSEL|SEL|LOP3|IADD3|ISETP|LEA|SHF|F2FP|F2F|MOV|PRMT")
    moved = loop.copied + 512 * count(code, "LDSM")
    if loop.name == "Keys":  # probabilities, and numbers of rows
        moved += 512 * count(code, "LDS|STS")
    return {"tensor": count(code, "HMMA") * device.product,
            "f32": floats * device.f32,
            "integer": others * device.integer,
            "exp2": count(code, "MUFU") * 8.0,
            "shared": moved / 128 * 4,
            "issue": float(len(code))}


def tflops(loop, device):
    """At most, and what bounds it."""
    parts = cycles(loop, device)
    bound = max(parts, key=parts.get)
    operations = count(loop.code, "HMMA") * 2.0 * 16 * 8 * 16
    rate = operations / parts[bound] * 4 * device.multiprocessors * device.gigahertz / 1000
    return rate, bound


def of_backward(queries, keys, device):
    """At most, where only five products count of the seven that both compute: three and four."""
    return 5.0 / (3.0 / tflops(queries, device)[0] + 4.0 / tflops(keys, device)[0])


def main(objects):
    cuobjdump = tool()
    if not cuobjdump:
        print("cuobjdump is not here (CUDA's toolkit, or PyPI's triton): nothing was checked")
        return 77
    wrong, seen, loops = [], 0, {}
    for path in objects:
        done = subprocess.run([cuobjdump, "-sass", "-arch", "sm_80", path], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            print(f"{cuobjdump} cannot read {path}: {done.stderr.strip() or done.stdout.strip()}")
            return 1
        for mangled, code in kernels(done.stdout).items():
            match = NAME.search(mangled)
            if not match:
                continue
            seen += 1
            kernel, dtype, dims = kernel_of(mangled), TYPES[match[2]], match[3]
            name, loop = f"{kernel} {dtype} d{dims}", full_tile(mangled, code)
            wrong += faults(name, loop)
            if not loop.code:
                continue
            loops[kernel, dtype, dims] = loop
            rates = "; ".join(f"{key} {rate:.0f} TFLOPS ({bound}, {cycles(loop, device)[bound]:.0f} cycles a tile)"
                              for key, device in DEVICES.items() for rate, bound in [tflops(loop, device)])
            far = ahead(loop)
            middle = far[len(far) // 2] if far else 0
            products = count(loop.code, "HMMA")
            # What lies between the products of codes is not part of the loop that is read here.
            bound = "" if kernel in KINDS.values() else f"; at most {rates}"
            print(f"{name:20} {len(loop.code):4} instructions {products:4} products "
                  f"({products / len(loop.code):.2f}) {middle:3} ahead{bound}")
    for (kernel, dtype, dims), keys in sorted(loops.items()):
        queries = loops.get(("Queries", dtype, dims))
        if kernel == "Keys" and queries:
            rates = "; ".join(f"{key} {of_backward(queries, keys, device):.0f} TFLOPS"
                              for key, device in DEVICES.items())
            print(f"backward {dtype} d{dims}: at most {rates}")
    for line in wrong:
        print(line)
    print(f"{seen} kernels, {len(wrong)} faults")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
