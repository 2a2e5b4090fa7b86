#!/usr/bin/env python3
"""Holds what the library's binaries may contain.

usage: check_symbols.py BUILD SHARED      an optimised build folder, and one at -O0 with libregard.so

  exports   libregard.so defines nothing dynamic but regard::, regard_*, their typeinfo and vtables
  calls     no object ends the process or prints; only src/platform reads the environment; the
            standard error stream is named by one file at most, the log sink
  weak      a kernel file compiled at -O0, where nothing is inlined, has no weak symbol outside its
            own namespace: such a symbol may replace the baseline's copy in the whole program
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys

NEVER = {"printf", "vprintf", "puts", "putchar", "stdout", "std::cout", "std::clog",
         "exit", "_exit", "_Exit", "quick_exit", "abort"}
ENVIRONMENT = {"getenv", "secure_getenv", "environ", "__environ", "setenv", "putenv", "unsetenv"}
# The cuDNN frontend is headers, which read its own variables and print its own warnings.
EXEMPT = {"src/backends/cudnn/graph.cc"}
STANDARD_ERROR = {"stderr", "std::cerr", "perror"}
KERNEL_FILE = re.compile(r"/isa_\w+\.cc$")
OWNED = re.compile(
    r"^(?:(?:typeinfo|typeinfo name|vtable|VTT|guard variable|construction vtable) for )?"
    r"(?:(?:non-)?virtual thunk to )?(?:regard::|regard_\w+$)")


def nm(*arguments):
    """(type letter, demangled name) of each symbol that nm prints, versions stripped."""
    lines = subprocess.run(["nm", "-C", *map(str, arguments)], check=True, text=True,
                           capture_output=True).stdout.splitlines()
    for line in lines:
        if match := re.match(r"^(?:[0-9a-f]+| +) ([A-Za-z]) (.*)$", line):
            yield match[1], match[2].split("@")[0]


def qualified_name(symbol):
    """regard::a::f of "void regard::a::f<std::b>(int)": the name without types and arguments."""
    symbol = re.sub(r"^(typeinfo|typeinfo name|vtable|VTT|guard variable) for ", "", symbol)
    symbol = symbol.replace("(anonymous namespace)", "{anonymous}")
    name, depth = "", 0
    for i, c in enumerate(symbol):
        if symbol.startswith("operator", i) and not depth:
            return name + "operator"
        if c == "(" and not depth:
            break
        depth += {"<": 1, ">": -1}.get(c, 0)
        if not depth and c != ">":
            name = "" if c == " " else name + c
    return name


def foreign_exports(library):
    return [name for letter, name in nm("-D", "--defined-only", library)
            if letter != "A" and not OWNED.match(name)]


def forbidden_calls(objects):
    """Messages about what the objects, {source path: object file}, may not name."""
    found, to_standard_error = [], []
    for source, file in objects.items():
        if source in EXEMPT:
            continue
        names = {name for _, name in nm("--undefined-only", file)}
        bad = names & NEVER
        if not source.startswith("src/platform/"):
            bad |= names & ENVIRONMENT
        found += [f"{source} names {name}" for name in sorted(bad)]
        if names & STANDARD_ERROR:
            to_standard_error.append(source)
    if len(to_standard_error) > 1:
        found.append(f"more than one file prints: {', '.join(to_standard_error)}")
    return found


def leaking_symbols(objects):
    """Messages about weak symbols of kernel objects at -O0, {source path: object file}.

    A symbol of isa_x.cc belongs to it alone when its name, or a template argument in it, lies in a
    namespace x or simd_x."""
    found = []
    for source, file in objects.items():
        isa = re.search(r"isa_(\w+)\.cc$", source)[1]
        own = re.compile(rf"\b(simd_)?{isa}::")
        for letter, name in nm("--defined-only", file):
            mine = qualified_name(name).startswith("regard::") and own.search(name)
            # A pointer to the exception handler is data, and the same in every object.
            if letter in "WVuwv" and not mine and not name.startswith("DW.ref."):
                found.append(f"{source} has the weak symbol {name}")
    return found


def object_of(entry):
    words = shlex.split(entry["command"])
    return pathlib.Path(entry["directory"], words[words.index("-o") + 1])


def entries_of(build):
    """{source path: entry} of compile_commands.json for what lies in src."""
    root = pathlib.Path(__file__).resolve().parent.parent
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"]).resolve()
        if file.is_relative_to(root / "src"):
            entries[file.relative_to(root).as_posix()] = entry
    return entries


def check(build, shared):
    """Every fault found in the objects of a build, and in a shared library and its kernels."""
    entries = entries_of(build)
    kernels = {source: entry for source, entry in entries_of(shared).items()
               if KERNEL_FILE.search(source)}
    if not entries or not kernels:
        return [f"{build} or {shared} has no objects of src"]
    found = [f"{source} is not compiled at -O0 in {shared}" for source, entry in kernels.items()
             if "-O0" not in shlex.split(entry["command"])]
    found += [f"libregard.so exports {name}" for name in foreign_exports(shared / "src/libregard.so")]
    found += forbidden_calls({source: object_of(entry) for source, entry in entries.items()})
    found += leaking_symbols({source: object_of(entry) for source, entry in kernels.items()})
    print(f"{len(entries)} objects, {len(kernels)} kernel files, {len(found)} faults")
    return found


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    found = check(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:]))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
