#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "oracle/padded.h"
#include "tests/cuda/schedules.h"

// Packed sequences, and keys in pages or entries of a cache, have the bits of the padded batch that
// means the same: docs/semantics.md.

namespace regard {
namespace {

using conformance::Problem;
using cuda_test::HostBackend;
using test::slice;
using test::unequal;

class CudaPacked : public cuda_test::Schedules {
 protected:
  /// The request as its padded twin states it, with outputs of its own.
  AttentionGradRequest padded_of(const AttentionGradRequest& given, const oracle::Padded& twin) {
    AttentionGradRequest padded = twin.request();
    const TensorView& q = padded.q;
    padded.max_seqlen_q = padded.max_seqlen_kv = 0;
    padded.options.page_size = 0;
    padded.out = tensors_.make(
        given.out.dtype, {q.shape[0], q.shape[1], q.shape[2], given.out.shape[given.out.rank - 1]});
    padded.lse = tensors_.make(Dtype::kF32, {q.shape[0], q.shape[1], q.shape[2]});
    padded.saved_stats = {};
    for (TensorView* view : {&padded.attn_mask, &padded.attn_bias}) {
      *view = slice(slice(*view, 2, 0, q.shape[2]), 3, 0, padded.k.shape[2]);
    }
    return padded;
  }

