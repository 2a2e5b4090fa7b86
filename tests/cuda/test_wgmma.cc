#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "conformance/run.h"
#include "tests/cuda/host_backends.h"

// FLASH's wgmma kernels' own source on the host, held against the oracle.

namespace regard {
namespace {

using conformance::Guard;
using conformance::Outcome;
using conformance::Report;

const std::vector<cuda_test::HostBackend>& wgmma_backends() {
  static const std::vector<cuda_test::HostBackend> made = cuda_test::make_wgmma_backends();
  return made;
}

/// The case on each schedule, or on one that `round` chooses; the order of threads, and of copies
/// with it, changes from run to run, and the number of blocks that share the tasks.
void expect_passes(const std::string& text, bool by_wgmma, std::size_t schedules,
                   std::size_t round) {
  const Case c = parse_case(text).value();
  Expected<conformance::PreparedCase> prepared =
      conformance::prepare(c, round % 2 == 0 ? Guard::kUpperPage : Guard::kLowerPage);
  ASSERT_TRUE(prepared.ok()) << prepared.status().to_string();
  for (std::size_t n = 0; n < schedules; ++n) {
    const cuda_test::HostBackend& backend = wgmma_backends()[schedules == 1 ? round % 4 : n];
    SCOPED_TRACE(text + " " + to_string(backend.ref));
    cuda_test::schedule() = {};
    cuda_test::schedule().order = static_cast<cuda_test::Order>(round++ % 3);
    cuda_test::schedule().max_blocks = round % 2 == 0 ? 1 << 30 : 2;
    conformance::RunOptions options;
    options.twice = false;
    const Report report = run_prepared(*backend.context, &*prepared, backend.ref, options);
    EXPECT_EQ(report.outcome, Outcome::kPassed) << report.text;
    EXPECT_EQ(cuda_test::schedule().counts.wgmma_blocks > 0, by_wgmma);
  }
  cuda_test::schedule() = {};
}

const char* const kWgmmaCases[] = {
    "b1 hq1 sq128 skv128 d128 lse",
    "b1 hq2 hkv1 sq70 skv300 d128 causal diag=br lse",
#if !defined(__SANITIZE_THREAD__)  // which takes minutes for the others
    "b2 hq2 sq193 skv129 d128 dv120 causal diag=tl lse poison seed=2",
    "b1 hq2 hkv1 sq70 skv300 d104 dv128 window=130,7 diag=br lse poison",
    "b1 hq2 sq65 skv400 d128 layout=bshd saved",
    "b2 hq2 hkv1 sq40 skv160 d128 lens causal diag=br lse poison",
    "b1 hq2 hkv1 sq70 skv170 d256 causal diag=br lse",
    "b2 hq1 sq129 skv97 d256 dv200 lens lse poison",
#endif
};

/// Of a case in the list: each runs in a process of its own.
std::size_t place_of(const std::string& text) {
  std::size_t place = 0;
  while (kWgmmaCases[place] != text) ++place;
  return place;
}

class WgmmaCases : public testing::TestWithParam<const char*> {};

/// All schedules have the same bits, as another test says: cases of f16 take them in turn.
TEST_P(WgmmaCases, Pass) {
  const std::string text = GetParam();
  const std::size_t round = place_of(text);
  expect_passes(text + " bf16", true, 4, round);
  expect_passes(text + " f16", true, 1, round);
}

TEST(Wgmma, WhatItLacksRunsByMmaSync) {
  for (const char* const text :
       {"b1 hq1 sq64 skv64 d128 scale=-0.3 bf16 lse", "b1 hq2 hkv1 sq40 skv90 d192 f16 saved",
        "b1 hq1 sq64 skv64 d128 alibi bf16", "b1 hq2 hkv1 sq1 skv1100 d128 bf16 lse"}) {
    expect_passes(text, false, 1, 0);
  }
}

std::string wgmma_name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = std::to_string(info.index) + "_";
  for (const char* c = info.param; *c != 0; ++c) {
    name += std::isalnum(static_cast<unsigned char>(*c)) != 0 ? *c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, WgmmaCases, testing::ValuesIn(kWgmmaCases), wgmma_name_of);

}  // namespace
}  // namespace regard
