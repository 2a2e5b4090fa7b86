#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "oracle/number.h"
#include "oracle/padded.h"
#include "oracle/rules.h"
#include "property.h"
#include "tests/support/executors.h"

// Packed sequences: each is what it is alone, and what it is in a padded batch, to the bit,
// wherever it stands and whatever stands beside it.

namespace regard {
namespace {

using conformance::Problem;
using oracle::Starts;
using test::slice;
using test::unequal;

Starts starts_of(const TensorView& cu_seqlens, std::int64_t total) {
  return Starts::read(cu_seqlens, total, "cu_seqlens").value();
}

/// The same memory with another shape.
template <std::size_t kRank>
TensorView reshaped(TensorView view, const std::int64_t (&shape)[kRank],
                    const std::int64_t (&strides)[kRank]) {
  view.rank = static_cast<std::int32_t>(kRank);
  std::copy_n(shape, kRank, view.shape);
  std::copy_n(strides, kRank, view.strides);
  return view;
}

/// Rows [begin, begin + length) of sequence b alone, as an unpacked call.
AttentionGradRequest sequence_alone(const AttentionGradRequest& packed, std::int64_t b) {
  const Starts q = starts_of(packed.cu_seqlens_q, packed.q.shape[2]);
  const Starts kv = starts_of(packed.cu_seqlens_kv, packed.k.shape[2]);
  AttentionGradRequest r = packed;
  r.cu_seqlens_q = r.cu_seqlens_kv = TensorView{};
  r.max_seqlen_q = r.max_seqlen_kv = 0;
  const auto cut = [](TensorView* view, const Starts& of, std::int64_t n, int dim) {
    if (view->present()) *view = slice(*view, dim, of.begin(n), of.length(n));
  };
  for (TensorView* view : {&r.q, &r.out, &r.saved_stats, &r.d_out, &r.d_q}) cut(view, q, b, 2);
  for (TensorView* view : {&r.k, &r.v, &r.d_k, &r.d_v}) cut(view, kv, b, 2);
  // [H,total] and [total] get a batch of one.
  for (TensorView* view : {&r.lse, &r.d_lse, &r.delta}) {
    if (!view->present()) continue;
    cut(view, q, b, 1);
    const std::int64_t strides[] = {0, view->strides[0], view->strides[1]};
    const std::int64_t shape[] = {1, view->shape[0], view->shape[1]};
    *view = reshaped(*view, shape, strides);
  }
  for (TensorView* view : {&r.segment_ids_q, &r.segment_ids_kv}) {
    if (!view->present()) continue;
    cut(view, view == &r.segment_ids_q ? q : kv, b, 0);
    const std::int64_t strides[] = {0, view->strides[0]}, shape[] = {1, view->shape[0]};
    *view = reshaped(*view, shape, strides);
  }
  for (TensorView* view : {&r.attn_mask, &r.attn_bias}) {
    *view = slice(slice(slice(*view, 0, b, 1), 2, 0, q.length(b)), 3, 0, kv.length(b));
  }
  for (TensorView* view : {&r.diagonal_offsets, &r.seqlens_q, &r.seqlens_kv}) {
    *view = slice(*view, 0, b, 1);
  }
  if (r.alibi_slopes.rank == 2) r.alibi_slopes = slice(r.alibi_slopes, 0, b, 1);
  r.saved.stats = r.saved.kind == SavedContext::Kind::kStats ? r.saved_stats : r.lse;
  return r;
}

class Packed : public test::Property {
 protected:
  std::int64_t sequences(const AttentionRequest& packed) {
    return packed.cu_seqlens_q.shape[0] - 1;
  }

  void run_backward(const AttentionGradRequest& request) {
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
    check(attention_backward(*context_, request));
  }

