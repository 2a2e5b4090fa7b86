#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "oracle/number.h"
#include "oracle/padded.h"
#include "property.h"

// Keys in pages, or in entries of a cache, are the keys of a batch, to the bit: wherever pages lie,
// however many keys they hold, and whatever stands in pages that nobody sees.

namespace regard {
namespace {

using conformance::Problem;
using test::unequal;

class Paged : public test::Property {
 protected:
  void expect_batch(const AttentionGradRequest& cached, const std::string& what) {
    const oracle::Padded twin = oracle::Padded::make(cached).value();
    const AttentionRequest batch = run_anew(test::without_cache(cached, twin));
    EXPECT_EQ(unequal(cached.out, batch.out), "") << what;
    EXPECT_EQ(unequal(cached.lse, batch.lse), "") << what;
  }
};

// Keys of whole pages, of every size that the test takes.
const char* const kCases[] = {
    "b3 hq4 hkv2 sq1 skv1600 d64 bf16 paged causal diag=br lens_kv=1600,77,0 lse seed=1",
    "b2 hq4 hkv2 sq1 skv1600 d128 f32 paged lens_kv=1599,640 lse seed=2",
    "b2 hq4 hkv2 sq6 skv800 d33 f16 paged window=100,0 diag=br alibi lse poison seed=3",
    "b2 hq2 sq130 skv400 d64 f32 paged causal diag=br lse seed=4",
    "b2 hq2 sq130 skv400 d40 bf16 paged mask bias segments softcap=5 sinks lse poison seed=5",
    "b2 hq4 hkv1 sq40 skv800 d64 f8e4m3 paged descales=head causal diag=br lse seed=6",
    "b2 hq2 sq70 skv9600 d16 f32 paged lse seed=7",
    "b2 hq2 sq33 skv400 d8 dv24 f32 paged dropout=0.25 causal diag=br lse seed=8",
};

TEST_P(Paged, IsTheBatch) {
  for (const char* text : kCases) {
    for (const int page_size : {1, 5, 16, 80, 400}) {
      const std::string with_size = std::string(text) + " page_size=" + std::to_string(page_size);
      const Problem problem = problem_of(with_size);
      run(problem.request());
      expect_batch(problem.request(), with_size);
    }
  }
}

TEST_P(Paged, EntriesOfACacheAreTheBatch) {
  for (const char* text :
       {"b3 hq4 hkv2 sq1 skv1600 d64 bf16 cache_batch_idx lens=kv causal diag=br lse seed=1",
        "b2 hq2 sq130 skv300 d40 f32 cache_batch_idx lse poison seed=2"}) {
    const Problem problem = problem_of(text);
    run(problem.request());
    expect_batch(problem.request(), text);
  }
}

// Pages before the window, and behind the length, have been given back.
TEST_P(Paged, PagesThatNobodySeesNeedNotBeThere) {
  for (const char* text :
       {"b1 hq4 hkv2 sq1 skv512 d64 f32 paged page_size=8 window=50,0 diag=br lens_kv=403 lse",
        "b1 hq2 sq100 skv512 d64 bf16 paged page_size=8 window=50,0 diag=br lens_kv=403 lse",
        "b1 hq2 sq20 skv512 d64 f32 paged page_size=8 window=50,0 diag=br lens_kv=403 lse"}) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& r = problem.request();
    run(r);
    const oracle::Padded twin = oracle::Padded::make(r).value();
    const AttentionRequest batch = run_anew(test::without_cache(r, twin));
    auto* const ids = static_cast<std::int32_t*>(r.page_table.data);
    const std::int64_t first_seen = 403 - r.q.shape[2] - 50;
    for (std::int64_t page = 0; page < r.page_table.shape[1]; ++page) {
      const bool seen = (page + 1) * 8 > first_seen && page * 8 < 403;
      if (!seen) ids[page * r.page_table.strides[1]] = -1;
    }
    const AttentionRequest again = run_anew(r);
    EXPECT_EQ(unequal(again.out, batch.out), "") << text;
    EXPECT_EQ(unequal(again.lse, batch.lse), "") << text;
  }
}

// Appended in the call, or written by hand before it.
TEST_P(Paged, AppendedRowsAreRowsOfTheCache) {
  for (const char* text :
       {"b3 hq4 hkv2 sq1 skv640 d64 bf16 paged page_size=16 append causal diag=br lens_kv=639,77,0",
        "b2 hq2 sq5 skv200 d40 f32 append=5 causal diag=br lens_kv=195,3",
        "b2 hq2 sq70 skv320 d24 dv16 f16 paged page_size=5 append=70 causal diag=br lens_kv=0,250",
        "b2 hq4 hkv2 sq3 skv96 d64 f8e4m3 cache_batch_idx append=3 lens=kv"}) {
    const std::string with_lse = std::string(text) + " lse seed=1";
    const Problem problem = problem_of(with_lse);
    const AttentionGradRequest& r = problem.request();
    const oracle::Padded twin = oracle::Padded::make(r).value();
    run(r);
    const AttentionRequest whole = run_anew(test::without_cache(r, twin));
    EXPECT_EQ(unequal(r.out, whole.out), "") << text;
    EXPECT_EQ(unequal(r.lse, whole.lse), "") << text;
    EXPECT_EQ(problem.check_memory(), "") << text;
    // The rows are in the cache: a call that appends nothing finds them.
    AttentionRequest next = r;
    next.k_new = next.v_new = TensorView{};
    next.seqlens_kv = whole.seqlens_kv;
    next = run_anew(next);
    EXPECT_EQ(unequal(next.out, whole.out), "") << text;
  }
}

// Rows before the first key change nothing, wherever that lies in its page or tile.
TEST_P(Paged, KeysBehindRowsThatAreNoneAreTheBatch) {
  for (const char* text :
       {"b3 hq4 hkv2 sq1 skv1600 d64 bf16 paged page_size=16 causal diag=br lens_kv=1600,77,33",
        "b2 hq4 hkv2 sq6 skv800 d33 f16 window=100,0 diag=br alibi lens_kv=799,120 poison",
        "b2 hq2 sq130 skv400 d40 bf16 paged page_size=5 mask bias segments sinks lens_kv=400,90",
        "b2 hq2 sq70 skv320 d24 dv16 f32 paged page_size=80 append=70 causal diag=br "
        "lens_kv=250,95",
        "b2 hq4 hkv2 sq3 skv96 d64 f32 kv=i8 scales=token cache_batch_idx append=3 lens_kv=93,40",
        "b2 hq2 sq2 skv640 d16 f32 kv=f8e4m3 scales=all paged dropout=0.25 causal diag=br "
        "lens_kv=640,77"}) {
    for (const int seed : {1, 2, 3, 4}) {
      const std::string what =
          std::string(text) + " cache_leftpad lse seed=" + std::to_string(seed);
      const Problem problem = problem_of(what);
      const AttentionGradRequest& r = problem.request();
      const oracle::Padded twin = oracle::Padded::make(r).value();
      run(r);
      const AttentionRequest batch = run_anew(test::without_cache(r, twin));
      EXPECT_EQ(unequal(r.out, batch.out), "") << what;
      EXPECT_EQ(unequal(r.lse, batch.lse), "") << what;
      EXPECT_EQ(problem.check_memory(), "") << what;
    }
  }
}

TEST_P(Paged, QueriesMayBePacked) {
  const std::string keys =
      "b4 hq4 hkv2 sq40 skv640 d32 bf16 paged page_size=16 causal diag=br "
      "lens_kv=640,33,0,64 lse seed=9";
  const Problem packed = problem_of(keys + " packed rows_q=40,1,0,7 total_q=50");
  const AttentionGradRequest& r = packed.request();
  run(r);
  AttentionRequest padded = oracle::Padded::make(r).value().request();
  const oracle::Padded twin = oracle::Padded::make(r).value();
  padded.k = twin.request().k;
  padded.v = twin.request().v;
  padded.q = twin.request().q;
  padded.seqlens_q = twin.request().seqlens_q;
  padded.max_seqlen_q = 0;
  padded.options.page_size = 0;
  padded.out = tensors_.make(r.out.dtype, {4, 4, 40, 32});
  padded.lse = tensors_.make(r.lse.dtype, {4, 4, 40});
  run(padded);
  const std::int64_t lengths[] = {40, 1, 0, 7};
  std::int64_t begin = 0;
  for (std::int64_t b = 0; b < 4; begin += lengths[b++]) {
    if (lengths[b] == 0) continue;
    EXPECT_EQ(unequal(test::slice(r.out, 2, begin, lengths[b]),
                      test::slice(test::slice(padded.out, 0, b, 1), 2, 0, lengths[b])),
              "")
        << "sequence " << b;
  }
}

REGARD_INSTANTIATE_PROPERTIES(Paged);

}  // namespace
}  // namespace regard
