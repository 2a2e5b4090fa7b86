#!/usr/bin/env python3
"""Holds the arrows between the components of the repository, over its #include lines.

usage: check_arrows.py [ROOT]      prints "file:line: rule: what is included"; exit 1 if any
"""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".cc", ".c", ".h", ".inl", ".cuh", ".cu"}
INCLUDE_DIRS = ("src", "include", "")  # where "a/b.h" is looked for, after the file's own folder

INTRINSICS = re.compile(r"^([a-z0-9]*mmintrin|immintrin|x86intrin|x86gprintrin|arm_[a-z0-9]+)\.h$")
KERNEL_MAY_INCLUDE = {"cstddef", "cstdint"}  # and the intrinsics
C_HEADERS = {"stddef.h", "stdint.h"}  # what the C ABI's header needs
C_ABI = {"include/regard/regard.h", "include/regard/export.h", "include/regard/version.h"}

# Components that a component may include; a component is a top folder, or src/<folder>.
APART = {"python", "tools", "tests", "bench", "examples", "oracle", "conformance", "distributed"}
FORBIDDEN = {
    "src/base": {"src/semantics", "src/platform", "src/core", "src/problem", "src/cpu", "src/cuda",
                 "src/backends"},
    "src/semantics": {"src/platform", "src/core", "src/problem", "src/cpu", "src/cuda",
                      "src/backends"},
    "src/function": {"src/platform", "src/core", "src/problem", "src/cpu", "src/cuda",
                     "src/backends"},
    "src/platform": {"src/problem", "src/cpu", "src/cuda", "src/backends"},
    "src/core": {"src/backends"},
    "src/problem": {"src/platform", "src/core", "src/cpu", "src/cuda", "src/backends"},
    "src/cpu": {"src/cuda", "src/backends"},
    "src/cuda": {"src/cpu", "src/backends"},
    "src/c_api": {"src"},  # over the public headers alone
    "oracle": {"src", "python", "tools", "tests", "bench", "examples", "conformance", "distributed"},
    "conformance": {"src", "python", "tools", "tests", "bench", "examples"},
    "distributed": {"src", "python", "tools", "tests", "bench", "examples", "oracle", "conformance"},
    "tools": {"src", "python", "tests", "bench", "examples"},
    "python": {"src", "tools", "tests", "bench", "examples"},
    "examples": {"src", "python", "tools", "tests", "bench"},
}
# A call goes down this list: a folder of the core includes those above its own alone.
CORE = ("text", "describe", "lengths", "policy", "select", "plan", "execute", "measure")
# Folders of CPU kernels, and those that they may include.
CPU = {
    "simd": {"simd"},
    "threads": {"threads"},
    "functions": {"functions", "simd"},
    "forward": {"forward", "decode", "functions", "simd"},
    "decode": {"decode", "forward", "simd"},
    "backward": {"backward", "forward", "functions", "simd", "threads"},
    "rates": {"rates", "simd", "threads"},
}
# Problem::k, v and their descales, which only kv_operand.h reads: no other file computes an address
# in K or V.
KV_OPERAND = "kv_operand.h"
KV_KERNELS = ("src/cpu/", "src/backends/math/")
KV_ACCESS = re.compile(r"[\w)]\.[kv]\b|\bp_?\.descale_[kv]\b")
DECIDING = {f"src/core/{name}.h"
            for name in ("select/select", "policy/resolve_policy", "plan/plan_cache")}


def component_of(path):
    """"src/core" for src/core/select/key.cc, "src" for src/regard.cc, "tools" for tools/regard/main.cc."""
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def backend_of(path):
    """The backend that a file belongs to: "math" for src/backends/math/backend.cc, else None."""
    parts = path.split("/")
    return parts[2] if parts[:2] == ["src", "backends"] and len(parts) > 3 else None


def is_kernel(path):
    name = path.rsplit("/", 1)[-1]
    return path.startswith("src/") and (
        name.startswith(("isa_", "simd_")) or name.endswith((".inl", ".cuh")))