  /// Rows of `packed`, whose dimension `dim` is packed, beside those of `padded`.
  void expect_rows(const TensorView& packed, int dim, const TensorView& padded,
                   const oracle::Starts& starts, const std::string& what) {
    for (std::int64_t b = 0; b < starts.count(); ++b) {
      if (starts.length(b) == 0) continue;
      const TensorView rows = slice(packed, dim, starts.begin(b), starts.length(b));
      const TensorView same = slice(slice(padded, 0, b, 1), 2, 0, starts.length(b));
      TensorView batched = rows;
      if (rows.rank < same.rank) {  // [H,total]
        batched.rank = same.rank;
        for (int i = rows.rank; i > 0; --i) {
          batched.shape[i] = rows.shape[i - 1];
          batched.strides[i] = rows.strides[i - 1];
        }
        batched.shape[0] = 1;
        batched.strides[0] = 0;
      }
      EXPECT_EQ(unequal(batched, same), "") << what << " sequence " << b;
    }
  }
};

TEST_F(CudaPacked, ForwardsAreThoseOfThePaddedBatch) {
  for (const char* text : {
           "b5 hq4 hkv2 sq65 skv127 d64 bf16 packed total_q=200 total_kv=420 lse seed=1",
           "b6 hq4 hkv2 sq65 d96 f16 packed rows_q=65,0,1,64,33,2 rows_kv=65,3,0,64,20,65 causal "
           "diag=br lse poison seed=2",
           "b4 hq2 sq33 skv300 d64 f16 packed mask bias segments softcap=5 sinks lse poison seed=4",
           "b4 hq2 sq70 skv90 d128 bf16 packed lens window=9,9 diag=br lse seed=6",
           "b5 hq8 hkv2 sq1 skv1600 d64 bf16 packed total_q=5 total_kv=6000 causal diag=br lse",
           "b3 hq4 hkv2 sq7 skv1100 d192 dv128 f16 packed rows_q=7,0,3 rows_kv=1100,40,700 "
           "dropout=0.2 lse seed=8",
       }) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& packed = problem.request();
    const auto starts =
        oracle::Starts::read(packed.cu_seqlens_q, packed.q.shape[2], "cu_seqlens_q").value();
    for (const HostBackend& backend : serving(problem, 1)) {
      run(backend, packed);
      const oracle::Padded twin = oracle::Padded::make(packed).value();
      const AttentionGradRequest padded = padded_of(packed, twin);
      run(backend, padded);
      const std::string what = std::string(text) + ", " + name_of(backend);
      expect_rows(packed.out, 2, padded.out, starts, what);
      expect_rows(packed.lse, 1, padded.lse, starts, what);
    }
  }
}

TEST_F(CudaPacked, GradientsAreThoseOfThePaddedBatch) {
  for (const char* text : {
           "b5 hq4 hkv2 sq65 skv127 d64 bf16 packed total_q=200 total_kv=420 lse grad seed=1",
           "b4 hq2 sq150 d96 f16 packed rows_q=150,7,0,129 rows_kv=150,64,5,129 causal diag=br lse "
           "grad seed=2",
           "b4 hq2 sq20 skv40 d32 bf16 packed dropout=0.25 window=7,3 diag=tl alibi softcap=5 lse "
           "grad seed=3",
       }) {
    const Problem problem = problem_of(text);
    AttentionGradRequest packed = problem.request();
    packed.d_lse = packed.delta = {};
    const auto starts_q =
        oracle::Starts::read(packed.cu_seqlens_q, packed.q.shape[2], "cu_seqlens_q").value();
    const auto starts_kv =
        oracle::Starts::read(packed.cu_seqlens_kv, packed.k.shape[2], "cu_seqlens_kv").value();
    for (const HostBackend& backend : serving(problem, 1)) {
      run(backend, packed);
      run_backward(backend, packed);
      const oracle::Padded twin = oracle::Padded::make(packed).value();
      AttentionGradRequest padded = padded_of(packed, twin);
      run(backend, padded);
      padded.saved.stats = padded.lse;
      padded.d_q = tensors_.copy(padded.q);
      padded.d_k = tensors_.copy(padded.k);
      padded.d_v = tensors_.copy(padded.v);
      run_backward(backend, padded);
      const std::string what = std::string(text) + ", " + name_of(backend);
      expect_rows(packed.d_q, 2, padded.d_q, starts_q, what);
      expect_rows(packed.d_k, 2, padded.d_k, starts_kv, what);
      expect_rows(packed.d_v, 2, padded.d_v, starts_kv, what);
    }
  }
}

TEST_F(CudaPacked, RowsBehindTheLastSequenceAreZeros) {
  const Problem problem = problem_of(
      "b3 hq4 hkv2 sq9 skv12 d24 dv16 bf16 packed total_q=30 total_kv=40 rows_q=9,2,0 "
      "rows_kv=3,0,12 lse saved grad");
  const AttentionGradRequest& r = problem.request();
  const auto expect_all = [](const TensorView& rows, double expected, const std::string& what) {
    conformance::for_each_element(rows, [&](const auto&, const unsigned char* element) {
      EXPECT_EQ(oracle::decode(element, rows.dtype), expected) << what;
    });
  };
  for (const HostBackend& backend : serving(problem, 1)) {
    for (const TensorView* view : {&r.out, &r.lse, &r.saved_stats, &r.d_q, &r.d_k, &r.d_v}) {
      fill(*view, 7.0);
    }
    run(backend, r);
    run_backward(backend, r);
    const std::string name = name_of(backend);
    expect_all(slice(r.out, 2, 11, 19), 0.0, "out, " + name);
    expect_all(slice(r.lse, 1, 11, 19), -HUGE_VAL, "lse, " + name);
    expect_all(slice(slice(r.saved_stats, 2, 11, 19), 3, 0, 1), -HUGE_VAL, "maximum, " + name);
    expect_all(slice(slice(r.saved_stats, 2, 11, 19), 3, 1, 1), 0.0, "sum, " + name);
    expect_all(slice(r.d_q, 2, 11, 19), 0.0, "d_q, " + name);
    expect_all(slice(r.d_k, 2, 15, 25), 0.0, "d_k, " + name);
    expect_all(slice(r.d_v, 2, 15, 25), 0.0, "d_v, " + name);
  }
}

TEST_F(CudaPacked, KeysInACacheAreThoseOfTheBatch) {
  for (const char* text : {
           "b3 hq4 hkv2 sq1 skv1600 d64 bf16 paged page_size=16 causal diag=br lens_kv=1600,77,0 "
           "lse seed=1",
           "b2 hq4 hkv2 sq4 skv800 d128 f16 paged page_size=100 lens_kv=799,640 lse seed=2",
           "b2 hq2 sq130 skv400 d96 bf16 paged page_size=5 causal diag=br lens_kv=400,90 "
           "cache_leftpad lse seed=4",
           "b2 hq2 sq40 skv400 d40 f16 paged page_size=80 mask bias segments softcap=5 sinks lse "
           "poison seed=5",
           "b3 hq4 hkv2 sq1 skv1600 d64 bf16 cache_batch_idx lens=kv causal diag=br lse seed=1",
           "b2 hq4 hkv2 sq66 skv80 d64 f16 window=20,0 diag=br alibi lens_kv=79,60 cache_leftpad "
           "lse poison seed=3",
           "b3 hq4 hkv2 sq4 skv1600 d64 bf16 paged page_size=16 append=4 lens_kv=1596,77,0 "
           "rotary=64 causal diag=br lse seed=6",
           "b2 hq4 hkv2 sq70 skv200 d96 f16 append=70 lens_kv=130,60 rotary=32 rotary_interleaved "
           "positions lse seed=7",
           "b2 hq2 sq9 skv80 d128 bf16 cache_batch_idx append=9 lens_kv=71,0 tree=9 rotary=128 "
           "cache_leftpad lse seed=8",
       }) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& cached = problem.request();
    for (const HostBackend& backend : serving(problem, 1)) {
      run(backend, cached);
      const oracle::Padded twin = oracle::Padded::make(cached).value();
      const AttentionGradRequest batch = padded_of(cached, twin);
      run(backend, batch);
      EXPECT_EQ(unequal(cached.out, batch.out), "") << text << ", " << name_of(backend);
      EXPECT_EQ(unequal(cached.lse, batch.lse), "") << text << ", " << name_of(backend);
    }
  }
}

