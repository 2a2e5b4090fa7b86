#!/usr/bin/env python3
"""Holds that the loops of products keep their sums in registers.

usage: check_spills.py OBJECT...      compiled isa_<isa>.cc files of x86-64

An innermost loop with at least ten fused multiply-adds (or dot products of pairs) is a product's. None
of its instructions may move a vector from or to the stack: GCC does so when a block has one register
too many, and the product then runs at a third of its rate. Loops that also select are left out: they
need more registers, and serve only tiles with NaN or infinity behind a mask. So are those that store
results or call: they go from block to block, and the product's own loop lies elsewhere. Prints the
loops it found; exit code 1 when one spills or an object has none.
"""

import re
import subprocess
import sys

INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
PRODUCT = re.compile(r"^v(fn?m(add|sub)|dpbf16)")
SELECTS = re.compile(r"^v(blendv|p?blendm|p?cmp|ptestn?m|pmov[bwdq]2m|psra)")
RESULT = re.compile(r"^%[xyz]mm\d+,(?!.*\(%r[sb]p).*\(")
JUMP = re.compile(r"^j(?!mp)")
LEAST = 10


def functions(listing):
    """The instructions [(address, mnemonic, operands)] of each function of objdump's listing."""
    body = []
    for line in listing.splitlines():
        if line.endswith(">:"):
            if body:
                yield body
            body = []
        elif match := INSTRUCTION.match(line):
            body.append((int(match[1], 16), match[2], match[3]))
    if body:
        yield body


def innermost_loops(body):
    """The instructions between a backward jump and its target that hold no other such jump."""
    index = {address: n for n, (address, _, _) in enumerate(body)}
    loops = []
    for n, (address, name, operands) in enumerate(body):
        target = re.match(r"([0-9a-f]+)\b", operands) if JUMP.match(name) else None
        begin = index.get(int(target[1], 16)) if target else None
        if begin is not None and begin <= n:
            loops.append((begin, n))
    return [body[begin:end + 1] for begin, end in loops
            if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops)]


def product_loops(listing):
    return [loop for body in functions(listing) for loop in innermost_loops(body)
            if sum(bool(PRODUCT.match(name)) for _, name, _ in loop) >= LEAST
            and not any(SELECTS.match(name) or "{%k" in rest for _, name, rest in loop)
            and not any(name == "call" or RESULT.match(rest) for _, name, rest in loop)]


def spills(loop):
    """Instructions that move a vector from or to the stack."""
    return [f"{address:x}: {name} {operands}" for address, name, operands in loop
            if re.search(r"\(%r[sb]p", operands) and re.search(r"%[xyz]mm", operands)]


def main(objects):
    failed = False
    for path in objects:
        listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True,
                                 capture_output=True, text=True).stdout
        loops = product_loops(listing)
        found = [line for loop in loops for line in spills(loop)]
        print(f"{path}: {len(loops)} loops of products, {len(found)} spills")
        failed = failed or not loops or bool(found)
        for line in found:
            print("  " + line)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
