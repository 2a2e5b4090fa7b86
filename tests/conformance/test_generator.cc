#include <gtest/gtest.h>

#include <cstdint>

#include "conformance/generator.h"
#include "conformance/layout.h"
#include "conformance/problem.h"
#include "regard/case.h"

// The generator's cases are settled: parsing a case's line, canonicalising it or describing its
// tensors changes nothing, so that what a repro line says is what ran.

namespace regard {
namespace {

constexpr std::uint64_t kGenerated = 2000;

TEST(Generator, LinesParseBackToTheCase) {
  for (std::uint64_t n = 0; n < kGenerated; ++n) {
    const Case c = conformance::random_case(11, n);
    const Expected<Case> parsed = parse_case(to_string(c));
    ASSERT_TRUE(parsed.ok()) << to_string(c) << ": " << parsed.status().to_string();
    ASSERT_EQ(*parsed, c) << to_string(c);
  }
}

TEST(Generator, DescribeSeesTheCaseInItsTensors) {
  for (std::uint64_t n = 0; n < kGenerated; ++n) {
    const Case c = conformance::random_case(12, n);
    const conformance::Problem problem = conformance::make_problem(c);
    const Expected<AttentionParams> seen = describe(problem.request());
    ASSERT_TRUE(seen.ok()) << to_string(c) << ": " << seen.status().to_string();
    AttentionParams stated = c.params;
    if (conformance::arrange(c).packed_qkv) {  // slices of one block may lie better than stated
      for (const auto align : {&AttentionParams::align_q_log2, &AttentionParams::align_k_log2,
                               &AttentionParams::align_v_log2}) {
        ASSERT_GE((*seen).*align, stated.*align) << to_string(c);
        stated.*align = (*seen).*align;
      }
    }
    ASSERT_EQ(*seen, stated) << to_string(c) << "\nstated  " << to_json(c.params) << "\nseen    "
                             << to_json(*seen);
  }
}

}  // namespace
}  // namespace regard
