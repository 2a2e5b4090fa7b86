"""check_arrows.py finds every bad include that is planted here, and none in a clean tree."""

import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "scripts"))
import check_arrows  # noqa: E402

# A tree without a fault: every component is there and includes what it may.
CLEAN = {
    "include/regard/status.h": "#include <string>\n",
    "include/regard/regard.h": '#include <stdint.h>\n#include "regard/export.h"\n',
    "include/regard/export.h": "",
    "src/base/checked.h": "#include <cstdint>\n",
    "src/semantics/window.h": "#include <cstdint>\n",
    "src/platform/cpu.h": '#include "regard/status.h"\n',
    "src/core/select/select.h": '#include "regard/status.h"\n#include "base/checked.h"\n',
    "src/core/select/select.cc": '#include "core/select/select.h"\n#include "core/policy/scope.h"\n',
    "src/core/policy/scope.h": "#include <vector>\n",
    "src/core/execute/check.h": "#include <vector>\n",
    "src/core/plan/plan_cache.h": "#include <vector>\n",
    "src/core/execute/execute.cc": '#include "base/checked.h"\n',
    "src/problem/problem.h": '#include "semantics/window.h"\n',
    "src/cpu/simd/simd_avx2.h": "#include <immintrin.h>\n#include <cstddef>\n",
    "src/cpu/forward/softmax.h": '#include "cpu/simd/simd_avx2.h"\n',
    "src/cpu/backward/args.h": '#include "cpu/forward/softmax.h"\n',
    "src/cuda/tile.cuh": '#include "problem/problem.h"\n',
    "src/backends/backend_list.cc":
        '#include "backends/math/backend.h"\n#include "backends/fast/backend.h"\n',
    "src/backends/math/backend.h": '#include "core/select/select.h"\n',
    "src/backends/fast/backend.h": '#include "core/select/select.h"\n',
    "src/backends/fast/isa_avx2.cc": '#include "cpu/simd/simd_avx2.h"\n#include "tile.inl"\n',
    "src/backends/fast/isa_scalar.cc": '#include "tile.inl"\n',
    "src/backends/fast/tile.inl": '#include "semantics/window.h"\n#include "args.h"\n',
    "src/backends/fast/args.h": "#include <cstdint>\n",
    "src/backends/fast/device.cuh": "#include <cstdint>\n",
    "src/c_api/read.h": '#include "regard/regard.h"\n#include "regard/status.h"\n',
    "src/c_api/plan.cc": '#include "c_api/read.h"\n',
    "tests/unit/test_read.cc": '#include "c_api/read.h"\n',
    "src/regard.cc": '#include "core/select/select.h"\n',
    "oracle/oracle.h": '#include "regard/status.h"\n',
    "conformance/suite.h": '#include "oracle/oracle.h"\n#include "regard/status.h"\n',
    "tools/regard/main.cc": '#include "conformance/suite.h"\n#include <CLI/CLI.hpp>\n',
    "tests/unit/window_test.cc": '#include "semantics/window.h"\n#include "core/select/select.h"\n',
    "bench/select_bench.cc": '#include "regard/status.h"\n',
    "examples/hello.cc": '#include "regard/status.h"\n',
}

KERNEL = "kernel code includes only kernel headers"