  void expect_alone(const AttentionGradRequest& packed, const std::string& what) {
    for (std::int64_t b = 0; b < sequences(packed); ++b) {
      const AttentionGradRequest cut = sequence_alone(packed, b);
      const AttentionRequest alone = run_anew(cut);
      EXPECT_EQ(unequal(cut.out, alone.out), "") << what << " sequence " << b;
      EXPECT_EQ(unequal(cut.lse, alone.lse), "") << what << " sequence " << b;
    }
  }

  /// i32 [n + 1] from lengths.
  TensorView make_starts(const std::vector<std::int64_t>& lengths) {
    const TensorView view =
        tensors_.make(Dtype::kI32, {static_cast<std::int64_t>(lengths.size()) + 1});
    auto* const starts = static_cast<std::int32_t*>(view.data);
    starts[0] = 0;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      starts[b + 1] = starts[b] + static_cast<std::int32_t>(lengths[b]);
    }
    return view;
  }
};

const char* const kPacked[] = {
    "b6 hq2 sq65 skv127 d32 f32 packed total_q=200 total_kv=420 lse seed=1",
    ("b6 hq4 hkv2 sq65 d16 f32 packed rows_q=65,0,1,64,33,2 rows_kv=65,3,0,64,20,65 causal diag=br "
     "lse poison seed=2"),
    "b7 hq2 sq127 skv63 d33 bf16 packed causal diag=tl window=20,0 alibi lse seed=3",
    "b5 hq2 sq33 skv300 d64 f16 packed mask bias segments softcap=5 sinks lse poison seed=4",
    "b5 hq6 hkv3 sq17 skv129 d8 dv24 f32 packed causal diag=seq mask=B,1,Sq,Skv lse seed=5",
    "b4 hq2 sq70 skv90 d16 f32 packed lens window=9,9 diag=br lse seed=6",
    // few rows, whose keys come in splits, beside sequences of many
    "b7 hq8 hkv2 sq1 skv1600 d64 bf16 packed total_q=7 total_kv=6000 causal diag=br lse seed=7",
    "b6 hq4 hkv1 sq40 skv1300 d33 dv17 f16 packed rows_q=40,1,3,0,16,17 causal diag=br lse seed=8",
    "b3 hq1 sq600 skv600 d64 bf16 packed rows_q=600,5,130 rows_kv=600,600,130 causal diag=br lse",
    // longer than a workspace's splits: see split.h
    "b3 hq1 sq70 skv9000 d16 f32 packed rows_q=70,1,70 rows_kv=9000,9000,40 lse seed=9",
};

TEST_P(Packed, EachSequenceIsWhatItIsAlone) {
  for (const char* text : kPacked) {
    const Problem problem = problem_of(text);
    run(problem.request());
    expect_alone(problem.request(), text);
  }
}

TEST_P(Packed, IsThePaddedBatch) {
  for (const char* text : kPacked) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& packed = problem.request();
    run(packed);
    const oracle::Padded twin = oracle::Padded::make(packed).value();
    AttentionRequest padded = twin.request();
    const std::int64_t batch = sequences(packed), heads = packed.q.shape[1];
    padded.max_seqlen_q = padded.max_seqlen_kv = 0;
    padded.out =
        tensors_.make(packed.out.dtype, {batch, heads, padded.q.shape[2], packed.out.shape[3]});
    padded.lse = tensors_.make(packed.lse.dtype, {batch, heads, padded.q.shape[2]});
    // Masks were made for the extents that the case states; the padded call has the longest
    // lengths.
    for (TensorView* view : {&padded.attn_mask, &padded.attn_bias}) {
      *view = slice(slice(*view, 2, 0, padded.q.shape[2]), 3, 0, padded.k.shape[2]);
    }
    run(padded);
    const Starts starts = starts_of(packed.cu_seqlens_q, packed.q.shape[2]);
    for (std::int64_t b = 0; b < batch; ++b) {
      if (starts.length(b) == 0) continue;
      const TensorView rows = slice(packed.out, 2, starts.begin(b), starts.length(b));
      const TensorView same = slice(slice(padded.out, 0, b, 1), 2, 0, starts.length(b));
      EXPECT_EQ(unequal(rows, same), "") << text << " sequence " << b;
    }
  }
}

