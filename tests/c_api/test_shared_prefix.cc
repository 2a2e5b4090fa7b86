#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "small_call.h"

namespace regard::test {
namespace {

/// Two sequences that share two pages of 16 keys.
conformance::Problem shared_problem() {
  const Case c =
      parse_case("b2 hq4 hkv2 sq2 skv64 d8 f32 paged page_size=16 causal diag=br lens_kv=64,40 lse")
          .value();
  conformance::Problem problem = conformance::make_problem(c, {.dense = true});
  auto* const ids = static_cast<std::int32_t*>(problem.request().page_table.data);
  for (int page = 0; page < 2; ++page) ids[4 + page] = ids[page];
  return problem;
}

TEST(CSharedPrefix, ComputesWhatTheCxxCallDoes) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  const conformance::Problem problem = shared_problem();
  const AttentionRequest& r = problem.request();
  ASSERT_TRUE(attention_shared_prefix(cxx_context, r, 32).ok());
  const std::vector<unsigned char> expected = problem.output_bytes();
  CRequest request(r);
  const auto call = [&](std::int64_t shared) {
    return regard_attention_shared_prefix(context.get(), request.get(), shared, nullptr, nullptr);
  };
  ASSERT_TRUE(attention(cxx_context, r).ok());  // other bits
  ASSERT_EQ(call(32), REGARD_STATUS_OK) << regard_last_error();
  EXPECT_EQ(problem.output_bytes(), expected);
  EXPECT_EQ(call(17), REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(regard_last_error()).find("shared_prefix_kv (17) must be a multiple"),
            std::string::npos);
  EXPECT_EQ(regard_attention_shared_prefix(nullptr, request.get(), 32, nullptr, nullptr),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(regard_attention_shared_prefix(context.get(), nullptr, 32, nullptr, nullptr),
            REGARD_STATUS_INVALID_ARGUMENT);
}

TEST(CSharedPrefix, APlanExecutesWhatTheCallComputes) {
  ContextHandle context = make_c_context();
  conformance::Problem problem = shared_problem();
  CRequest request(problem.request());
  ASSERT_EQ(regard_attention_shared_prefix(context.get(), request.get(), 32, nullptr, nullptr),
            REGARD_STATUS_OK)
      << regard_last_error();
  const std::vector<unsigned char> expected = problem.output_bytes();
  problem.reset_outputs();
  regard_shared_prefix_plan* plan = nullptr;
  const auto create = [&](std::int64_t shared) {
    return regard_shared_prefix_plan_create(context.get(), request.get(), shared, nullptr, &plan);
  };
  EXPECT_EQ(create(17), REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  EXPECT_NE(std::string(regard_last_error()).find("shared_prefix_kv (17) must be a multiple"),
            std::string::npos);
  ASSERT_EQ(create(32), REGARD_STATUS_OK) << regard_last_error();
  context.reset();  // a plan outlives its context
  std::size_t bytes = 0;
  ASSERT_EQ(regard_shared_prefix_plan_workspace_bytes(plan, &bytes), REGARD_STATUS_OK);
  ASSERT_GT(bytes, 0u);
  EXPECT_EQ(regard_execute_shared_prefix(plan, request.get(), nullptr), REGARD_STATUS_WORKSPACE);
  regard_launch launch = regard_launch_default();
  void* const memory = std::aligned_alloc(64, bytes);
  launch.workspace = memory;
  launch.workspace_bytes = bytes;
  for (int turn = 0; turn < 2; ++turn) {
    problem.reset_outputs();
    ASSERT_EQ(regard_execute_shared_prefix(plan, request.get(), &launch), REGARD_STATUS_OK)
        << regard_last_error();
    EXPECT_EQ(problem.output_bytes(), expected);
  }
  std::free(memory);
  regard_shared_prefix_plan_destroy(plan);
  regard_shared_prefix_plan_destroy(nullptr);
  EXPECT_EQ(regard_execute_shared_prefix(nullptr, request.get(), &launch),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(regard_shared_prefix_plan_workspace_bytes(nullptr, &bytes),
            REGARD_STATUS_INVALID_ARGUMENT);
}

TEST(CSharedPrefix, ExplainWritesBothSelections) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  const conformance::Problem problem = shared_problem();
  CRequest request(problem.request());
  std::size_t needed = 0;
  const auto explain = [&](std::int64_t shared, char* buffer, std::size_t capacity) {
    return regard_explain_shared_prefix(context.get(), request.get(), shared, nullptr, buffer,
                                        capacity, &needed);
  };
  ASSERT_EQ(explain(32, nullptr, 0), REGARD_STATUS_OK) << regard_last_error();
  std::string json(needed, ' ');
  ASSERT_EQ(explain(32, json.data(), json.size()), REGARD_STATUS_OK) << regard_last_error();
  EXPECT_NE(json.find("\"prefix\""), std::string::npos) << json;
  EXPECT_NE(json.find("cache_leftpad"), std::string::npos) << json;
  EXPECT_EQ(explain(17, nullptr, 0), REGARD_STATUS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace regard::test
