#!/usr/bin/env python3
"""Holds the C ABI against its description, tests/checks/regard.abi.

usage: check_abi.py [LIBRARY]   every difference; exit 1 if any, 77 without libabigail's tools
       check_abi.py --renew     writes the description anew: a change of the ABI is a choice

The functions of src/c_api are compiled with debug information; abidw describes them and the types
of include/regard/regard.h, abidiff compares. LIBRARY, a libregard.so, must export these functions
and no others of the C ABI.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DESCRIPTION = ROOT / "tests/checks/regard.abi"
HEADER = "include/regard/regard.h"
ABSENT = 77  # the exit code that ctest calls skipped

# What the header does not define is not the ABI's; its handles stay, as declarations.
SUPPRESSIONS = """[suppress_type]
  source_location_not_regexp = .*regard/regard\\.h$
  name_not_regexp = ^regard_(context|lengths|plan|shared_prefix_plan)$
  drop = true
"""


def run(*words, **more):
    return subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE, **more)


def describe(root, folder):
    """Compiles root/src/c_api and returns a file with the description of its ABI."""
    library, suppressions = folder / "libregard_c.so", folder / "suppressions.ini"
    (folder / "exports.map").write_text("{ global: regard_*; local: *; };")
    # One unit: what lies in which file is no part of the ABI, and it compiles four times faster.
    unit = "".join(f'#include "c_api/{file.name}"\n'
                   for file in sorted((root / "src/c_api").glob("*.cc")))
    run(os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-g", "-fPIC", "-shared", "-x", "c++",
        "-", f"-Wl,--version-script={folder}/exports.map", f"-I{root}/include", f"-I{root}/src",
        "-o", library, input=unit, check=True, cwd=folder)
    suppressions.write_text(SUPPRESSIONS)
    output = folder / "regard.abi"
    run("abidw", "--suppressions", suppressions, "--header-file", root / HEADER,
        "--drop-private-types", "--exported-interfaces-only", "--no-corpus-path",
        "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed", "--type-id-style", "hash",
        "--out-file", output, library, check=True)
    return output


def functions_of(description):
    return set(re.findall(r"<elf-symbol name='(\w+)'", description.read_text()))


def exports_of(library):
    names = [line.split()[-1] for line in
             run("nm", "-D", "--defined-only", library, check=True).stdout.splitlines()]
    return {name for name in names if name.startswith("regard_")}


def differences(expected, actual):
    """What abidiff says, harmless changes included; empty when nothing differs."""
    compared = run("abidiff", "--harmless", "--no-architecture", expected, actual,
                   stderr=subprocess.STDOUT)
    return "" if compared.returncode == 0 else compared.stdout or f"abidiff: {compared.returncode}"


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    if not all(shutil.which(tool) for tool in ("abidw", "abidiff")):
        print("abidw and abidiff are not installed (Debian: abigail-tools); nothing was checked")
        return ABSENT
    with tempfile.TemporaryDirectory() as folder:
        actual = describe(ROOT, pathlib.Path(folder))
        if sys.argv[1:] == ["--renew"]:
            shutil.copyfile(actual, DESCRIPTION)
            return 0
        found = differences(DESCRIPTION, actual)
    if found:
        found += "Was it meant? Then: python3 scripts/check_abi.py --renew\n"
    if len(sys.argv) == 2:
        odd = functions_of(DESCRIPTION) ^ exports_of(sys.argv[1])
        found += "".join(f"{name}: only one of the library and the description has it\n"
                         for name in sorted(odd))
    print(found or f"{len(functions_of(DESCRIPTION))} functions as described")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