TEST_P(Packed, RowsBehindTheLastSequenceAreZeros) {
  const Problem problem = problem_of(
      "b3 hq4 hkv2 sq9 skv12 d24 dv16 f32 packed total_q=30 total_kv=40 rows_q=9,2,0 "
      "rows_kv=3,0,12 lse saved grad");
  const AttentionGradRequest& r = problem.request();
  run(r);
  run_backward(r);
  const auto expect_all = [](TensorView rows, double expected, const char* what) {
    conformance::for_each_element(rows, [&](const auto&, const unsigned char* element) {
      EXPECT_EQ(oracle::decode(element, rows.dtype), expected) << what;
    });
  };
  expect_all(slice(r.out, 2, 11, 19), 0.0, "out");
  expect_all(slice(r.lse, 1, 11, 19), -HUGE_VAL, "lse");
  expect_all(slice(slice(r.saved_stats, 2, 11, 19), 3, 0, 1), -HUGE_VAL, "row maximum");
  expect_all(slice(slice(r.saved_stats, 2, 11, 19), 3, 1, 1), 0.0, "row sum");
  expect_all(slice(r.d_q, 2, 11, 19), 0.0, "d_q");
  expect_all(slice(r.d_k, 2, 15, 25), 0.0, "d_k");
  expect_all(slice(r.d_v, 2, 15, 25), 0.0, "d_v");
}

TEST_P(Packed, GradientsAreThoseOfTheSequenceAlone) {
  for (const char* text :
       {"b5 hq4 hkv2 sq65 skv127 d32 f32 packed total_q=200 total_kv=420 saved lse grad seed=1",
        "b4 hq2 sq300 d64 bf16 packed rows_q=300,7,0,129 rows_kv=300,64,5,129 causal diag=br saved "
        "lse grad seed=2",
        "b6 hq2 sq20 skv30 d16 dv24 f16 packed dropout=0.25 window=7,3 diag=tl alibi softcap=5 lse "
        "grad d_lse seed=3"}) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& packed = problem.request();
    run(packed);
    run_backward(packed);
    const bool drops = packed.options.dropout_p != 0.0;  // by the sequence's index
    for (std::int64_t b = 0; b < (drops ? 1 : sequences(packed)); ++b) {
      const AttentionGradRequest cut = sequence_alone(packed, b);
      AttentionGradRequest alone = cut;
      for (TensorView* view : {&alone.d_q, &alone.d_k, &alone.d_v}) *view = tensors_.copy(*view);
      run_backward(alone);
      EXPECT_EQ(unequal(cut.d_q, alone.d_q), "") << text << " sequence " << b;
      EXPECT_EQ(unequal(cut.d_k, alone.d_k), "") << text << " sequence " << b;
      EXPECT_EQ(unequal(cut.d_v, alone.d_v), "") << text << " sequence " << b;
    }
  }
}

