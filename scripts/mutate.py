#!/usr/bin/env python3
"""Plants one fault at a time in a copy of the tree and shows which test notices it.

Usage: scripts/mutate.py [--only WORD] [--resume] [--list]

The faults are in scripts/mutations*.py. A fault whose text is not found exactly once in its file is
refused: it would test nothing. Exit code 0: every fault was noticed; 1: one survived, was refused,
or the tests fail without any fault. What is stopped leaves nothing running, and --resume goes on
from there: it leaves out what was settled since the last run without it.
"""

import argparse
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

from mutations import MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutate"
TREE = WORK / "tree"
BUILD = WORK / "build"
EMULATED = WORK / "emulated"  # a build with AVX-512's kernels in portable notation
TORCH = WORK / "torch"  # a build of the Python module, for tests of python/tests/with_torch
TORCH_PYTHON = ROOT / "build" / "venv-torch" / "bin" / "python"
SETTLED = WORK / "settled"  # the faults that were noticed and the tests that pass without one
# A fault may make a loop endless, or threads wait for ever: that is noticed too. The processor's time
# is what counts first, for on a busy machine a test that passes takes long.
TEST_SECONDS = 300
WAIT_SECONDS = 3600


def run(command, timeout=None, **options):
    """Runs a command in a session of its own, so that whatever ends the wait ends all of it."""
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True, **options)
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)  # Ninja then takes half-written files away
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def stop(number, _frame):
    sys.exit(128 + number)


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


def folder_of(mutation):
    if any(target == "torch" for target, _ in mutation.tests):
        return TORCH
    return EMULATED if mutation.emulated else BUILD


def configure(folder):
    command = ["cmake", "-S", str(TREE), "-B", str(folder), "-G", "Ninja",
               "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1", "-DREGARD_BUILD_CLI=OFF",
               "-DREGARD_BUILD_BENCH=OFF", "-DREGARD_BUILD_EXAMPLES=OFF",
               f"-DREGARD_EMULATE_AVX512={'ON' if folder == EMULATED else 'OFF'}"]
    if folder == TORCH:
        if not TORCH_PYTHON.is_file():
            sys.exit("mutate: faults that tests with PyTorch notice need build/venv-torch: run ./dev torch")
        command += ["-DREGARD_PYTHON=ON", "-DREGARD_BUILD_TESTS=OFF", "-DREGARD_BUILD_LLM=OFF",
                    f"-DPython_EXECUTABLE={ROOT / 'build' / 'venv' / 'bin' / 'python'}"]
    result = run(command)
    if result.returncode != 0:
        sys.exit(result.stdout + "\nmutate: cannot configure")


def build(folder, targets):
    jobs = os.environ.get("REGARD_DEV_JOBS", str(min(2, os.cpu_count() or 1)))
    programs = {"_core" if t == "torch" else f"regard_{t}_tests" for t in targets}
    return run(["ninja", "-C", str(folder), "-j", jobs, *sorted(programs)])


def limit_time():
    resource.setrlimit(resource.RLIMIT_CPU, (TEST_SECONDS, TEST_SECONDS + 5))


def first_failure(folder, target, test_filter):
    """The name of the first test that fails, or None: of a program, or of a file of tests with PyTorch."""
    program = folder / "tests" / f"regard_{target}_tests"
    command = [str(program), "--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter={test_filter}"]
    environment = dict(os.environ)
    if target == "torch":
        command = [str(TORCH_PYTHON), "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
                   f"python/tests/with_torch/{test_filter}"]
        environment["PYTHONPATH"] = str(folder / "python")
    too_long = f"{target}: no end after {TEST_SECONDS} s"
    try:
        result = run(command, cwd=TREE, timeout=WAIT_SECONDS, preexec_fn=limit_time, env=environment)
    except subprocess.TimeoutExpired:
        return too_long
    if result.returncode == -signal.SIGXCPU:
        return too_long
    if result.returncode == 0:
        if re.search(r"\b0 tests from", result.stdout):
            sys.exit(f"mutate: the filter {test_filter} of {target} names no test")
        return None
    failed = re.search(r"\[  FAILED  \] (\S+)|^FAILED \S+::(\S+)", result.stdout, re.MULTILINE)
    if failed and target == "torch":
        return f"{target}: {failed.group(2)}"
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
    folder = folder_of(mutation)
    targets = [target for target, _ in mutation.tests]
    result = build(folder, targets)
    if result.returncode != 0:
        return "the compiler" if "error:" in result.stdout else None
    for target, test_filter in mutation.tests:
        noticed = first_failure(folder, target, test_filter)
        if noticed:
            return noticed
    return None


def settled_before(resume):
    WORK.mkdir(parents=True, exist_ok=True)
    if resume and SETTLED.is_file():
        return set(SETTLED.read_text().splitlines())
    SETTLED.write_text("")
    return set()


def settle(line):
    with SETTLED.open("a") as file:
        print(line, file=file)


def check_without_faults(folder, tests, settled):
    result = build(folder, sorted({target for target, _ in tests}))
    if result.returncode != 0:
        sys.exit(result.stdout[-4000:] + "\nmutate: the tree without a fault does not build")
    for target, test_filter in sorted(tests):
        line = f"{folder.name} {target} {test_filter}"
        if line in settled:
            continue
        failed = first_failure(folder, target, test_filter)
        if failed:
            sys.exit(f"mutate: without any fault, {failed} fails")
        settle(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name contains this word")
    parser.add_argument("--resume", action="store_true", help="leave out what is settled already")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if arguments.only in m.name]
    if not chosen:
        sys.exit(f"mutate: no fault's name contains {arguments.only}")
    if arguments.list:
        for mutation in chosen:
            print(f"{mutation.name:44} {mutation.file}")
        return 0

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    start = time.monotonic()
    settled = settled_before(arguments.resume)
    chosen = [m for m in chosen if m.name not in settled]
    if not chosen:
        print("mutate: every fault was noticed already")
        return 0
    copy_tree()
    for folder in sorted({folder_of(m) for m in chosen}):
        configure(folder)
        tests = {test for m in chosen if folder_of(m) == folder for test in m.tests}
        check_without_faults(folder, tests, settled)
    missed = 0
    for mutation in chosen:
        noticed = None
        old = plant(mutation)
        if old is None:
            print(f"REFUSED   {mutation.name}: its text is not once in {mutation.file}", flush=True)
        else:
            noticed = try_mutation(mutation)
            (TREE / mutation.file).write_text(old)
            word = "noticed " if noticed else "SURVIVED"
            print(f"{word}  {mutation.name:44} {noticed or ''}", flush=True)
        if noticed:
            settle(mutation.name)
        else:
            missed += 1
    seconds = time.monotonic() - start
    print(f"{len(chosen) - missed} passed, {missed} failed")
    print(f"mutate: {len(chosen)} faults in {seconds:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
