#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "tests/support/tensors.h"

// Rows before the keys of a sequence are checked before anything is written.

namespace regard {
namespace {

using conformance::Problem;

TEST(Leftpad, IsCheckedBeforeAnythingIsWritten) {
  struct Bad {
    const char* text;
    std::vector<std::int32_t> leftpad;
    const char* fragment;
  };
  const Bad bad[] = {
      {"b2 hq2 sq1 skv24 d8 f32 append lens_kv=7,20 cache_leftpad",
       {8, 0},
       "cache_leftpad[0] (8), expected 0 to 7, seqlens_kv of the sequence"},
      {"b2 hq2 sq1 skv24 d8 f32 append lens_kv=7,20 cache_leftpad",
       {7, -1},
       "cache_leftpad[1] (-1), expected 0 to 20"},
      {"b2 hq2 sq1 skv24 d8 f32 append lens_kv=7,20 cache_leftpad paged page_size=8",
       {0, 21},
       "cache_leftpad[1] (21), expected 0 to 20"},
  };
  for (const Bad& b : bad) {
    Context context;
    const Problem problem = conformance::make_problem(parse_case(b.text).value(), {.dense = true});
    const AttentionRequest& r = problem.request();
    std::copy(b.leftpad.begin(), b.leftpad.end(), static_cast<std::int32_t*>(r.cache_leftpad.data));
    const std::vector<unsigned char> out = problem.output_bytes();
    const std::vector<char> k = test::bytes_of(r.k), v = test::bytes_of(r.v);
    const Status status = attention(context, r);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(b.fragment), std::string::npos) << status.message();
    EXPECT_EQ(problem.output_bytes(), out) << b.text;
    EXPECT_EQ(test::bytes_of(r.k), k) << b.text;
    EXPECT_EQ(test::bytes_of(r.v), v) << b.text;
  }
}

// As flash_attn_with_kvcache has it: rows that are no keys have positions, too.
TEST(Leftpad, RotaryPositionsCountItsRows) {
  Context context;
  const Problem problem = conformance::make_problem(
      parse_case("b2 hq2 sq2 skv24 d8 f32 append=2 lens_kv=7,20 rotary=8 cache_leftpad").value(),
      {.dense = true});
  AttentionRequest r = problem.request();
  std::fill_n(static_cast<std::int32_t*>(r.cache_leftpad.data), 2, 5);
  r.rotary_cos.shape[0] = r.rotary_sin.shape[0] = 21;
  const std::string message = attention(context, r).message();
  EXPECT_NE(message.find("expected at least 22: sequence 1 has 20 rows before"), std::string::npos)
      << message;
  r.rotary_cos.shape[0] = r.rotary_sin.shape[0] = 22;
  EXPECT_TRUE(attention(context, r).ok());
}

TEST(Leftpad, IsRefusedByName) {
  const Problem problem = conformance::make_problem(
      parse_case("b2 hq2 sq2 skv24 d8 f32 cache_leftpad").value(), {.dense = true});
  const auto expect = [](const AttentionRequest& r, const std::string& fragment) {
    const std::string message = describe(r).status().message();
    EXPECT_NE(message.find(fragment), std::string::npos) << message;
  };
  AttentionRequest r = problem.request();
  r.seqlens_kv = TensorView{};
  expect(r, "seqlens_kv (absent) must be given with cache_leftpad");
  r = problem.request();
  std::int64_t wide[] = {0, 0};
  r.cache_leftpad = make_view(wide, Dtype::kI64, {2});
  expect(r, "dtype of cache_leftpad (i64) must be i32");
  const Problem packed = conformance::make_problem(
      parse_case("b2 hq2 sq2 skv24 d8 f32 packed").value(), {.dense = true});
  r = packed.request();
  std::int32_t numbers[] = {0, 0};
  r.cache_leftpad = r.seqlens_kv = make_view(numbers, Dtype::kI32, {2});
  expect(r, "cache_leftpad (given) must be left out with cu_seqlens_kv");
  // One view of lengths for both sides no longer names the diagonal.
  const Problem same = conformance::make_problem(
      parse_case("b2 hq2 sq24 skv24 d8 f32 cache_leftpad lens").value(), {.dense = true});
  r = same.request();
  r.seqlens_q = r.seqlens_kv;
  r.options.is_causal = true;
  expect(r, "diagonal (unnamed) must be named");
}

TEST(TreeMask, IsRefusedByName) {
  const Problem problem = conformance::make_problem(
      parse_case("b2 hq2 sq3 skv24 d8 f32 append=3 tree=3").value(), {.dense = true});
  const auto expect = [](const AttentionRequest& r, const std::string& fragment) {
    const std::string message = describe(r).status().message();
    EXPECT_NE(message.find(fragment), std::string::npos) << message;
  };
  AttentionRequest r = problem.request();
  ASSERT_TRUE(describe(r).ok());
  r.tree_mask.shape[2] = 2;
  expect(r, "tree_mask");
  r = problem.request();
  r.tree_mask.shape[1] = 2;
  expect(r, "tree_mask");
  r = problem.request();
  const std::vector<float> numbers(9);
  r.tree_mask = make_view(numbers.data(), {1, 3, 3});
  expect(r, "dtype of tree_mask (f32) must be bool or u8");
}

}  // namespace
}  // namespace regard
