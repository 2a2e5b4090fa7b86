#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "tests/support/backends.h"
#include "tests/support/tensors.h"

// What page_table and cache_batch_idx may hold is checked before anything is written.

namespace regard {
namespace {

using conformance::Problem;

void expect_page_refused(const std::string& text, std::int64_t place, std::int32_t id,
                         const std::string& fragment) {
  for (const BackendRef& backend :
       {test::kMathRef, test::kEfficientRef, BackendRef{BackendId::kFlash, ""}}) {
    Context context;
    Problem problem = conformance::make_problem(parse_case(text).value(), {.dense = true});
    problem.reset_outputs();
    const std::vector<unsigned char> before = problem.output_bytes();
    const AttentionRequest& r = problem.request();
    const TensorView& ids = r.page_table.present() ? r.page_table : r.cache_batch_idx;
    static_cast<std::int32_t*>(ids.data)[place] = id;
    Policy policy;
    policy.only = std::vector<BackendRef>{backend};
    const Status status = attention(context, r, policy);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(fragment), std::string::npos) << status.message();
    EXPECT_EQ(problem.output_bytes(), before) << to_string(backend);
  }
}

constexpr const char* kTwo =
    "b2 hq2 sq2 skv24 d8 f32 paged page_size=8 num_pages=7 lens_kv=20,3 causal diag=br";

TEST(PagedData, IsCheckedBeforeAnythingIsWritten) {
  expect_page_refused(kTwo, 1, 7,
                      "page_table[0,1] (7), expected 0 to 6: rows see keys of this page");
  expect_page_refused(kTwo, 2, -1,
                      "page_table[0,2] (-1), expected 0 to 6: rows see keys of this page");
  expect_page_refused(kTwo, 4, -2, "page_table[1,1] (-2), expected -1 to 6");
  expect_page_refused(kTwo, 5, 2147483647, "page_table[1,2] (2147483647), expected -1 to 6");
  const char* const cache = "b2 hq2 sq2 skv24 d8 f32 cache_batch_idx";
  expect_page_refused(cache, 1, 4,
                      "cache_batch_idx[1] (4), expected 0 to 3, an entry of the batch of k");
  expect_page_refused(cache, 0, -1, "cache_batch_idx[0] (-1), expected 0 to 3");
}

TEST(Append, IsCheckedBeforeAnythingIsWritten) {
  struct Bad {
    const char* text;
    std::vector<std::int32_t> ids, lengths;
    const char* fragment;
  };
  const Bad bad[] = {
      {"b2 hq2 sq2 skv24 d8 f32 paged page_size=8 append=2",
       {0, 1, 2, 3, 1, 4},
       {10, 9},
       "sequences 0 and 1 append to page 1, expected one of their own each"},
      {"b2 hq2 sq2 skv24 d8 f32 paged page_size=8 append=2",
       {0, 0, 1, 3, 4, 5},
       {7, 0},
       "sequences 0 and 0 append to page 0"},
      {"b2 hq2 sq2 skv24 d8 f32 paged page_size=8 append=2",
       {0, -1, 1, 3, 4, 5},
       {7, 0},
       "page_table[0,1] (-1), expected 0 to 5: new rows are written to this page"},
      {"b2 hq2 sq2 skv24 d8 f32 paged page_size=8 append=2",
       {0, 1, 2, 3, 4, 5},
       {23, 0},
       "seqlens_kv[0] (23), expected 0 to 22"},
      {"b2 hq2 sq2 skv24 d8 f32 cache_batch_idx append=2",
       {3, 3},
       {0, 5},
       "sequences 0 and 1 append to entry 3"},
  };
  for (const Bad& b : bad) {
    for (const BackendRef& backend :
         {test::kMathRef, test::kEfficientRef, BackendRef{BackendId::kFlash, ""}}) {
      Context context;
      Problem problem = conformance::make_problem(parse_case(b.text).value(), {.dense = true});
      problem.reset_outputs();
      const AttentionRequest& r = problem.request();
      const std::vector<unsigned char> out = problem.output_bytes();
      const auto bytes = static_cast<std::size_t>(r.k.num_elements()) * sizeof(float);
      const std::vector<char> k(static_cast<char*>(r.k.data), static_cast<char*>(r.k.data) + bytes);
      const TensorView& ids = r.page_table.present() ? r.page_table : r.cache_batch_idx;
      std::copy(b.ids.begin(), b.ids.end(), static_cast<std::int32_t*>(ids.data));
      std::copy(b.lengths.begin(), b.lengths.end(), static_cast<std::int32_t*>(r.seqlens_kv.data));
      Policy policy;
      policy.only = std::vector<BackendRef>{backend};
      const Status status = attention(context, r, policy);
      EXPECT_NE(status.message().find(b.fragment), std::string::npos) << status.message();
      EXPECT_EQ(problem.output_bytes(), out) << to_string(backend);
      EXPECT_TRUE(std::equal(k.begin(), k.end(), static_cast<char*>(r.k.data))) << b.text;
    }
  }
}

std::string paged_refusal(const AttentionRequest& request) {
  Context context;
  return attention(context, request).message();
}

TEST(PagedRequest, IsRefusedByName) {
  Problem problem = conformance::make_problem(parse_case(kTwo).value(), {.dense = true});
  const AttentionRequest good = problem.request();
  std::int32_t numbers[] = {0, 1, 2};
  const auto expect = [&](const AttentionRequest& r, const char* fragment) {
    EXPECT_NE(paged_refusal(r).find(fragment), std::string::npos) << paged_refusal(r);
  };
  AttentionRequest r = good;
  r.seqlens_kv = TensorView{};
  expect(r, "seqlens_kv");
  r = good;
  r.options.page_size = 9;
  expect(r, "page_size (9) must be the rows of a page of k (8)");
  r = good;
  r.cache_batch_idx = make_view(numbers, Dtype::kI32, {2});
  expect(r, "cache_batch_idx (given) must be left out with a page_table");
  r = good;
  r.page_table = make_view(numbers, Dtype::kI32, {1, 3});
  expect(r, "page_table");
  r = good;
  r.page_table.dtype = Dtype::kF32;
  expect(r, "dtype of page_table (f32)");
  r = good;
  r.cu_seqlens_q = r.cu_seqlens_kv = make_view(numbers, Dtype::kI32, {3});
  r.max_seqlen_q = 1;
  r.q = make_view(good.q.data, Dtype::kF32, {1, 2, 2, 8});
  r.out = make_view(good.out.data, Dtype::kF32, {1, 2, 2, 8});
  expect(r, "cu_seqlens_kv (given) must be left out with a page_table");
}

TEST(Append, IsRefusedByName) {
  Problem problem = conformance::make_problem(
      parse_case("b2 hq2 sq2 skv24 d8 f32 append=2").value(), {.dense = true});
  const AttentionRequest good = problem.request();
  const auto expect = [&](const AttentionRequest& r, const char* fragment) {
    EXPECT_NE(paged_refusal(r).find(fragment), std::string::npos) << paged_refusal(r);
  };
  AttentionRequest r = good;
  r.seqlens_kv = TensorView{};
  expect(r, "seqlens_kv (absent) must be given with k_new");
  r = good;
  r.v_new = TensorView{};
  expect(r, "v_new (absent) must be given with k_new");
  r = good;
  r.k = make_view(static_cast<const float*>(good.k.data), {2, 2, 24, 8});
  expect(r, "k");
  r = good;
  r.k_new.dtype = Dtype::kBf16;
  expect(r, "dtype of k_new (bf16) must be k's, f32");
  r = good;
  r.k_new = test::slice(good.k, 2, 0, 2);
  expect(r, "must not overlap");
  r = good;
  r.k_new.shape[2] = 1;
  expect(r, "v_new");
  EXPECT_NE(parse_case("sq1 skv4 d8 append=5").status().message().find("append (5) must be 1..skv"),
            std::string::npos);
}

TEST(PagedCase, IsAsWide) {
  const Case c = parse_case("b2 sq1 skv64 d8 paged").value();
  EXPECT_EQ(c.params.page_size, 16);
  EXPECT_EQ(c.params.num_pages, 8);
  EXPECT_TRUE(c.params.features.has(Feature::kSeqlensKv));
  EXPECT_NE(parse_case("b2 sq1 skv65 d8 paged")
                .status()
                .message()
                .find("page_size (16) must be at least 1 and divide seqlen_kv (65)"),
            std::string::npos);
}

/// What the tables of angles and positions may hold is checked before anything is written.
TEST(Rotary, DataIsCheckedBeforeAnythingIsWritten) {
  struct Bad {
    const char* text;
    std::int64_t rows;      // of the tables
    std::int32_t position;  // of the last query, where positions are given
    const char* fragment;
  };
  const Bad bad[] = {
      {"b2 hq2 sq2 skv24 d8 f32 append=2 lens_kv=7,20 rotary=8", 21, 0,
       "positions of rotary_cos (21), expected at least 22: sequence 1 has 20 rows before"},
      {"b2 hq2 sq4 skv24 d8 f32 append=2 lens_kv=7,20 rotary=8 causal diag=br", 23, 0,
       "positions of rotary_cos (23), expected at least 24: sequence 1"},
      {"b2 hq2 sq2 skv24 d8 f32 rotary=4 positions", 9, 9,
       "positions[1,1] (9), expected 0 to 8, the rows of rotary_cos"},
      {"b2 hq2 sq2 skv24 d8 f32 append=2 rotary=4 positions", 9, -1,
       "positions[1,1] (-1), expected 0 to 8"},
  };
  for (const Bad& b : bad) {
    Context context;
    Problem problem = conformance::make_problem(parse_case(b.text).value(), {.dense = true});
    problem.reset_outputs();
    AttentionRequest r = problem.request();
    const std::vector<unsigned char> out = problem.output_bytes();
    const auto bytes = static_cast<std::size_t>(r.k.num_elements()) * sizeof(float);
    const std::vector<char> k(static_cast<char*>(r.k.data), static_cast<char*>(r.k.data) + bytes);
    r.rotary_cos.shape[0] = r.rotary_sin.shape[0] = b.rows;
    if (r.positions.present()) {
      auto* const positions = static_cast<std::int32_t*>(r.positions.data);
      std::fill(positions, positions + 4, 0);
      positions[3] = b.position;
    }
    const Status status = attention(context, r);
    EXPECT_NE(status.message().find(b.fragment), std::string::npos) << status.message();
    EXPECT_EQ(problem.output_bytes(), out) << b.text;
    EXPECT_TRUE(std::equal(k.begin(), k.end(), static_cast<char*>(r.k.data))) << b.text;
  }
}

TEST(Rotary, EnoughRowsAreAccepted) {
  Context context;
  Problem problem = conformance::make_problem(
      parse_case("b2 hq2 sq2 skv24 d8 f32 append=2 lens_kv=7,20 rotary=8").value(),
      {.dense = true});
  AttentionRequest r = problem.request();
  r.rotary_cos.shape[0] = r.rotary_sin.shape[0] = 22;
  EXPECT_TRUE(attention(context, r).ok());
}

TEST(Rotary, NeedsPositionsWithoutNewRows) {
  Problem problem = conformance::make_problem(
      parse_case("b2 hq2 sq2 skv24 d8 f32 append=1 lens_kv=7,20 rotary=8").value(),
      {.dense = true});
  const auto refused = [](const AttentionRequest& r, const std::string& fragment) {
    const std::string message = describe(r).status().message();
    EXPECT_NE(message.find(fragment), std::string::npos) << message;
  };
  AttentionRequest r = problem.request();
  r.k_new = r.v_new = TensorView{};
  refused(r, "positions (absent) must be given with rotary_cos without k_new");
  r = problem.request();
  std::int32_t numbers[4] = {};
  r.positions = make_view(numbers, Dtype::kI32, {2, 2});
  refused(r, "seqlen of k_new (1) must be q's, 2, with positions");
  r.rotary_cos = r.rotary_sin = TensorView{};
  refused(r, "rotary_cos (absent) must be given with positions");
  r.positions = TensorView{};
  r.options.rotary_interleaved = true;
  refused(r, "rotary_interleaved (true) must be false without rotary_cos");
  r = problem.request();
  r.rotary_cos.dtype = Dtype::kF16;
  refused(r, "dtype of rotary_cos (f16) must be f32");
}

}  // namespace
}  // namespace regard