# (file, include line added to it, the rule it breaks)
PLANTED = [
    ("src/core/select/select.cc", '"backends/math/backend.h"', "src/core -> src/backends"),
    ("src/core/select/select.cc", '"../../backends/math/backend.h"', "src/core -> src/backends"),
    ("src/cpu/simd/simd_avx2.h", '"backends/fast/args.h"', "src/cpu -> src/backends"),
    ("src/cpu/simd/simd_avx2.h", '"cuda/tile.cuh"', "src/cpu -> src/cuda"),
    ("src/core/select/select.h", '"core/plan/plan_cache.h"', "core/select -> core/plan"),
    ("src/core/plan/plan_cache.h", '"core/execute/check.h"', "core/plan -> core/execute"),
    ("src/cpu/simd/simd_avx2.h", '"cpu/forward/softmax.h"', "cpu/simd -> cpu/forward"),
    ("src/cpu/forward/softmax.h", '"cpu/backward/args.h"', "cpu/forward -> cpu/backward"),
    ("src/cuda/tile.cuh", '"cpu/simd/simd_avx2.h"', "src/cuda -> src/cpu"),
    ("src/cuda/tile.cuh", '"core/select/select.h"', KERNEL),
    ("src/problem/problem.h", '"cpu/simd/simd_avx2.h"', "src/problem -> src/cpu"),
    ("src/semantics/window.h", '"problem/problem.h"', "src/semantics -> src/problem"),
    ("src/base/checked.h", '"core/select/select.h"', "src/base -> src/core"),
    ("src/semantics/window.h", '"platform/cpu.h"', "src/semantics -> src/platform"),
    ("src/platform/cpu.h", '"backends/math/backend.h"', "src/platform -> src/backends"),
    ("src/backends/math/backend.h", '"backends/fast/args.h"', "backend -> another backend"),
    ("src/regard.cc", '"backends/math/backend.h"', "only backend_list.cc names a backend's files"),
    ("src/core/select/select.cc", '"tests/unit/window_test.cc"', "src -> tests"),
    ("src/core/select/select.cc", '"conformance/suite.h"', "src -> conformance"),
    ("src/core/select/select.cc", '"oracle/oracle.h"', "src -> oracle"),
    ("include/regard/status.h", '"core/select/select.h"', "include -> src"),
    ("include/regard/status.h", '"bench/select_bench.cc"', "include -> bench"),
    ("include/regard/regard.h", '"regard/status.h"', "the C ABI's header -> C++"),
    ("src/c_api/plan.cc", '"core/select/select.h"', "src/c_api -> src/core"),
    ("src/c_api/read.h", '"backends/math/backend.h"', "src/c_api -> src/backends"),
    ("src/core/select/select.cc", '"c_api/read.h"', "src/core -> src/c_api"),
    ("src/regard.cc", '"c_api/read.h"', "src -> src/c_api"),
    ("include/regard/status.h", "<cuda_runtime.h>", "include -> vendor header"),
    ("include/regard/status.h", "<immintrin.h>", "include -> vendor header"),
    ("include/regard/status.h", "<nlohmann/json.hpp>", "include -> vendor header"),
    ("include/regard/status.h", '"regard/absent.h"', "no such project file"),
    ("src/backends/fast/isa_avx2.cc", "<vector>", KERNEL),
    ("src/backends/fast/tile.inl", "<algorithm>", KERNEL),
    ("src/backends/fast/args.h", "<immintrin.h>", "intrinsics outside simd_* and isa_*"),
    ("src/backends/fast/isa_avx2.cc", '"core/select/select.h"', KERNEL),
    ("src/backends/fast/tile.inl", '"core/plan/plan_cache.h"', KERNEL),
    ("src/backends/fast/tile.inl", '"platform/cpu.h"', KERNEL),
    ("src/backends/fast/tile.inl", '"regard/status.h"', KERNEL),
    ("src/backends/fast/device.cuh", "<string>", KERNEL),
    ("src/backends/fast/isa_avx2.cc", '"isa_scalar.cc"', "isa_a -> isa_b"),
    ("src/backends/math/backend.h", "<immintrin.h>", "intrinsics outside simd_* and isa_*"),
    ("src/core/select/select.cc", "<arm_neon.h>", "intrinsics outside simd_* and isa_*"),
    ("src/backends/fast/tile.inl", "<immintrin.h>", "intrinsics outside simd_* and isa_*"),
    ("src/regard.cc", '"backends/fast/device.cuh"', "plain .cc -> .cuh"),
    ("src/core/execute/execute.cc", '"core/select/select.h"', "execute -> select"),
    ("src/core/execute/execute.cc", '"core/plan/plan_cache.h"', "execute -> select"),
    ("oracle/oracle.h", '"semantics/window.h"', "oracle -> src/semantics"),
    ("oracle/oracle.h", '"conformance/suite.h"', "oracle -> conformance"),
    ("conformance/suite.h", '"core/select/select.h"', "conformance -> src/core"),
    ("tools/regard/main.cc", '"core/select/select.h"', "tools -> src/core"),
    ("examples/hello.cc", '"base/checked.h"', "examples -> src/base"),
]


def rules_of(tree):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in tree.items():
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return {(path, rule) for path, _, rule, _ in check_arrows.findings(folder)}


class Arrows(unittest.TestCase):
    def test_reached_through_a_header(self):
        tree = dict(CLEAN)
        tree["src/backends/fast/args.h"] += "#include <vector>\n"
        kernels = ("isa_avx2.cc", "isa_scalar.cc", "tile.inl")
        expected = {(f"src/backends/fast/{name}", KERNEL) for name in kernels}
        self.assertEqual(rules_of(tree), expected)

    def test_repository(self):
        found = [f"{p}:{n}: {rule}: {text}" for p, n, rule, text in check_arrows.findings(ROOT)]
        self.assertEqual(found, [], "\n".join(found))

    def test_clean_tree(self):
        self.assertEqual(rules_of(CLEAN), set())

    def test_views_of_k_and_v(self):
        rule = "K and V are read through a KvOperand"
        reads = ("row_address(p.k, b, h, j);", "load(self.p_.v, j);", "t.problem().k.stride[2];",
                 "descale_of(p.descale_k, b, h);")
        for path in ("src/cpu/tiles.inl", "src/cpu/forward/rows.h", "src/backends/math/args.h"):
            for read in reads:
                with self.subTest(path=path, read=read):
                    self.assertEqual(rules_of({**CLEAN, path: read + "\n"}), {(path, rule)})
        for path in ("src/cpu/kv_operand.h", "src/cpu/forward/kv_operand.h", "src/cuda/rows.h"):
            self.assertEqual(rules_of({**CLEAN, path: "\n".join(reads)}), set())
        others = "g.d_k; strip.descale_v; k.stride; problem.key; params.dtype_k;\n"
        self.assertEqual(rules_of({**CLEAN, "src/cpu/tiles.inl": others}), set())

    def test_planted(self):
        for path, include, rule in PLANTED:
            with self.subTest(path=path, include=include):
                tree = dict(CLEAN)
                tree[path] += f"  #  include {include}\n"
                self.assertIn((path, rule), rules_of(tree))


if __name__ == "__main__":
    unittest.main()
