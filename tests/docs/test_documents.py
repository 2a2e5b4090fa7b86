"""The documents hold: links lead somewhere, code compiles and runs, pasted output is what comes."""

import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from _markdown import BUILD, CLI, ROOT, all_blocks, anchors, cache_variable, documents, prose

CPP_MARKS = ("program", "snippet", "excerpt ")

# What a snippet may use: a Context, and a small causal problem as request and as params.
SNIPPET_HEAD = """
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "regard/attention.h"
#include "regard/score_functions.h"
"""
SNIPPET = """
static void snippet_{n}([[maybe_unused]] regard::Context& context,
                        [[maybe_unused]] const regard::AttentionParams& params,
                        [[maybe_unused]] regard::AttentionRequest& request) {{
#line {line} "{path}"
{text}
}}
"""
SNIPPET_MAIN = """
int main() {
  void (*const snippets[])(regard::Context&, const regard::AttentionParams&,
                           regard::AttentionRequest&) = {%s};
  for (const auto snippet : snippets) {
    regard::Context context;
    std::vector<float> q(2 * 4 * 8 * 16, 0.5f), k(q), v(q), out(q.size());
    regard::AttentionRequest request;
    request.q = regard::make_view(q.data(), {2, 4, 8, 16});
    request.k = regard::make_view(k.data(), {2, 4, 8, 16});
    request.v = regard::make_view(v.data(), {2, 4, 8, 16});
    request.out = regard::make_view(out.data(), {2, 4, 8, 16});
    request.options.is_causal = true;
    snippet(context, regard::describe(request).value(), request);
  }
}
"""


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("REGARD_")}


def run(command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, **kwargs)


def without_machine(text):
    """Output as far as it is the same on every machine and in every build: bytes and kernels depend on the
    CPU, and whether cuDNN is built on the toolkit."""
    text = re.sub(r"_(scalar|avx2|avx512_bf16|avx512|amx_bf16)_(?=f32|f64|bf16|f16)|\((scalar|avx\w+|amx\w+)\)", "<isa>", text)
    text = re.sub(r"\btile_q \d+", "tile_q <n>", text)
    text = re.sub(r"\b\d+(\.\d+)? (B|KiB|MiB|bytes)\b", "<size>", text)
    text = re.sub(r"\bslots \d+", "workers <n>", text)
    text = re.sub(r"-?\d\.\d{5,}e[-+]\d+", lambda m: f"{float(m[0]):.2e}", text)
    text = re.sub(r"\braise it to \d+$", "raise it to <n>", text, flags=re.M)
    text = re.sub(r"^((?:lengths|mask|packed) .*?)[\d.e+]+ (us|ms)\b", r"\1<time>", text, flags=re.M)
    text = re.sub(r"\b[\d.]+ (us|ms|s) x[\d.]+", "<time>", text)
    text = re.sub(r"^next .*$", "next <backend>", text, flags=re.M)
    text = re.sub(r"\b[\d.]+ times as long", "<n> times as long", text)
    text = re.sub(r"^cudnn +(not built|cannot run) ", "cudnn <status> ", text, flags=re.M)
    return [re.sub(r" +", " ", line).strip() for line in text.strip().splitlines()]


def cuda_libraries():
    """What a link with the static library needs besides it, where it has CUDA."""
    cudart = cache_variable("CUDA_cudart_static_LIBRARY")
    return [cudart, "-ldl", "-lrt"] if cudart else []


@functools.cache
def built_with_cuda():
    devices = run([CLI, "devices", "--json"], env=clean_environment())
    return json.loads(devices.stdout)["machine"]["built_with_cuda"]