// Codes and scales of new rows, rotated and mixed ones, and all others.
TEST_F(CudaPacked, AppendedRowsHaveTheBitsOfACpu) {
  for (const char* text : {
           "b2 hq2 sq9 skv96 d64 bf16 append=9 lens_kv=87,3 rotary=32 hadamard seed=1",
           "b2 hq4 hkv2 sq5 skv96 d128 bf16 kv=i8 scales=token paged page_size=16 append=5 "
           "lens_kv=91,13 rotary=128 hadamard seed=2",
           "b2 hq2 sq7 skv96 d72 dv40 f16 kv=f8e4m3 scales=all channel_scales append=7 "
           "lens_kv=89,0 seed=3",
           "b2 hq2 sq7 skv96 d300 dv257 f32 kv=f8e5m2 v=i8 scales=token cache_batch_idx append=7 "
           "lens_kv=89,1 rotary=16 rotary_interleaved seed=4",
           "b2 hq4 hkv2 sq6 skv96 d34 dv512 f16 kv=u4 channel_scales paged page_size=8 append=6 "
           "lens_kv=90,5 rotary=34 seed=5",
           "b1 hq2 sq6 skv96 d256 dv42 f32 kv=u4 append=6 lens_kv=90 rotary=64 hadamard seed=6",
       }) {
    const Problem on_cpu = problem_of(text);
    const HostBackend cpu{backends_.front().context, BackendRef{BackendId::kMath}, false};
    run(cpu, on_cpu.request());
    for (const HostBackend& backend : serving(on_cpu, 1)) {
      const Problem own = problem_of(text);
      run(backend, own.request());
      for (const auto tensor : {&Buffers::k, &Buffers::v, &Buffers::scales_k, &Buffers::scales_v}) {
        EXPECT_EQ(test::bytes_of(own.request().*tensor), test::bytes_of(on_cpu.request().*tensor))
            << text << ", " << name_of(backend);
      }
    }
  }
}

// Pages before the window, and behind the length, have been given back.
TEST_F(CudaPacked, PagesThatNobodySeesNeedNotBeThere) {
  for (const char* rows : {"hq4 hkv2 sq1", "hq2 sq100"}) {
    const Problem problem =
        problem_of("b1 " + std::string(rows) +
                   " skv512 d64 bf16 paged page_size=8 window=50,0 diag=br lens_kv=403 lse");
    AttentionGradRequest r = problem.request();
    for (const HostBackend& backend : serving(problem, 1)) {
      run(backend, r);
      AttentionGradRequest again = r;
      again.page_table = tensors_.copy(r.page_table, {0, 1});
      auto* const ids = static_cast<std::int32_t*>(again.page_table.data);
      const std::int64_t first_seen = 403 - r.q.shape[2] - 50;
      for (std::int64_t page = 0; page < again.page_table.shape[1]; ++page) {
        const bool seen = (page + 1) * 8 > first_seen && page * 8 < 403;
        if (!seen) ids[page * again.page_table.strides[1]] = -1;
      }
      tensors_.renew_outputs(&again);
      run(backend, again);
      EXPECT_EQ(unequal(again.out, r.out), "") << name_of(backend);
      EXPECT_EQ(unequal(again.lse, r.lse), "") << name_of(backend);
    }
  }
}

}  // namespace
}  // namespace regard
