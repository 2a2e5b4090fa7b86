#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "problem/make_problem.h"
#include "tests/cuda/schedules.h"

// Kernels of caches as a device runs them: nobody has checked ids of pages and entries before.
// Those that are none stand for zeros, and memory outside of the tensors, which lie before guard
// pages here, is not read.

namespace regard {
namespace {

using conformance::Problem;
using test::slice;
using test::unequal;

class CudaHostile : public cuda_test::Schedules {
 protected:
  static Problem guarded(const std::string& text) {
    return conformance::make_problem(parse_case(text).value(),
                                     {conformance::Guard::kUpperPage, /*dense=*/true});
  }

  static void run_unchecked(const cuda_test::UncheckedForward& forward,
                            const AttentionRequest& request) {
    cuda::ForwardArgs args;
    problem::make_problem(describe(request).value(), request, &args.problem);
    args.kv_entries = request.k.shape[0];
    const Status status = forward.run(args);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  static std::int64_t count_of(const TensorView& ids) {
    return ids.shape[0] * (ids.rank > 1 ? ids.shape[1] : 1);
  }

  /// `ids` of every third sequence or page are none, or, beside them, 0, which is of zeros.
  void expect_zeros(const std::string& text, TensorView AttentionRequest::*ids) {
    const Problem problem = guarded(text);
    AttentionGradRequest zeros = problem.request();
    fill(slice(zeros.k, 0, 0, 1), 0.0);
    fill(slice(zeros.v, 0, 0, 1), 0.0);
    AttentionGradRequest none = zeros;
    zeros.*ids = tensors_.copy(zeros.*ids);
    none.*ids = tensors_.copy(zeros.*ids);
    const auto entries = static_cast<std::int32_t>(zeros.k.shape[0]);
    const std::int32_t bad[] = {-1, INT32_MIN, INT32_MAX, entries};
    auto* const at_zeros = static_cast<std::int32_t*>((zeros.*ids).data);
    auto* const at_none = static_cast<std::int32_t*>((none.*ids).data);
    for (std::int64_t n = 1; n < count_of(zeros.*ids); n += 3) {
      at_zeros[n] = 0;
      at_none[n] = bad[n / 3 % 4];
    }
    for (const cuda_test::UncheckedForward& forward : cuda_test::unchecked_forwards()) {
      if (forward.is_flash && (zeros.k.dtype != Dtype::kBf16 || zeros.v.dtype != Dtype::kBf16)) {
        continue;
      }
      tensors_.renew_outputs(&zeros);
      tensors_.renew_outputs(&none);
      run_unchecked(forward, zeros);
      run_unchecked(forward, none);
      EXPECT_EQ(unequal(none.out, zeros.out), "") << text << (forward.is_flash ? ", flash" : "");
      EXPECT_EQ(unequal(none.lse, zeros.lse), "") << text << (forward.is_flash ? ", flash" : "");
    }
  }
};

TEST_F(CudaHostile, PagesThatAreNone) {
  for (const char* text : {
           "b2 hq4 hkv2 sq1 skv320 d64 bf16 paged page_size=16 lens_kv=320,77 lse",
           "b2 hq4 hkv2 sq70 skv200 d128 bf16 paged page_size=8 causal diag=br cache_leftpad lse",
           "b2 hq2 hkv1 sq5 skv300 d40 f32 kv=i8 scales=token paged page_size=30 lse",
           "b2 hq2 hkv1 sq5 skv300 d40 f16 kv=f8e4m3 v=i8 paged page_size=6 channel_scales lse",
       }) {
    expect_zeros(text, &AttentionRequest::page_table);
  }
}

TEST_F(CudaHostile, EntriesThatAreNone) {
  for (const char* text : {
           "b14 hq2 sq3 skv70 d64 bf16 cache_batch_idx lse",
           "b14 hq2 hkv1 sq1 skv100 d33 f32 cache_batch_idx lens=kv lse",
           "b14 hq2 sq2 skv40 d64 bf16 kv=i8 scales=token cache_batch_idx lse",
       }) {
    expect_zeros(text, &AttentionRequest::cache_batch_idx);
  }
}

}  // namespace
}  // namespace regard