TEST_P(Packed, TheOrderOfSequencesChangesNothing) {
  const Problem problem = problem_of(
      "b4 hq4 hkv2 sq130 d32 f32 packed rows_q=130,3,0,50 rows_kv=130,3,0,50 causal diag=br lse");
  const AttentionGradRequest& packed = problem.request();
  run(packed);
  const Starts starts = starts_of(packed.cu_seqlens_q, packed.q.shape[2]);
  const std::vector<std::int64_t> order = {3, 2, 0, 1}, lengths = {50, 0, 130, 3};
  AttentionRequest other = packed;
  other.cu_seqlens_q = other.cu_seqlens_kv = make_starts(lengths);
  for (TensorView* view : {&other.q, &other.k, &other.v, &other.out, &other.lse}) {
    *view = tensors_.copy(*view);
  }
  std::int64_t to = 0;
  for (const std::int64_t b : order) {
    const auto move = [&](const TensorView& from, const TensorView& into) {
      const TensorView source = slice(from, 2, starts.begin(b), starts.length(b));
      const TensorView target = slice(into, 2, to, starts.length(b));
      std::vector<unsigned char> bytes;
      const auto size = static_cast<std::size_t>(size_of(from.dtype));
      conformance::for_each_element(source, [&](const auto&, const unsigned char* element) {
        bytes.insert(bytes.end(), element, element + size);
      });
      const unsigned char* next = bytes.data();
      conformance::for_each_element(target, [&](const auto&, unsigned char* element) {
        std::memcpy(element, next, size);
        next += size;
      });
    };
    move(packed.q, other.q);
    move(packed.k, other.k);
    move(packed.v, other.v);
    to += starts.length(b);
  }
  run(other);
  to = 0;
  for (const std::int64_t b : order) {
    const std::int64_t length = starts.length(b);
    EXPECT_EQ(
        unequal(slice(packed.out, 2, starts.begin(b), length), slice(other.out, 2, to, length)), "")
        << b;
    EXPECT_EQ(
        unequal(slice(packed.lse, 1, starts.begin(b), length), slice(other.lse, 1, to, length)), "")
        << b;
    to += length;
  }
}

// Tasks are counted for each sequence: one long sequence beside many short ones.
TEST_P(Packed, ManyShortSequencesBesideALongOne) {
  std::string rows = "700";
  for (int b = 1; b < 60; ++b) rows += "," + std::to_string(b % 7);
  const Problem problem = problem_of("b60 hq2 sq700 d16 f32 packed rows_q=" + rows +
                                     " rows_kv=" + rows + " total_q=900 total_kv=900 lse");
  run(problem.request());
  expect_alone(problem.request(), "many");
}

TEST_P(Packed, ThreadsChangeNoBit) {
  const Problem problem = problem_of(kPacked[1]);
  const AttentionRequest& request = problem.request();
  run(request);
  const auto one = test::make_context(GetParam().isa, 1);
  AttentionRequest serial = request;
  tensors_.renew_outputs(&serial);
  test::run_forced(*one, serial, GetParam());
  EXPECT_EQ(unequal(request.out, serial.out), "");
}

// A plan of larger extents runs a smaller call, whose longest length is its own.
TEST_P(Packed, APlanOfLongerSequencesRunsShorterOnes) {
  const Problem large = problem_of("b9 hq2 sq300 d32 f32 packed total_q=900 total_kv=900 lse");
  const Problem small = problem_of("b3 hq2 sq70 d32 f32 packed total_q=100 total_kv=100 lse");
  const Plan made = test::plan_forced(*context_, large.request(), GetParam());
  run(small.request());
  AttentionRequest other = small.request();
  tensors_.renew_outputs(&other);
  std::vector<unsigned char> memory(static_cast<std::size_t>(made.workspace_bytes()) + 64);
  auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  at = (at + 63) / 64 * 64;
  Launch launch;
  launch.workspace = {reinterpret_cast<void*>(at),
                      static_cast<std::size_t>(made.workspace_bytes())};
  ASSERT_EQ(execute(made, other, launch).to_string(), "ok");
  EXPECT_EQ(unequal(small.request().out, other.out), "");
}

// attention() reads the longest lengths from cu_seqlens in the host's memory.
TEST_P(Packed, OneCallNeedsNoLongestLengths) {
  const Problem problem = problem_of(kPacked[0]);
  run(problem.request());
  AttentionRequest other = problem.request();
  other.max_seqlen_q = other.max_seqlen_kv = 0;
  tensors_.renew_outputs(&other);
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  ASSERT_EQ(attention(*context_, other, policy).to_string(), "ok");
  EXPECT_EQ(unequal(problem.request().out, other.out), "");
}

REGARD_INSTANTIATE_PROPERTIES(Packed);

}  // namespace
}  // namespace regard
