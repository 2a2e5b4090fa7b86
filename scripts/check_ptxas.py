#!/usr/bin/env python3
"""Holds the CUDA kernels to their budgets of registers, shared memory and stack, and to no spills, or to few.

usage: check_ptxas.py LOG...      what `nvcc -Xptxas -v` said, the build keeps it as <object>.log

A kernel that the table below does not know is an error, as is one that it knows and no log has, or not
for every architecture that another kernel is compiled for. Registers are what kBlocks blocks of kThreads
threads leave room for in the 65536 of a multiprocessor; shared memory is what every architecture has
without opting in; no stack frame may grow. Prints a line for each kernel; exit code 1 when one is over.
"""

import re
import sys

SHARED = 48 * 1024
REGISTERS = 65536
THREADS = 256

# Kernel -> blocks on a multiprocessor at once, as its struct states (kBlocks).
KERNELS = {
    "cuda_math::ScoresKernel": 1,
    "cuda_math::SoftmaxKernel": 4,
    "cuda_math::ProductKernel": 2,
    "cuda_math::GradScoresKernel": 1,
    "cuda_math::GradRowsKernel": 4,
    "cuda_math::SoftcapKernel": 2,
    "cuda_math::BiasKernel": 4,
    "cuda::SinksKernel": 2,
    "cuda_flash::ForwardKernel": 1,
    "cuda_flash::QueriesKernel": 1,
    "cuda_flash::KeysKernel": 1,
    "cuda_efficient::ForwardKernel": 1,
    "cuda::MergeKernel": 1,
    "cuda::PastEndKernel": 4,
    "cuda::AppendKernel": 2,
    "cuda::DeltaKernel": 1,
    "cuda_efficient::QueriesKernel": 1,
    "cuda_efficient::KeysKernel": 1,
    "cuda::BiasKernel": 1,
}

# Of builds with REGARD_WGMMA, for one architecture; check_wgmma.py reads their logs.
WGMMA_KERNELS = {"cuda_flash::WgmmaForwardKernel": 1}

# Bytes of stack: kernels that edit scores have a frame of 16 (CUDA 13.0, sm_80), this one a larger one in f64.
STACK = 16
LARGER_STACKS = {"cuda_math::GradScoresKernel": 272, "cuda_flash::ForwardKernel": 120,
                 "cuda_flash::QueriesKernel": 72, "cuda_flash::KeysKernel": 56}

# Bytes that are spilled. FLASH's are outside of the loop over full tiles, as check_sass.py sees, but in kernels with
# edits, and over codes, of 192 and 256 dims.
SPILLED = {"cuda_flash::ForwardKernel": 416, "cuda_flash::QueriesKernel": 184, "cuda_flash::KeysKernel": 108}

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
LOCAL = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SMEM = re.compile(r"(\d+) bytes smem")


def kernel_of(mangled):
    """"cuda_math::ScoresKernel" of kernel_entry's mangled name with it as the argument."""
    match = re.search(r"kernel_entryIN(?:S_(\d+)|S0_)(.*)", mangled)
    if not match:
        return None
    component, rest = "cuda", match[2]
    if match[1]:
        size = int(match[1])
        component, rest = rest[:size], rest[size:]
    size = re.match(r"\d+", rest)
    if not size:
        return None
    rest = rest[size.end():]
    return f"{component}::{rest[:int(size[0])]}"


def read(text):
    """[(kernel, mangled, architecture, registers, shared, stack and spilled bytes)] of a log."""
    found, entry, stack, spilled = [], None, 0, 0
    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry, stack, spilled = match, 0, 0
        elif match := LOCAL.search(line):
            stack, spilled = int(match[1]), int(match[2]) + int(match[3])
        elif entry and (match := USED.search(line)):
            shared = SMEM.search(line)
            found.append((kernel_of(entry[1]) or entry[1], entry[1], entry[2], int(match[1]),
                          int(shared[1]) if shared else 0, stack, spilled))
            entry = None
    return found


def faults(found, kernels=None):
    """What is over a budget or missing, as text."""
    kernels = KERNELS if kernels is None else kernels
    architectures = sorted({entry[2] for entry in found}) or ["any architecture"]
    for kernel, mangled, architecture, registers, shared, stack, spilled in found:
        name = f"{mangled} ({architecture})"
        if kernel not in kernels:
            yield f"{name}: no budget is stated for {kernel}"
            continue
        most = min(REGISTERS // (THREADS * kernels[kernel]), 255)
        if registers > most:
            yield f"{name}: {registers} registers, budget {most}"
        if shared > SHARED:
            yield f"{name}: {shared} bytes of shared memory, budget {SHARED}"
        if stack > LARGER_STACKS.get(kernel, STACK):
            yield f"{name}: {stack} bytes of stack, budget {LARGER_STACKS.get(kernel, STACK)}"
        if spilled > SPILLED.get(kernel, 0):
            yield f"{name}: {spilled} bytes spilled"
    for kernel in kernels:
        for architecture in architectures:
            if not any(entry[0] == kernel and entry[2] == architecture for entry in found):
                yield f"{kernel}: not compiled for {architecture}"


def main(logs):
    found = []
    for log in logs:
        with open(log, encoding="utf-8", errors="replace") as file:
            found += read(file.read())
    for kernel, _, architecture, registers, shared, stack, spilled in sorted(found):
        print(f"{kernel:34} {architecture:7} {registers:3} registers {shared:6} bytes shared "
              f"{stack:4} stack {spilled:4} spilled")
    wrong = list(faults(found))
    for line in wrong:
        print(line)
    print(f"{len(found)} kernels, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
