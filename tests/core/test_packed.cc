#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "tests/support/backends.h"

// What cu_seqlens may hold is checked before anything is written.

namespace regard {
namespace {

using conformance::Problem;

struct Bad {
  const char* name;
  std::array<std::int32_t, 4> q, kv;
  std::int64_t max_seqlen_q;
  const char* fragment;
};

constexpr Bad kBad[] = {
    {"begin", {1, 2, 3, 4}, {0, 4, 8, 12}, 9, "cu_seqlens_q[0] (1), expected 0"},
    {"negative", {0, -2, 3, 4}, {0, 4, 8, 12}, 9, "cu_seqlens_q[1] (-2), expected 0 to 12"},
    {"descends", {0, 4, 8, 12}, {0, 8, 4, 12}, 9, "cu_seqlens_kv[2] (4), expected 8 to 12"},
    {"past_end", {0, 4, 8, 13}, {0, 4, 8, 12}, 9, "cu_seqlens_q[3] (13), expected 8 to 12"},
    {"max",
     {0, 4, 8, 12},
     {0, 4, 8, 12},
     3,
     "max_seqlen of cu_seqlens_q (3), expected at least the length of sequence 0, 4"},
};

class PackedData : public testing::TestWithParam<Bad> {};

TEST_P(PackedData, IsCheckedBeforeAnythingIsWritten) {
  std::array<std::int32_t, 4> q = GetParam().q, kv = GetParam().kv;
  for (const BackendRef& backend :
       {test::kMathRef, test::kEfficientRef, BackendRef{BackendId::kFlash, ""}}) {
    Context context;
    Problem problem = conformance::make_problem(
        parse_case("b3 hq2 sq12 d8 f32 packed total_q=12 total_kv=12 saved grad").value());
    problem.reset_outputs();
    const std::vector<unsigned char> before = problem.output_bytes();
    AttentionGradRequest r = problem.request();
    r.cu_seqlens_q = make_view(q.data(), Dtype::kI32, {4});
    r.cu_seqlens_kv = make_view(kv.data(), Dtype::kI32, {4});
    r.max_seqlen_q = GetParam().max_seqlen_q;
    Policy policy;
    policy.only = std::vector<BackendRef>{backend};
    const ScopedPolicy scope(policy);
    for (const Status& status : {attention(context, r), attention_backward(context, r)}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(GetParam().fragment), std::string::npos) << status.message();
    }
    EXPECT_EQ(problem.output_bytes(), before) << to_string(backend);
  }
}

TEST(PackedLengths, StayWithinTheirSequences) {
  std::array<std::int32_t, 3> starts{0, 2, 9}, lengths{2, 8};
  Context context;
  Problem problem = conformance::make_problem(
      parse_case("b2 hq2 sq9 d8 f32 packed total_q=9 total_kv=9 lens=kv").value());
  AttentionRequest r = problem.request();
  r.cu_seqlens_q = r.cu_seqlens_kv = make_view(starts.data(), Dtype::kI32, {3});
  r.seqlens_kv = make_view(lengths.data(), Dtype::kI32, {2});
  EXPECT_NE(attention(context, r).message().find("seqlens_kv[1] (8), expected 0 to 7"),
            std::string::npos);
  lengths[1] = 7;
  EXPECT_EQ(attention(context, r).to_string(), "ok");
}

INSTANTIATE_TEST_SUITE_P(All, PackedData, testing::ValuesIn(kBad),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace regard
