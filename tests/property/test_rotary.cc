#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "oracle/padded.h"
#include "property.h"

// Rotary embedding in the call has the bits of a call whose queries and keys were rotated before.

namespace regard {
namespace {

using conformance::Problem;
using test::unequal;

class Rotary : public test::Property {};

TEST_P(Rotary, IsTheCallOfRotatedRows) {
  for (const char* text :
       {"b3 hq4 hkv2 sq1 skv640 d64 bf16 paged page_size=16 append causal diag=br "
        "lens_kv=639,77,0 rotary=64",
        "b2 hq2 sq5 skv200 d40 f32 append=5 causal diag=br lens_kv=195,3 rotary=24 "
        "rotary_interleaved",
        "b2 hq2 sq70 skv320 d24 dv16 f16 paged page_size=5 append=70 lens_kv=0,250 rotary=24",
        "b2 hq4 hkv2 sq3 skv96 d300 bf16 cache_batch_idx append=3 lens=kv rotary=280 positions",
        "b2 hq4 hkv2 sq3 skv96 d64 f8e4m3 append=3 lens=kv descales rotary=32 rotary_interleaved",
        "b2 hq2 sq130 skv96 d33 f32 rotary=32 positions lens=q"}) {
    const std::string with_lse = std::string(text) + " lse seed=1";
    const Problem problem = problem_of(with_lse);
    const AttentionGradRequest& r = problem.request();
    const oracle::Padded twin = oracle::Padded::make(r).value();
    const AttentionRequest rotated = run_anew(test::without_cache(r, twin));
    run(r);
    EXPECT_EQ(unequal(r.out, rotated.out), "") << text;
    EXPECT_EQ(unequal(r.lse, rotated.lse), "") << text;
    EXPECT_EQ(problem.check_memory(), "") << text;
  }
}

// A prompt in one call, or one row at a time: the same cache.
TEST_P(Rotary, RowsAtOnceAreRowsOneByOne) {
  const Problem all = problem_of(
      "b2 hq4 hkv2 sq6 skv40 d32 bf16 append=6 causal diag=br lens_kv=30,0 rotary=16 seed=3");
  const Problem each = problem_of(
      "b2 hq4 hkv2 sq6 skv40 d32 bf16 append=6 causal diag=br lens_kv=30,0 rotary=16 seed=3");
  run(all.request());
  AttentionRequest one = each.request();
  auto* const lengths = static_cast<std::int32_t*>(one.seqlens_kv.data);
  for (std::int64_t i = 0; i < 6; ++i) {
    for (TensorView* rows : {&one.q, &one.k_new, &one.v_new, &one.out}) {
      const TensorView& of = rows == &one.q       ? each.request().q
                             : rows == &one.k_new ? each.request().k_new
                             : rows == &one.v_new ? each.request().v_new
                                                  : each.request().out;
      *rows = test::slice(of, 2, i, 1);
    }
    run(one);
    for (std::int64_t b = 0; b < 2; ++b) ++lengths[b * one.seqlens_kv.strides[0]];
  }
  EXPECT_EQ(unequal(each.request().k, all.request().k), "");
  EXPECT_EQ(unequal(each.request().v, all.request().v), "");
}

REGARD_INSTANTIATE_PROPERTIES(Rotary);

}  // namespace
}  // namespace regard
