#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "conformance/problem.h"
#include "mock_backend.h"
#include "regard/attention.h"

// What records say of combinations: packed rows with scores, and tensors that lie in two layouts.

namespace regard::test {
namespace {

using conformance::Problem;

TEST(PackedScores, AreRefusedByTheRecord) {
  Context context;
  const Selection selection =
      explain(context, case_params("b2 sq8 d8 f32 packed total_q=16 total_kv=16 scores=probs"));
  EXPECT_FALSE(selection.ok());
  EXPECT_NE(to_string(selection).find("only without packed"), std::string::npos)
      << to_string(selection);
  AttentionParams fixed = selection.params;
  Policy policy;
  for (const Refusal& refusal : selection.find({BackendId::kMath})->refusals) {
    ASSERT_TRUE(apply_fix(refusal.fix, &fixed, &policy).ok());
  }
  EXPECT_TRUE(explain(context, fixed, policy).ok());
  // The same through tensors.
  Problem problem = conformance::make_problem(
      parse_case("b2 hq1 sq8 d8 f32 packed total_q=16 total_kv=16").value());
  AttentionRequest r = problem.request();
  std::vector<float> scores(2 * 8 * 8, 7.0f);
  r.max_seqlen_q = r.max_seqlen_kv = 8;
  r.scores_out = make_view(scores.data(), {2, 1, 8, 8});
  r.options.scores_kind = ScoresKind::kProbs;
  const Status status = attention(context, r);
  EXPECT_EQ(status.code(), StatusCode::kNoBackend) << status.message();
  EXPECT_EQ(scores, std::vector<float>(2 * 8 * 8, 7.0f));
}

TEST(OneLayout, IsClaimedWhereBothCoincide) {
  BackendInfo info = generous_info("mock");
  info.forward.layouts = {false, true, false};
  Context context(described_env());
  const auto mock = std::make_shared<MockBackend>(info);
  add_backend(context, "mock", mock);
  const BackendRef ref{BackendId::kCustom, "mock"};
  const auto refusals = [&](const std::string& words) {
    return explain(context, case_params(words)).find(ref)->refusals;
  };
  EXPECT_TRUE(refusals("b2 hq1 sq8 d8 f32").empty());  // one head
  EXPECT_TRUE(refusals("b2 hq4 sq8 d8 f32 layout=bshd").empty());
  EXPECT_FALSE(refusals("b2 hq4 sq8 d8 f32").empty());
  EXPECT_EQ(refusals("b2 hq4 hkv1 sq8 d8 f32 layout_q=bshd layout_out=bshd").size(), 0u);
  // A fix that canonical params would undo is none.
  const auto undone = refusals("b2 hq4 sq1 skv8 d8 f32 layout_k=bshd layout_v=bshd");
  EXPECT_FALSE(undone.empty());
  for (const Refusal& refusal : undone) {
    EXPECT_EQ(refusal.code, RefusalCode::kLayout);
    EXPECT_EQ(refusal.fix.op, Fix::Op::kNone);
  }
}

}  // namespace
}  // namespace regard::test