class Tree:
    """The sources below a root: their #include lines and the project files these name."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.includes = {}  # path -> [(line, text, is_system, project path or None)]
        tops = ("include", "src", "oracle", "conformance", "distributed", "tools", "python", "tests", "bench",
                "examples")
        for top in tops:
            for file in sorted((self.root / top).rglob("*")):
                if file.suffix in SUFFIXES and file.is_file():
                    self.includes[file.relative_to(self.root).as_posix()] = None
        for path in self.includes:
            self.includes[path] = list(self._read(path))

    def _read(self, path):
        text = (self.root / path).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if match := INCLUDE.match(line):
                system = match[1] == "<"
                yield number, match[2], system, self._resolve(path, match[2], system)

    def _resolve(self, path, text, system):
        folders = ([] if system else [path.rpartition("/")[0]]) + list(INCLUDE_DIRS)
        for folder in folders:
            parts = []
            for part in f"{folder}/{text}".split("/"):
                if part == "..":
                    parts[-1:] = []
                elif part not in ("", "."):
                    parts.append(part)
            if "/".join(parts) in self.includes:
                return "/".join(parts)
        return None


def folder_findings(path, target):
    """Rules about the folders of src/core and src/cpu."""
    (source, *_), (folder, *_) = ([*p.split("/")[2:-1], ""] for p in (path, target))
    if path.startswith("src/core/") and target.startswith("src/core/"):
        if CORE.index(folder) > CORE.index(source):
            yield f"core/{source} -> core/{folder}"
    elif path.startswith("src/cpu/") and target.startswith("src/cpu/") and source and folder:
        if folder not in CPU[source]:
            yield f"cpu/{source} -> cpu/{folder}"


def component_findings(path, text, target):
    """Rules about the components of an including and an included project file."""
    source, component = component_of(path), component_of(target)
    top = component.split("/")[0]
    if source == "include" and top != "include":
        yield f"include -> {top}"
    elif path in C_ABI and target not in C_ABI:
        yield "the C ABI's header -> C++"
    elif source.startswith("src") and top in APART:
        yield f"src -> {top}"
    elif component != source and (
            {component, top} & FORBIDDEN.get(source, set()) or
            (component == "src/c_api" and source != "tests")):
        yield f"{source} -> {component}"
    yield from folder_findings(path, target)
    backend = backend_of(target)
    if backend and source.startswith("src") and path != "src/backends/backend_list.cc":
        # absent/<name>.cc stands in for <name>/backend.cc in a build without it.
        stands_in = path == f"src/backends/absent/{backend}.cc"
        if backend_of(path) and backend_of(path) != backend and not stands_in:
            yield "backend -> another backend"
        elif not backend_of(path) and "src/backends" not in FORBIDDEN.get(source, ()):
            yield "only backend_list.cc names a backend's files"
    names = [p.rsplit("/", 1)[-1] for p in (path, target)]
    if names[0].startswith("isa_") and names[1].startswith("isa_") and (
            names[0].split(".")[0] != names[1].split(".")[0]):
        yield "isa_a -> isa_b"
    if path.startswith("src/") and names[0].endswith(".cc") and target.endswith(".cuh"):
        yield "plain .cc -> .cuh"
    if path.startswith("src/core/execute") and target in DECIDING:
        yield "execute -> select"


def system_findings(path, text):
    """Rules about an included file that is not of this project."""
    name = path.rsplit("/", 1)[-1]
    if INTRINSICS.match(text):
        if path.startswith("src/") and not name.startswith(("simd_", "isa_")):
            yield "intrinsics outside simd_* and isa_*"
        elif path.startswith("include/"):
            yield "include -> vendor header"
    elif path.startswith("include/") and ("." in text or "/" in text) and text not in C_HEADERS:
        yield "include -> vendor header"


def kernel_findings(tree, path):
    """What a kernel file reaches, through any chain of headers, that kernels may not include."""
    seen, stack = {path}, [(path, None)]
    while stack:
        file, first = stack.pop()
        for line, text, system, target in tree.includes[file]:
            origin = first or line
            if target is None:
                if text not in KERNEL_MAY_INCLUDE and not INTRINSICS.match(text):
                    yield origin, "kernel code includes only kernel headers", f"{text} (by {file})"
            elif component_of(target) in ("src/core", "src/platform"):
                yield origin, "kernel code includes only kernel headers", f"{text} (by {file})"
            elif target not in seen:
                seen.add(target)
                stack.append((target, origin))


def kv_findings(tree, path):
    """Lines of CPU kernels that read the views of K and V by themselves."""
    if not path.startswith(KV_KERNELS) or path.rsplit("/", 1)[-1] == KV_OPERAND:
        return
    text = (tree.root / path).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if match := KV_ACCESS.search(line):
            yield number, "K and V are read through a KvOperand", match[0]


def findings(root):
    """Every broken rule below root, as (path, line, rule, what is included)."""
    tree = Tree(root)
    for path, includes in tree.includes.items():
        for line, text, system, target in includes:
            if target is not None:
                found = component_findings(path, text, target)
            elif not system and path.startswith(("include/", "src/")):
                found = ["no such project file"]
            else:
                found = system_findings(path, text)
            for rule in found:
                yield path, line, rule, text
        if is_kernel(path):
            for line, rule, text in kernel_findings(tree, path):
                yield path, line, rule, text
        for line, rule, text in kv_findings(tree, path):
            yield path, line, rule, text


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = list(findings(root))
    for path, line, rule, text in found:
        print(f"{path}:{line}: {rule}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
