"""check_symbols.py notices what is planted here."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "scripts"))
import check_symbols  # noqa: E402

CXX = os.environ.get("CXX", "g++")


class Symbols(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def compile(self, text, *flags, name="a.o"):
        output = pathlib.Path(self.folder.name, name)
        subprocess.run([CXX, "-std=c++20", "-O0", "-x", "c++", "-", "-o", output, *flags],
                       input=text, text=True, check=True)
        return output

    def test_qualified_name(self):
        for symbol, name in [
            ("regard::f(int)", "regard::f"),
            ("void regard::a::f<std::vector<int> >(std::b)", "regard::a::f"),
            ("std::vector<regard::T, std::a<regard::T> >::~vector()", "std::vector::~vector"),
            ("vtable for regard::T", "regard::T"),
            ("regard::T::operator()(int) const", "regard::T::operator"),
            ("guard variable for regard::f()::x", "regard::f"),
            ("regard::(anonymous namespace)::f()", "regard::{anonymous}::f"),
        ]:
            self.assertEqual(check_symbols.qualified_name(symbol), name)

    def test_exports(self):
        good = "namespace regard { struct T { virtual ~T(); }; T::~T() {} int f() { return 1; } }"
        good += ' extern "C" int regard_f() { return 1; }'
        library = self.compile(good, "-shared", "-fPIC")
        self.assertEqual(check_symbols.foreign_exports(library), [])
        bad = "namespace other { int f() { return 1; } } int regarding() { return 1; }"
        bad += " template <class T> struct V { T x; V() {} }; V<int> v;"
        library = self.compile(good + bad, "-shared", "-fPIC")
        self.assertEqual(set(check_symbols.foreign_exports(library)),
                         {"V<int>::V()", "other::f()", "regarding()", "v"})

    def test_calls(self):
        text = "#include <cstdlib>\n#include <cstdio>\n"
        clean = self.compile(text + "int f() { return std::atoi(\"1\"); }", "-c", name="clean.o")
        loud = self.compile(text + 'void f() { std::fputs("x", stderr); }', "-c", name="loud.o")
        for body, name in [("std::printf(\"%d\", 1);", "printf"), ("std::exit(1);", "exit"),
                           ("std::abort();", "abort"), ('std::getenv("X");', "getenv"),
                           ('std::puts("x");', "puts")]:
            bad = self.compile(text + f"void f() {{ {body} }}", "-c")
            found = check_symbols.forbidden_calls({"src/core/a.cc": bad, "src/b.cc": clean})
            self.assertEqual(found, [f"src/core/a.cc names {name}"])
        reads = self.compile(text + 'char* f() { return std::getenv("X"); }', "-c")
        self.assertEqual(check_symbols.forbidden_calls({"src/platform/env.cc": reads}), [])
        self.assertEqual(check_symbols.forbidden_calls({"src/core/text/log.cc": loud}), [])
        found = check_symbols.forbidden_calls({"src/core/text/log.cc": loud, "src/core/a.cc": loud})
        self.assertEqual(found, ["more than one file prints: src/core/text/log.cc, src/core/a.cc"])

    def weak(self, text):
        return check_symbols.leaking_symbols({"src/isa_avx2.cc": self.compile(text, "-c")})

    def test_weak_of_its_own(self):
        template = "template <class T> T t(T x) { return x; } "
        for text in [
            f"namespace regard::k::avx2 {{ {template} int f() {{ return t(1); }} }}",
            "namespace regard { namespace simd_avx2 { struct V {}; } namespace k { "
            f"{template} void f() {{ t(simd_avx2::V()); }} }} }}",
            "static inline int h() { return 1; } namespace regard::k { int f() { return h(); } }",
            f"namespace {{ {template} }} namespace regard::k {{ int f() {{ return t(1); }} }}",
        ]:
            self.assertEqual(self.weak(text), [])

    def test_weak_of_others(self):
        for text, symbol in [
            ("inline int h() { return 1; } namespace regard::k { int f() { return h(); } }", "h()"),
            ("namespace regard { inline int h() { return 1; } namespace k::avx2 { int f() "
             "{ return h(); } } }", "regard::h()"),
            ("namespace regard::avx512 { inline int h() { return 1; } int f() { return h(); } }",
             "regard::avx512::h()"),
        ]:
            self.assertEqual(self.weak(text), [f"src/isa_avx2.cc has the weak symbol {symbol}"])
        vector = ("#include <vector>\nnamespace regard::simd_avx2 { struct V {}; "
                  "unsigned long f() { return std::vector<V>(3).size(); } }")
        self.assertTrue(any("weak symbol std::vector<" in message for message in self.weak(vector)))


if __name__ == "__main__":
    unittest.main()
