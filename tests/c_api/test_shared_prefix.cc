#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "small_call.h"

namespace regard::test {
namespace {

TEST(CSharedPrefix, ComputesWhatTheCxxCallDoes) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  const Case c =
      parse_case("b2 hq4 hkv2 sq2 skv64 d8 f32 paged page_size=16 causal diag=br lens_kv=64,40 lse")
          .value();
  const conformance::Problem problem = conformance::make_problem(c, {.dense = true});
  const AttentionRequest& r = problem.request();
  auto* const ids = static_cast<std::int32_t*>(r.page_table.data);
  for (int page = 0; page < 2; ++page) ids[4 + page] = ids[page];
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

}  // namespace
}  // namespace regard::test
