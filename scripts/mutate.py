#!/usr/bin/env python3
"""Plants one fault at a time in a copy of the tree and shows which test notices it.

Usage: scripts/mutate.py [--only WORD] [--list]

The faults are in scripts/mutations.py. A fault whose text is not found exactly once in its file is
refused: it would test nothing. Exit code 0: every fault was noticed; 1: one survived, was refused,
or the tests fail without any fault.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

from mutations import MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutate"
TREE = WORK / "tree"
BUILD = WORK / "build"
TEST_SECONDS = 120  # a fault may make a loop endless: that is noticed too


def run(command, **options):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **options)


def copy_tree():
    """Copies what git tracks or would track; unchanged files keep their time, so builds stay
    incremental."""
    names = run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT).stdout.splitlines()
    for name in names:
        source, target = ROOT / name, TREE / name
        if not source.is_file():
            continue
        data = source.read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    wanted = set(names)
    for path in [p for p in TREE.rglob("*") if p.is_file()]:
        if str(path.relative_to(TREE)) not in wanted:
            path.unlink()


def configure():
    command = ["cmake", "-S", str(TREE), "-B", str(BUILD), "-G", "Ninja",
               "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1", "-DREGARD_BUILD_CLI=OFF",
               "-DREGARD_BUILD_BENCH=OFF", "-DREGARD_BUILD_EXAMPLES=OFF", "-DREGARD_CUDA=OFF",
               "-DREGARD_WARNINGS_AS_ERRORS=OFF"]
    result = run(command)
    if result.returncode != 0:
        sys.exit(result.stdout + "\nmutate: cannot configure")


def build(targets):
    jobs = os.environ.get("REGARD_JOBS", str(min(2, os.cpu_count() or 1)))
    return run(["ninja", "-C", str(BUILD), "-j", jobs] + [f"regard_{t}_tests" for t in targets])


def first_failure(target, test_filter):
    """The name of the first test of a program that fails, or None."""
    program = BUILD / "tests" / f"regard_{target}_tests"
    command = [str(program), "--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter={test_filter}"]
    try:
        result = run(command, cwd=TREE, timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{target}: no end after {TEST_SECONDS} s"
    if result.returncode == 0:
        if re.search(r"\b0 tests from", result.stdout):
            sys.exit(f"mutate: the filter {test_filter} of {target} names no test")
        return None
    failed = re.search(r"\[  FAILED  \] (\S+)", result.stdout)
    return f"{target}: {failed.group(1) if failed else 'crash'}"


def plant(mutation):
    """Edits the copy; returns its old text, or None where the fault cannot be planted."""
    path = TREE / mutation.file
    text = path.read_text() if path.is_file() else ""
    if text.count(mutation.old) != 1:
        return None
    path.write_text(text.replace(mutation.old, mutation.new))
    return text


def try_mutation(mutation):
    """What noticed the fault; None when nothing did."""
    targets = [target for target, _ in mutation.tests]
    result = build(targets)
    if result.returncode != 0:
        return "the compiler" if "error:" in result.stdout else None
    for target, test_filter in mutation.tests:
        noticed = first_failure(target, test_filter)
        if noticed:
            return noticed
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name contains this word")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if arguments.only in m.name]
    if arguments.list:
        for mutation in chosen:
            print(f"{mutation.name:44} {mutation.file}")
        return 0

    start = time.monotonic()
    copy_tree()
    configure()
    result = build(sorted({target for m in chosen for target, _ in m.tests}))
    if result.returncode != 0:
        sys.exit(result.stdout[-4000:] + "\nmutate: the tree without a fault does not build")
    for target, test_filter in sorted({test for m in chosen for test in m.tests}):
        failed = first_failure(target, test_filter)
        if failed:
            sys.exit(f"mutate: without any fault, {failed} fails")

    missed = 0
    for mutation in chosen:
        old = plant(mutation)
        if old is None:
            print(f"REFUSED   {mutation.name}: its text is not once in {mutation.file}", flush=True)
            missed += 1
            continue
        noticed = try_mutation(mutation)
        (TREE / mutation.file).write_text(old)
        missed += noticed is None
        print(f"{'noticed ' if noticed else 'SURVIVED'}  {mutation.name:44} {noticed or ''}", flush=True)
    seconds = time.monotonic() - start
    print(f"{len(chosen) - missed} passed, {missed} failed")
    print(f"mutate: {len(chosen)} faults in {seconds:.0f} s")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
