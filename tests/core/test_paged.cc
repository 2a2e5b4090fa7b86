#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "tests/support/backends.h"

// What page_table and cache_batch_idx may hold is checked before anything is written.

namespace regard {
namespace {

using conformance::Problem;

void expect_refused(const std::string& text, std::int64_t place, std::int32_t id,
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
  expect_refused(kTwo, 1, 7, "page_table[0,1] (7), expected 0 to 6: rows see keys of this page");
  expect_refused(kTwo, 2, -1, "page_table[0,2] (-1), expected 0 to 6: rows see keys of this page");
  expect_refused(kTwo, 4, -2, "page_table[1,1] (-2), expected -1 to 6");
  expect_refused(kTwo, 5, 2147483647, "page_table[1,2] (2147483647), expected -1 to 6");
  const char* const cache = "b2 hq2 sq2 skv24 d8 f32 cache_batch_idx";
  expect_refused(cache, 1, 4,
                 "cache_batch_idx[1] (4), expected 0 to 3, an entry of the batch of k");
  expect_refused(cache, 0, -1, "cache_batch_idx[0] (-1), expected 0 to 3");
}

std::string refusal(const AttentionRequest& request) {
  Context context;
  return attention(context, request).message();
}

TEST(PagedRequest, IsRefusedByName) {
  Problem problem = conformance::make_problem(parse_case(kTwo).value(), {.dense = true});
  const AttentionRequest good = problem.request();
  std::int32_t numbers[] = {0, 1, 2};
  const auto expect = [&](const AttentionRequest& r, const char* fragment) {
    EXPECT_NE(refusal(r).find(fragment), std::string::npos) << refusal(r);
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

}  // namespace
}  // namespace regard