class Links(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        for path in documents():
            for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                goal = (path.parent / file).resolve() if file else path
                with self.subTest(document=path.name, link=target):
                    self.assertTrue(goal.exists(), f"{target} does not exist")
                    if anchor:
                        self.assertIn(anchor, anchors(goal))

    def test_every_document_is_reachable_from_the_readme(self):
        readme = (ROOT / "README.md").read_text()
        for path in (ROOT / "docs").glob("*.md"):
            self.assertIn(f"docs/{path.name}", readme)
        self.assertIn("docs/dev/README.md", readme)
        maintainers = ROOT / "docs" / "dev"
        contents = (maintainers / "README.md").read_text()
        for path in maintainers.glob("**/*.md"):
            if path.name != "README.md":
                self.assertIn(f"({path.relative_to(maintainers)})", contents)

    def test_pages_for_users_link_to_no_decisions(self):
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
            self.assertNotRegex(path.read_text(), r"dev/(decisions|tuning)", path.name)

    def test_nothing_is_left_open(self):
        for path in documents():
            self.assertNotRegex(path.read_text(), r"\bTODO\b|\bFIXME\b|^@[A-Z_]+@$")


class CApi(unittest.TestCase):
    def test_the_table_has_every_function(self):
        header = (ROOT / "include/regard/regard.h").read_text()
        functions = set(re.findall(r"\b(regard_\w+)\(", header))
        self.assertGreater(len(functions), 30)
        rows = re.findall(r"^\|.*", (ROOT / "docs/c_api.md").read_text(), flags=re.M)
        named = set(re.findall(r"`(regard_\w+)(?:\(\))?`", "\n".join(rows)))
        self.assertEqual(functions - named, set())


class Code(unittest.TestCase):
    def compile_and_run(self, source, name):
        build_type = cache_variable("CMAKE_BUILD_TYPE").upper()
        flags = (cache_variable("CMAKE_CXX_FLAGS") + " " +
                 cache_variable(f"CMAKE_CXX_FLAGS_{build_type}")).split()
        libraries = [BUILD / part for part in ("conformance/libregard_conformance.a",
                                               "oracle/libregard_oracle.a", "src/libregard.a")]
        with tempfile.TemporaryDirectory() as folder:
            file, program = pathlib.Path(folder, f"{name}.cc"), pathlib.Path(folder, name)
            file.write_text(source)
            compiled = run([os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra",
                            "-Wpedantic", "-Wshadow", "-Werror", *flags, "-DREGARD_STATIC_DEFINE",
                            f"-I{ROOT}/include", f"-I{ROOT}", str(file), "-o", str(program),
                            *[str(p) for p in libraries if p.exists()], "-pthread",
                            *cuda_libraries()])
            self.assertEqual(compiled.returncode, 0, compiled.stderr)
            ran = run([str(program)], env=clean_environment())
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def compile_and_run_c(self, source):
        """As a C program does: C99, then linked with the C++ library."""
        flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Werror"]
        with tempfile.TemporaryDirectory() as folder:
            file, object_, program = (pathlib.Path(folder, f"a{end}") for end in (".c", ".o", ""))
            file.write_text(source)
            compiled = run([os.environ.get("CC", "cc"), *flags, "-DREGARD_STATIC_DEFINE",
                            f"-I{ROOT}/include", "-c", str(file), "-o", str(object_)])
            self.assertEqual(compiled.returncode, 0, compiled.stderr)
            linked = run([os.environ.get("CXX", "c++"), *cache_variable("CMAKE_CXX_FLAGS").split(),
                          str(object_), str(BUILD / "src/libregard.a"), "-o", str(program),
                          "-pthread", *cuda_libraries()])
            self.assertEqual(linked.returncode, 0, linked.stderr)
            ran = run([str(program)], env=clean_environment())
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_every_block_says_what_it_is(self):
        for block in all_blocks("cpp"):
            self.assertTrue(block.mark.startswith(CPP_MARKS),
                            f"{block}: expected a docs-test comment above it")
        for block in all_blocks("c"):
            self.assertEqual(block.mark, "program", f"{block}: expected a docs-test comment above it")

    def test_programs_run(self):
        programs = [b for b in all_blocks("cpp") if b.mark == "program"]
        self.assertGreaterEqual(len(programs), 2)
        for n, block in enumerate(programs):
            with self.subTest(block=str(block)):
                self.compile_and_run(block.text, f"program_{n}")

    def test_c_programs_run(self):
        programs = all_blocks("c")
        self.assertGreaterEqual(len(programs), 2)
        for block in programs:
            with self.subTest(block=str(block)):
                self.compile_and_run_c(block.text)

    def test_snippets_run(self):
        snippets = [b for b in all_blocks("cpp") if b.mark == "snippet"]
        self.assertGreaterEqual(len(snippets), 5)
        source = SNIPPET_HEAD
        for n, b in enumerate(snippets):
            source += SNIPPET.format(n=n, line=b.line + 1, path=b.path, text=b.text)
        names = ", ".join(f"snippet_{n}" for n in range(len(snippets)))
        self.compile_and_run(source + SNIPPET_MAIN % names, "snippets")

    def test_excerpts_stand_in_their_files(self):
        for block in all_blocks("cpp"):
            if block.mark.startswith("excerpt "):
                with self.subTest(block=str(block)):
                    self.assertIn(block.text, (ROOT / block.mark.split()[1]).read_text())


@unittest.skipUnless(CLI, "this build has no command line tool")
class Commands(unittest.TestCase):
    """Blocks ```console: a line "$ command", then its output. A mark "exit=N" names the exit code,
    "cuda=on" or "cuda=off" the build that it is of,
    "output varies" says that the output depends on the machine. With UPDATE_DOCS set the output is
    written into the document instead."""

    def run_line(self, line):
        env = clean_environment()
        words = shlex.split(line)
        while re.fullmatch(r"REGARD_\w+=.*", words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        programs = {"regard": CLI,
                    "custom_backend": str(BUILD / "examples" / "custom_backend")}
        self.assertIn(words[0], programs, f"{line}: expected one of our programs")
        if not os.path.exists(programs[words[0]]):
            self.skipTest(f"this build has no {words[0]}")
        return run([programs[words[0]], *words[1:]], env=env)

    def test_console_blocks(self):
        consoles = all_blocks("console")
        self.assertGreaterEqual(len(consoles), 2)
        for block in consoles:
            if f"cuda={'off' if built_with_cuda() else 'on'}" in block.mark:
                continue
            expected_code = int((re.search(r"exit=(\d+)", block.mark) or [0, "0"])[1])
            for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                line, _, expected = part.partition("\n")
                with self.subTest(block=str(block), command=line):
                    ran = self.run_line(line)
                    output = ran.stdout + ran.stderr
                    self.assertEqual(ran.returncode, expected_code, output)
                    if "output varies" in block.mark:
                        continue
                    if "UPDATE_DOCS" in os.environ:
                        text = block.path.read_text()
                        block.path.write_text(text.replace(part, f"{line}\n{output.rstrip()}\n"))
                        continue
                    self.assertEqual(without_machine(expected), without_machine(output))

    def test_cases_in_prose_are_understood(self):
        found = 0
        for path in documents():
            for case in re.findall(r'`regard explain "([^"]+)"`', path.read_text()):
                if "<" in case:
                    continue
                found += 1
                ran = run([CLI, "explain", case], env=clean_environment())
                self.assertIn(ran.returncode, (0, 3), f"{path.name}: {case}\n{ran.stderr}")
        self.assertGreaterEqual(found, 1)


if __name__ == "__main__":
    unittest.main()
