#!/usr/bin/env python3
"""Builds and runs the consumer projects of this folder against the library, each as its own user would.

usage: test_install.py WHAT --source REPOSITORY --build BUILD --shared-build BUILD
       WHAT: build_shared | find_package | find_package_shared | pkg_config | add_subdirectory | defaults
             | readme

An installed tree is moved before it is used, and none of its files may name a path of the build.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
JOBS = os.environ.get("REGARD_DEV_JOBS", str(min(2, os.cpu_count() or 1)))
NO_TOOLS = [f"-DREGARD_BUILD_{part}=OFF" for part in ("TESTS", "BENCH", "CLI", "LLM", "EXAMPLES")]


def run(*words, **more):
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True, **more)


def cmake_build(source, build, *options, targets=()):
    """Configures and builds a project without optimisation: what it computes is tested elsewhere.

    All have the same flags, so that ccache has the library of one for the next.
    """
    launcher = shutil.which("ccache")
    options = [*options, "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG", "-DCMAKE_BUILD_TYPE=Release"]
    if launcher:
        options.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}")
        options.append(f"-DCMAKE_CUDA_COMPILER_LAUNCHER={launcher}")
    if "CXX" in os.environ:
        options.append(f"-DCMAKE_CXX_COMPILER={os.environ['CXX']}")
    # Fresh: with another compiler than last time CMake would forget the options.
    run("cmake", "--fresh", "-G", "Ninja", "-S", source, "-B", build, *options)
    run("cmake", "--build", build, "-j", JOBS, *(["--target", *targets] if targets else []))


def expect_output(program):
    """Runs a consumer; its last words say that it saw what it expected."""
    print("+", program, flush=True)
    text = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    print(text, end="")
    if not text.startswith("regard ") or not text.endswith("ok\n"):
        sys.exit(f"{program} printed {text!r}, expected 'regard VERSION ... ok'")


def install_and_move(build, folder, forbidden, no_debug_info):
    """Installs a build below folder, moves the tree, and returns where it is now. Debug information names
    the sources, so libraries are read only where they have none."""
    first, prefix = folder / "first", folder / "moved/to/prefix"
    run("cmake", "--install", build, "--prefix", first)
    prefix.parent.mkdir(parents=True)
    first.rename(prefix)
    for file in prefix.rglob("*"):
        if file.is_file() and (no_debug_info or file.suffix in (".cmake", ".pc", ".h")):
            for path in (first, *forbidden):
                if str(path).encode() in file.read_bytes():
                    sys.exit(f"{file} names {path}")
    return prefix


def expect_texts_of_the_tool(prefix):
    """The manual page and the completions lie where shells and man look for them."""
    for file in ("man/man1/regard.1", "bash-completion/completions/regard",
                 "zsh/site-functions/_regard", "fish/vendor_completions.d/regard.fish"):
        if "regard" not in (prefix / "share" / file).read_text():
            sys.exit(f"share/{file} does not name regard")


def expect_defaults(source, folder):
    """Configures the repository as a newcomer does, without an option."""
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder)
    cache = (folder / "CMakeCache.txt").read_text().splitlines()
    for line in ("BUILD_SHARED_LIBS:BOOL=OFF", "CMAKE_BUILD_TYPE:STRING=Release",
                 "REGARD_BUILD_COMPANIONS:BOOL=ON", "REGARD_CUDA:BOOL=OFF",
                 "REGARD_INSTALL:BOOL=ON", "REGARD_WARNINGS_AS_ERRORS:BOOL=OFF"):
        if line not in cache:
            sys.exit(f"without an option, CMakeCache.txt lacks {line}")


def paste_readme(source, folder):
    """Does what the README says under "C++ with CMake", with its text as it stands."""
    text = (source / "README.md").read_text()
    section = text[text.index("### C++ with CMake"):]
    blocks = {language: re.search(rf"^```{language}\n(.*?)^```$", section, flags=re.M | re.S)[1]
              for language in ("cpp", "cmake", "sh")}
    (folder / "app.cc").write_text(blocks["cpp"])
    (folder / "CMakeLists.txt").write_text(blocks["cmake"])
    (folder / "regard").symlink_to(source)
    launcher = shutil.which("ccache")
    # A build type without flags of its own, in place of Release: the flags of cmake_build().
    env = {**os.environ, "CMAKE_BUILD_TYPE": "Plain", "CXXFLAGS": "-O0 -DNDEBUG"}
    if launcher:
        env["CMAKE_CXX_COMPILER_LAUNCHER"] = launcher
    run("sh", "-ec", blocks["sh"], cwd=folder, env=env)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--shared-build", type=pathlib.Path)
    given = parser.parse_args()

    if given.what == "build_shared":
        cmake_build(given.source, given.shared_build, "-DBUILD_SHARED_LIBS=ON", *NO_TOOLS)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        if given.what == "add_subdirectory":
            cmake_build(HERE / given.what, folder / "build", f"-DREGARD_SOURCE_DIR={given.source}",
                        "-DBUILD_SHARED_LIBS=ON", targets=["consumer"])
            expect_output(folder / "build/consumer")
            run("cmake", "--install", folder / "build", "--prefix", folder / "prefix")
            if (folder / "prefix").exists():
                sys.exit("regard as a subdirectory installs files")
            return
        if given.what == "defaults":
            expect_defaults(given.source, folder)
            return
        if given.what == "readme":
            paste_readme(given.source, folder)
            return
        shared = given.what == "find_package_shared"
        prefix = install_and_move(given.shared_build if shared else given.build, folder,
                                  [given.source, given.build, given.shared_build],
                                  no_debug_info=shared)
        if (prefix / "bin/regard").exists():
            expect_texts_of_the_tool(prefix)
        if given.what == "pkg_config":
            (pc,) = prefix.rglob("regard.pc")
            run(HERE / "pkg_config/build.sh", folder / "consumer",
                env={**os.environ, "PKG_CONFIG_PATH": str(pc.parent)})
            expect_output(folder / "consumer")
            expect_output(folder / "consumer_c")
            return
        cmake_build(HERE / "find_package", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
        expect_output(folder / "build/consumer")
        expect_output(folder / "build/c_consumer")
        run(folder / "build/custom_backend")
        if shared:
            (library,) = prefix.rglob("libregard.so")
            run(sys.executable, "-B", given.source / "examples/ctypes_attention.py", library)


if __name__ == "__main__":
    main()
