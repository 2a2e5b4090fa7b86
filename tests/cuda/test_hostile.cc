#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/append.cuh"
#include "cuda/caches.h"
#include "problem/make_problem.h"
#include "tests/cuda/schedules.h"

// Kernels of caches as a device runs them: nobody has checked ids of pages and entries, lengths and
// scales before. Reads of pages and entries that do not exist give zeros, rows that have no place
// are not written, and memory outside of the tensors, which lie beside guard pages here, is not
// touched.

namespace regard {
namespace {

using conformance::Guard;
using conformance::Problem;
using test::slice;
using test::unequal;

class CudaHostile : public cuda_test::Schedules {
 protected:
  static Problem guarded(const std::string& text, Guard guard = Guard::kUpperPage) {
    return conformance::make_problem(parse_case(text).value(), {guard, /*dense=*/true});
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

  static bool flash_has(const AttentionRequest& r) {
    const auto is_code = [](const TensorView& view) {
      return view.dtype != Dtype::kU4 && size_of(view.dtype) == 1;
    };
    if (r.q.dtype == Dtype::kF32 || r.q.shape[3] % 16 != 0) return false;
    if (r.k.dtype == Dtype::kU4) return r.v.dtype == Dtype::kU4;
    return is_code(r.k) ? is_code(r.v) : r.k.dtype == r.q.dtype && r.v.dtype == r.q.dtype;
  }

  /// `ids` of every third sequence or page are none, or, beside them, 0, which is of zeros.
  void expect_zeros(const std::string& text, TensorView AttentionRequest::*ids) {
    const Problem problem = guarded(text);
    AttentionGradRequest zeros = problem.request();
    fill(slice(zeros.k, 0, 0, 1), 0.0);
    fill(slice(zeros.v, 0, 0, 1), 0.0);
    if (zeros.k.dtype == Dtype::kU4) {  // whose codes of 0 are minima
      fill(slice(zeros.scales_k, 0, 0, 1), 0.0);
      fill(slice(zeros.scales_v, 0, 0, 1), 0.0);
    }
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
      if (forward.is_flash && !flash_has(zeros)) continue;
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
           "b2 hq4 hkv2 sq1 skv320 d64 bf16 kv=i8 scales=token paged page_size=16 lens_kv=320,77 "
           "lse",
           "b2 hq4 hkv2 sq70 skv200 d128 f16 kv=f8e4m3 v=i8 scales=all paged page_size=8 causal "
           "diag=br cache_leftpad lse",
           "b2 hq4 hkv2 sq1 skv320 d64 bf16 kv=u4 paged page_size=16 lens_kv=320,77 lse",
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

// Rows that nobody sees, in a tile of which others are seen.
TEST_F(CudaHostile, ScalesOfHiddenRowsAreNoNumbers) {
  for (const char* text : {
           "b1 hq4 hkv2 sq5 skv300 d64 bf16 kv=i8 scales=token window=40,0 diag=br lse",
           "b1 hq2 hkv2 sq5 skv700 d64 f16 kv=f8e4m3 scales=token window=40,0 diag=br lse",
           "b1 hq2 sq40 skv335 d80 f16 kv=i8 v=f8e5m2 scales=token window=40,0 diag=br lse",
           "b1 hq4 hkv2 sq5 skv700 d64 bf16 kv=u4 window=40,0 diag=br lse",
           "b1 hq2 sq40 skv335 d96 f16 kv=u4 window=40,0 diag=br lse",
       }) {
    const Problem problem = guarded(text);
    AttentionGradRequest given = problem.request(), none = given;
    const std::int64_t first_seen = given.k.shape[2] - given.q.shape[2] - 40;
    for (const auto scales : {&Buffers::scales_k, &Buffers::scales_v}) {
      none.*scales = tensors_.copy(given.*scales);
      fill(slice(none.*scales, 2, 0, first_seen), NAN);
    }
    for (const cuda_test::UncheckedForward& forward : cuda_test::unchecked_forwards()) {
      tensors_.renew_outputs(&given);
      tensors_.renew_outputs(&none);
      run_unchecked(forward, given);
      run_unchecked(forward, none);
      EXPECT_LT(test::largest_difference(none.out, given.out), 0.02) << text << forward.is_flash;
      EXPECT_EQ(unequal(none.lse, given.lse), "") << text << forward.is_flash;
    }
  }
}

/// Appends of codes and scales: what a call leaves in the cache, row by row.
class CudaHostileAppend : public CudaHostile {
 protected:
  using Bytes = std::vector<unsigned char>;

  /// The launch before a forward, as the backends enqueue it.
  static void append(const AttentionRequest& request) {
    problem::Problem p;
    problem::make_problem(describe(request).value(), request, &p);
    std::vector<unsigned char> memory;
    const Status status = cuda::append_before(
        [](const cuda::AppendArgs& args, void*) {
          cuda_test::HostRunner run(cuda_test::schedule().order);
          cuda::run_append(run, args);
          return Status();
        },
        request, launch(problem::rotated_queries_bytes(describe(request).value()), &memory), &p);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  static constexpr TensorView Buffers::*kCaches[] = {&Buffers::k, &Buffers::v, &Buffers::scales_k,
                                                     &Buffers::scales_v};

  /// Of rows of bytes: strides of u4 count two for a byte.
  static Bytes bytes_of_rows(const TensorView& rows) {
    Bytes bytes;
    conformance::for_each_element(rows, [&](const auto&, const unsigned char* element) {
      bytes.insert(bytes.end(), element, element + size_of(rows.dtype));
    });
    return bytes;
  }
  static Bytes entry_of(const TensorView& cache, std::int64_t entry) {
    return bytes_of_rows(slice(as_bytes(cache), 0, entry, 1));
  }
  /// Row `row` of all heads in entry or page `entry`.
  static Bytes row_of(const TensorView& cache, std::int64_t entry, std::int64_t row) {
    return bytes_of_rows(slice(slice(as_bytes(cache), 0, entry, 1), 2, row, 1));
  }

  /// The cache of `found` has the rows of `same`, but those of `untouched` in entries or pages
  /// where `is_bad`; `changed` counts what differs between the two.
  template <class IsBad>
  static void expect_entries(const AttentionRequest& found, const AttentionRequest& same,
                             const AttentionRequest& untouched, IsBad is_bad, int* changed,
                             const std::string& what) {
    for (const auto tensor : kCaches) {
      const TensorView& cache = found.*tensor;
      for (std::int64_t n = 0; cache.present() && n < cache.shape[0]; ++n) {
        const Bytes before = entry_of(untouched.*tensor, n);
        const Bytes after = entry_of(same.*tensor, n);
        EXPECT_TRUE(entry_of(cache, n) == (is_bad(n) ? before : after)) << what << ", entry " << n;
        if (is_bad(n) && before != after) ++*changed;
      }
    }
  }

  /// Whether new rows go to what the n-th of `ids` names: other pages may stand in several places.
  static bool has_new_rows(const AttentionRequest& r, TensorView AttentionRequest::*ids,
                           std::int64_t n) {
    if ((r.*ids).rank == 1) return true;
    const std::int64_t pages = (r.*ids).shape[1], size = r.k.shape[2];
    const std::int64_t length = static_cast<const std::int32_t*>(r.seqlens_kv.data)[n / pages];
    const std::int64_t first = n % pages * size;
    return first < length + r.k_new.shape[2] && first + size > length;
  }

  /// `ids` of every second page or entry are none: what the call would have written there stays.
  void expect_unwritten(const std::string& text, TensorView AttentionRequest::*ids,
                        const std::string& name) {
    int changed = 0;
    for (const Guard guard : {Guard::kUpperPage, Guard::kLowerPage}) {
      for (std::int64_t odd = 0; odd < 2; ++odd) {
        const Problem good = guarded(text, guard), bad = guarded(text, guard);
        const Problem untouched = guarded(text, guard);
        AttentionGradRequest none = bad.request();
        none.*ids = tensors_.copy(none.*ids);
        const auto entries = static_cast<std::int32_t>(none.k.shape[0]);
        const std::int32_t no_ids[] = {-1, INT32_MIN, INT32_MAX, entries};
        auto* const id = static_cast<std::int32_t*>((none.*ids).data);
        std::vector<std::int32_t> lost;
        for (std::int64_t n = odd; n < count_of(none.*ids); n += 2) {
          if (has_new_rows(none, ids, n)) lost.push_back(id[n]);
          id[n] = no_ids[n / 2 % 4];
        }
        append(good.request());
        append(none);
        const auto is_lost = [&](std::int64_t n) {
          return std::find(lost.begin(), lost.end(), n) != lost.end();
        };
        expect_entries(none, good.request(), untouched.request(), is_lost, &changed, text);
        const Status status = check_device_data(none);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
        EXPECT_NE(status.message().find(name), std::string::npos) << status.to_string();
      }
    }
    EXPECT_GE(changed, 8) << text << ": no new row lies there";
  }
};

TEST_F(CudaHostileAppend, PagesThatAreNoneAreNotWritten) {
  for (const char* text : {
           "b3 hq4 hkv2 sq5 skv96 d64 bf16 kv=i8 scales=token paged page_size=8 append=5 "
           "lens_kv=91,13,6 rotary=64 hadamard",
           "b3 hq2 sq9 skv96 d72 dv40 f16 kv=f8e4m3 scales=all channel_scales paged page_size=6 "
           "append=9 lens_kv=87,4,50",
           "b3 hq2 sq9 skv96 d40 dv57 f32 kv=f8e5m2 v=i8 scales=token paged page_size=8 append=9 "
           "lens_kv=87,4,50",
           "b3 hq4 hkv2 sq6 skv96 d34 dv42 f16 kv=u4 channel_scales paged page_size=4 append=6 "
           "lens_kv=90,5,30 rotary=34",
       }) {
    expect_unwritten(text, &AttentionRequest::page_table, "page_table[");
  }
}

TEST_F(CudaHostileAppend, EntriesThatAreNoneAreNotWritten) {
  for (const char* text : {
           "b5 hq4 hkv2 sq5 skv40 d64 bf16 kv=i8 scales=token cache_batch_idx append=5 "
           "lens_kv=35,0,6,7,8 rotary=64 hadamard",
           "b5 hq2 sq3 skv40 d72 dv40 f16 kv=f8e4m3 scales=all channel_scales cache_batch_idx "
           "append=3 lens_kv=37,0,6,7,8",
           "b5 hq2 sq3 skv40 d34 dv42 f32 kv=u4 channel_scales cache_batch_idx append=3 "
           "lens_kv=37,0,6,7,8",
       }) {
    expect_unwritten(text, &AttentionRequest::cache_batch_idx, "cache_batch_idx[");
  }
}

// New row i lies in row length + i, where the cache has that.
TEST_F(CudaHostileAppend, LengthsOutsideOfTheCache) {
  constexpr std::int64_t kNew = 4, kRows = 40, kGood = 20;
  const std::int32_t lengths[] = {-1, -3, -4, INT32_MIN, 37, 39, 40, INT32_MAX};
  for (const char* text : {
           "b8 hq4 hkv2 sq4 skv40 d64 bf16 kv=i8 scales=token append=4 lens=kv hadamard",
           "b8 hq2 sq4 skv40 d72 dv40 f16 kv=f8e4m3 scales=all channel_scales append=4 lens=kv",
           "b8 hq2 sq4 skv40 d40 dv57 f32 kv=f8e5m2 v=i8 scales=token append=4 lens=kv",
           "b8 hq2 sq4 skv40 d34 dv42 f16 kv=u4 channel_scales append=4 lens=kv",
       }) {
    for (const Guard guard : {Guard::kUpperPage, Guard::kLowerPage}) {
      const Problem good = guarded(text, guard), bad = guarded(text, guard);
      const Problem untouched = guarded(text, guard);
      for (const Problem* problem : {&good, &bad}) {
        auto* const at = static_cast<std::int32_t*>(problem->request().seqlens_kv.data);
        for (std::int64_t b = 0; b < 8; ++b) {
          at[b] = problem == &good ? static_cast<std::int32_t>(kGood) : lengths[b];
        }
        append(problem->request());
      }
      for (const auto tensor : kCaches) {
        const TensorView& cache = bad.request().*tensor;
        if (!cache.present() || cache.shape[2] != kRows) continue;  // scales that are given
        for (std::int64_t b = 0; b < 8; ++b) {
          for (std::int64_t row = 0; row < kRows; ++row) {
            const std::int64_t i = row - lengths[b];
            const bool is_new = i >= 0 && i < kNew;
            EXPECT_EQ(row_of(cache, b, row), is_new ? row_of(good.request().*tensor, b, kGood + i)
                                                    : row_of(untouched.request().*tensor, b, row))
                << text << ", length " << lengths[b] << ", row " << row;
          }
        }
      }
      const Status status = check_device_data(bad.request());
      EXPECT_EQ(status.message(), "[check_device_data] seqlens_kv[0] (-1), expected 0 to 36");
    }
  }
}

// Numbers and scales that no check has passed change the codes of their own rows alone.
TEST_F(CudaHostileAppend, NumbersAndScalesThatAreNone) {
  const float numbers[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -1.0f, 1e-45f, 3e38f};
  for (const char* text : {
           "b2 hq4 hkv2 sq4 skv40 d64 bf16 kv=i8 scales=token append=4 lens_kv=36,0 hadamard",
           "b2 hq2 sq4 skv40 d72 dv40 f16 kv=f8e4m3 scales=all channel_scales append=4 "
           "lens_kv=36,0",
           "b2 hq2 sq4 skv40 d40 dv57 f32 kv=f8e5m2 v=i8 scales=all append=4 lens_kv=36,0",
           "b2 hq2 sq4 skv40 d34 dv42 f16 kv=u4 channel_scales append=4 lens_kv=36,0",
       }) {
    const auto text_of = [&](const Status& status) {
      return std::string(text) + status.to_string();
    };
    for (const Guard guard : {Guard::kUpperPage, Guard::kLowerPage}) {
      const Problem bad = guarded(text, guard), untouched = guarded(text, guard);
      AttentionGradRequest r = bad.request();
      int n = 0;
      const auto spoil = [&](const TensorView& view) {
        conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
          oracle::encode(static_cast<double>(numbers[n++ % 8]), element, view.dtype);
        });
      };
      spoil(r.k_new);
      spoil(r.v_new);
      const Status of_rows = check_device_data(r);
      EXPECT_NE(of_rows.message().find("_new"), std::string::npos) << text_of(of_rows);
      if (r.channel_scales_k.present()) spoil(r.channel_scales_k);
      const bool gives_scales = std::string(text).find("scales=all") != std::string::npos;
      if (gives_scales) spoil(r.scales_k), spoil(r.scales_v);
      const Status of_scales = check_device_data(r);
      EXPECT_EQ(of_scales.code(), StatusCode::kInvalidArgument) << text_of(of_scales);
      append(r);
      for (const auto tensor : kCaches) {
        const TensorView& cache = r.*tensor;
        if (!cache.present() || cache.shape[2] != 40) continue;
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::int64_t row = b == 0 ? 0 : 4; row < (b == 0 ? 36 : 40); ++row) {
            EXPECT_TRUE(row_of(cache, b, row) == row_of(untouched.request().*tensor, b, row))
                << text << ", row " << row;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace regard
