#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/rows.cuh"
#include "oracle/number.h"
#include "oracle/rules.h"
#include "problem/problem.h"
#include "regard/dropout.h"
#include "tests/cuda/schedules.h"

// What must not change a bit, and what must be refused: orders of blocks and threads, grids that go
// round, repeated heads, padding, lengths out of range, dropout's own mask.

namespace regard {
namespace {

using conformance::Problem;
using cuda_test::Order;
using cuda_test::schedule;
using cuda_test::Schedules;

TEST_F(Schedules, ChangeNoBits) {
  for (const char* text :
       {"b2 hq4 hkv2 sq70 skv130 d40 dv72 f32 causal diag=br dropout=0.2 saved grad seed=1",
        "b2 hq2 sq65 skv129 d136 bf16 lens bias=1,H,1,Skv sinks softcap=4 saved grad seed=2",
        "b2 hq6 hkv2 sq2 skv1500 d40 f16 lens dropout=0.2 sinks lse seed=3",
        "b2 hq4 hkv2 sq70 skv130 d72 f16 lens causal diag=br lse seed=4"}) {
    Problem problem = problem_of(text);
    for (const cuda_test::HostBackend& backend : serving(problem)) {
      schedule() = {};
      const std::vector<unsigned char> first = bytes_of(backend, problem);
      const std::int64_t blocks = schedule().counts.blocks;
      for (const Order order : {Order::kReversed, Order::kShuffled}) {
        schedule() = {order, 1 << 30, {}};
        EXPECT_EQ(bytes_of(backend, problem), first) << text << ", " << name_of(backend);
        EXPECT_EQ(schedule().counts.blocks, blocks);
      }
      // Three blocks do the work of all: what a grid larger than a device's limit comes to.
      schedule() = {Order::kForward, 3, {}};
      EXPECT_EQ(bytes_of(backend, problem), first) << text << ", " << name_of(backend);
      EXPECT_LT(schedule().counts.blocks, blocks);
    }
  }
}

TEST_F(Schedules, AGroupIsItsKeysAndValuesRepeated) {
  for (const char* dtype : {"f32", "f16"}) {
    const Problem problem =
        problem_of(std::string("b2 hq6 hkv2 sq45 skv70 d32 dv24 causal diag=br lse ") + dtype);
    const std::int64_t bytes = size_of(problem.request().k.dtype);
    for (const cuda_test::HostBackend& backend : serving(problem)) {
      AttentionRequest grouped = problem.request();
      tensors_.renew_outputs(&grouped);
      run(backend, grouped);
      AttentionRequest repeated = problem.request();
      for (TensorView* view : {&repeated.k, &repeated.v}) {
        const TensorView from = *view;
        TensorView all = tensors_.make(from.dtype, {2, 6, 70, from.shape[3]});
        for (std::int64_t h = 0; h < 6; ++h) {
          const TensorView to = test::slice(all, 1, h, 1);
          conformance::for_each_element(
              to, [&](const std::int64_t(&at)[4], unsigned char* element) {
                const std::int64_t index = at[0] * from.strides[0] + h / 3 * from.strides[1] +
                                           at[2] * from.strides[2] + at[3] * from.strides[3];
                std::memcpy(element, static_cast<char*>(from.data) + index * bytes, bytes);
              });
        }
        *view = all;
      }
      tensors_.renew_outputs(&repeated);
      run(backend, repeated);
      EXPECT_EQ(test::unequal(grouped.out, repeated.out), "") << name_of(backend);
      EXPECT_EQ(test::unequal(grouped.lse, repeated.lse), "") << name_of(backend);
    }
  }
}

// An lse of more keys than a call has, with the out of them all: delta is not of the call's keys.
TEST_F(Schedules, BackwardOfSplitsTakesTheMergedLse) {
  const Problem problem = problem_of("b1 hq2 sq9 skv96 d16 bf16 lse grad");
  for (const cuda_test::HostBackend& backend : serving(problem)) {
    AttentionGradRequest whole = problem.request();
    whole.d_lse = whole.delta = {};
    run(backend, whole);
    whole.saved = {};
    whole.saved.kind = SavedContext::Kind::kLse;
    whole.saved.stats = whole.lse;
    run_backward(backend, whole);
    for (const std::int64_t begin : {0, 48}) {
      AttentionGradRequest part = whole;
      for (TensorView* view : {&part.k, &part.v, &part.d_k, &part.d_v}) {
        *view = test::slice(*view, 2, begin, 48);
      }
      part.d_k = tensors_.copy(part.d_k);
      part.d_v = tensors_.copy(part.d_v);
      run_backward(backend, part);
      EXPECT_LT(test::largest_difference(part.d_k, test::slice(whole.d_k, 2, begin, 48)), 0.03)
          << name_of(backend);
      EXPECT_EQ(test::unequal(part.d_v, test::slice(whole.d_v, 2, begin, 48)), "");
    }
  }
}

TEST_F(Schedules, PaddingChangesNoBits) {
  // Keys behind each length, as lengths or not there at all.
  for (const char* dtype : {"f32", "bf16"}) {
    const Problem problem =
        problem_of(std::string("b1 hq2 sq65 skv130 d40 lens_kv=77 lse poison ") + dtype);
    for (const cuda_test::HostBackend& backend : serving(problem)) {
      AttentionRequest padded = problem.request();
      tensors_.renew_outputs(&padded);
      run(backend, padded);
      AttentionRequest cut = problem.request();
      cut.k = test::slice(cut.k, 2, 0, 77);
      cut.v = test::slice(cut.v, 2, 0, 77);
      cut.seqlens_kv = {};
      tensors_.renew_outputs(&cut);
      run(backend, cut);
      EXPECT_EQ(test::unequal(padded.out, cut.out), "") << name_of(backend);
      EXPECT_EQ(test::unequal(padded.lse, cut.lse), "") << name_of(backend);
    }
  }
}

// What few rows see comes in parts, by a rule of the sequence's own length.
TEST_F(Schedules, SplitsDependOnNoOtherSequence) {
  for (const char* dtype : {"f32", "bf16"}) {
    const Problem problem = problem_of(
        std::string("b2 hq4 hkv1 sq2 skv2100 d40 lens_kv=1200,2100 lse poison ") + dtype);
    for (const cuda_test::HostBackend& backend : serving(problem)) {
      AttentionRequest both = problem.request();
      tensors_.renew_outputs(&both);
      run(backend, both);
      AttentionRequest one = problem.request();
      for (TensorView* view : {&one.q, &one.k, &one.v}) *view = test::slice(*view, 0, 0, 1);
      for (TensorView* view : {&one.k, &one.v}) *view = test::slice(*view, 2, 0, 1200);
      one.out = test::slice(one.out, 0, 0, 1);
      one.lse = test::slice(one.lse, 0, 0, 1);
      one.seqlens_kv = {};
      tensors_.renew_outputs(&one);
      schedule() = {};
      run(backend, one);
      EXPECT_EQ(test::unequal(test::slice(both.out, 0, 0, 1), one.out), "") << name_of(backend);
      EXPECT_EQ(test::unequal(test::slice(both.lse, 0, 0, 1), one.lse), "") << name_of(backend);
      if (backend.ref == backends_.front().ref) continue;
      // A block for each of three parts, and one for each of eight rows.
      EXPECT_EQ(schedule().counts.launches, 2);
      EXPECT_EQ(schedule().counts.blocks, 3 + 8);
    }
  }
}

// A plan for many rows has no workspace for parts; few rows under it are not split.
TEST_F(Schedules, DecodeRowsUnderALargerPlan) {
  for (const std::string rest : {" skv1100 d16 f32 lse", " skv1100 d16 f32 rotary=16 positions lse",
                                 " skv1100 d64 f16 rotary=64 positions lse"}) {
    const Problem problem = problem_of("b1 hq2 sq1" + rest);
    const bool has_rotary = problem.request().rotary_cos.present();
    for (const cuda_test::HostBackend& backend : serving(problem, 1)) {
      const std::string kernel = plan_of(backend, problem.request()).kernel().kernel;
      if (kernel.find("_split_") == std::string::npos) continue;
      AttentionRequest split = problem.request(), whole = problem.request();
      tensors_.renew_outputs(&split);
      tensors_.renew_outputs(&whole);
      run(backend, split);
      const Problem larger = problem_of("b1 hq2 sq40" + rest);
      const Plan plan = plan_of(backend, larger.request());
      EXPECT_EQ(plan.workspace_bytes() > 0, has_rotary) << rest;
      std::vector<unsigned char> memory;
      schedule() = {};
      const Status status = execute(plan, whole, launch(plan.workspace_bytes(), &memory));
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(schedule().counts.launches, has_rotary ? 2 : 1) << rest << ", " << name_of(backend);
      const double bound = problem.request().out.dtype == Dtype::kF32 ? 1e-6 : 1e-3;
      EXPECT_LT(test::largest_difference(split.out, whole.out), bound);
    }
  }
}

/// The mask that says of all keys what tree_mask says of the last ones.
TensorView mask_of_tree(const AttentionRequest& r, test::Tensors* tensors) {
  const TensorView& tree = r.tree_mask;
  const std::int64_t columns = tree.shape[2];
  const TensorView mask =
      tensors->make(Dtype::kBool, {r.q.shape[0], 1, r.q.shape[2], r.k.shape[2]});
  conformance::for_each_element(mask, [&](const std::int64_t(&at)[4], unsigned char* element) {
    const auto length = static_cast<std::int64_t>(oracle::element(r.seqlens_kv, at[0]));
    const std::int64_t column = at[3] - (length - columns);
    const bool has_column = column >= 0 && column < columns;
    *element = !has_column || oracle::element(tree, at[0], at[2], column) != 0.0 ? 1 : 0;
  });
  return mask;
}

TEST_F(Schedules, ATreeHasTheBitsOfItsMask) {
  for (const char* text : {
           "b2 hq4 hkv2 sq7 skv1100 d64 bf16 tree=7 causal diag=br lens_kv=1100,500 lse poison",
           "b3 hq2 sq70 skv200 d96 f16 tree=66 lens_kv=200,33,0 softcap=3 lse poison",
           "b2 hq2 hkv1 sq40 skv130 d40 f32 tree=50 window=90,0 diag=br lens_kv=130,70 sinks lse",
           "b2 hq2 sq9 skv33 d24 f64 tree=9 lens_kv=33,4 scale=-0.3 lse poison",
       }) {
    const Problem problem = problem_of(text);
    for (const cuda_test::HostBackend& backend : serving(problem, 1)) {
      AttentionRequest tree = problem.request();
      tensors_.renew_outputs(&tree);
      run(backend, tree);
      AttentionRequest masked = problem.request();
      masked.tree_mask = {};
      masked.attn_mask = mask_of_tree(tree, &tensors_);
      tensors_.renew_outputs(&masked);
      run(backend, masked);
      EXPECT_EQ(test::unequal(tree.out, masked.out), "") << text << ", " << name_of(backend);
      EXPECT_EQ(test::unequal(tree.lse, masked.lse), "") << text << ", " << name_of(backend);
    }
  }
}

// On a device nobody has read the lengths before the kernels do.
TEST(Lengths, AreHeldToTheExtents) {
  regard::problem::Problem p;
  p.seqlen_q = 10;
  p.seqlen_kv = 20;
  std::int32_t lens_q[] = {-3, 11, 4}, lens_kv[] = {1000000, -1, 20};
  p.lens_q = {reinterpret_cast<char*>(lens_q), {1}, {}, problem::Element::kF32, true};
  p.lens_kv = {reinterpret_cast<char*>(lens_kv), {1}, {}, problem::Element::kF32, true};
  const std::int64_t expected[][2] = {{0, 20}, {10, 0}, {4, 20}};
  for (std::int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(problem::sequence_of(p, b).len_q, expected[b][0]);
    EXPECT_EQ(problem::sequence_of(p, b).band.len_kv, expected[b][1]);
  }
}

TEST(Lengths, OfPackedSequencesAreHeldToTheTensor) {
  regard::problem::Problem p;
  p.seqlen_q = p.seqlen_kv = 10;
  p.total_q = p.total_kv = 30;
  // Two that fit, one that is longer than the call's longest, one backwards, one past the end.
  std::int32_t starts[] = {0, 7, 7, 28, 20, 31};
  p.q.starts = p.k.starts = {reinterpret_cast<const char*>(starts), false};
  const std::int64_t expected[] = {7, 0, 10, 0, 0};
  for (std::int64_t b = 0; b < 5; ++b) {
    EXPECT_EQ(problem::sequence_of(p, b).rows_q, expected[b]) << b;
    EXPECT_EQ(problem::sequence_of(p, b).band.len_kv, expected[b]) << b;
  }
  std::int64_t behind[] = {-5, 2};
  p.q.starts = {reinterpret_cast<const char*>(behind), true};
  EXPECT_EQ(problem::sequence_of(p, 0).rows_q, 0);
}

// A page that is not there is none, whatever its id.
TEST(Pages, AreHeldToThoseThatExist) {
  char data[3 * 4 * 2] = {};  // of one kv head, 4 rows, one element
  const std::int32_t ids[] = {2, -1, 3, 0};
  cuda::PagedRows rows{problem::Element::kBf16, 1, data, 2, 8, {ids, 1, 4, 3}, {1, 14}};
  const std::int64_t expected[] = {18, 20, 22, -1, -1, -1, -1, -1, -1, -1, -1, 0, 2, 4, -1};
  for (std::int64_t r = 0; r < 15; ++r) {
    const char* const row = cuda::PagedRows::row(rows, r);
    EXPECT_EQ(row == nullptr ? -1 : row - data, expected[r]) << r;
  }
}

// Probabilities of 1 and equal values: sums that tensor cores cut off would fall short by 2e-5.
TEST_F(Schedules, LongSumsDoNotDrift) {
  for (const char* dtype : {"bf16", "f16"}) {
    const Problem problem =
        problem_of(std::string("b1 hq1 sq2 skv8192 d16 seed=6 out=f32 ") + dtype);
    const AttentionRequest& r = problem.request();
    fill(r.q, 0.0);
    fill(r.v, 0.7);
    const double value = first_of(r.v);
    for (const cuda_test::HostBackend& backend : serving(problem)) {
      if (!backend.is_flash) continue;
      run(backend, r);
      EXPECT_NEAR(first_of(r.out), value, 4e-6 * value) << dtype << ", " << name_of(backend);
    }
  }
}

// Products of one sign: scores that tensor cores cut off 32 times would be some 20 units too small.
TEST_F(Schedules, LongScoresAreNotCutOff) {
  for (const char* dtype : {"bf16", "f16"}) {
    const Problem problem =
        problem_of(std::string("b1 hq1 sq1 skv1 d256 lse scale=1 out=f32 ") + dtype);
    const AttentionRequest& r = problem.request();
    std::mt19937_64 random(7);
    for (const TensorView* view : {&r.q, &r.k}) {
      conformance::for_each_element(*view, [&](const std::int64_t(&)[4], unsigned char* element) {
        const double x = std::uniform_real_distribution<double>(-4.0, 0.0)(random);
        oracle::encode(std::exp2(x), element, view->dtype);
      });
    }
    double score = 0.0;
    const auto bytes = static_cast<std::int64_t>(size_of(r.q.dtype));
    for (std::int64_t d = 0; d < 256; ++d) {
      const auto at = [&](const TensorView& view) {
        const auto* const data = static_cast<const unsigned char*>(view.data) + d * bytes;
        return static_cast<double>(oracle::decode(data, view.dtype));
      };
      score += at(r.q) * at(r.k);
    }
    for (const cuda_test::HostBackend& backend : serving(problem)) {
      if (!backend.is_flash) continue;
      run(backend, r);
      EXPECT_NEAR(first_of(r.lse), score, 0x1p-22 * score) << dtype << ", " << name_of(backend);
    }
  }
}

// A probability of 2e-9 is none of f16's numbers, and still a weight.
TEST_F(Schedules, SmallProbabilitiesCount) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const char* features : {"scale=0.125", "scale=0.125 causal diag=br"}) {
      const Problem problem =
          problem_of(std::string("b1 hq1 sq1 skv2 d8 out=f32 ") + features + " " + dtype);
      const AttentionRequest& r = problem.request();
      fill(r.q, 1.0);
      fill(r.k, -10.0);
      fill(test::slice(r.k, 2, 0, 1), 10.0);
      fill(r.v, 1.0);
      fill(test::slice(r.v, 2, 0, 1), 0.0);
      for (const cuda_test::HostBackend& backend : serving(problem)) {
        run(backend, r);
        EXPECT_NEAR(first_of(r.out), std::exp(-20.0), 1e-2 * std::exp(-20.0)) << name_of(backend);
      }
      // One that rounding would make 0: it is not, and times infinity it is infinite.
      fill(r.k, -20.0);
      fill(test::slice(r.k, 2, 0, 1), 20.0);
      fill(test::slice(r.v, 2, 1, 1), std::numeric_limits<double>::infinity());
      for (const cuda_test::HostBackend& backend : serving(problem)) {
        run(backend, r);
        EXPECT_EQ(first_of(r.out), std::numeric_limits<double>::infinity()) << name_of(backend);
      }
    }
  }
}

// Gradients of scores of some 1e-7, which are none of f16's numbers, make gradients that are.
TEST_F(Schedules, SmallGradientsCount) {
  const Problem problem = problem_of("b1 hq1 sq16 skv2048 d64 f16 saved grad scale=64 seed=9");
  AttentionGradRequest r = problem.request();
  conformance::for_each_element(r.d_out, [&](const std::int64_t(&)[4], unsigned char* element) {
    const auto value = static_cast<double>(oracle::decode(element, r.d_out.dtype));
    oracle::encode(value * 0x1p-14, element, r.d_out.dtype);
  });
  r.d_lse = r.delta = {};
  fill(r.q, 0x1p-12);
  std::vector<double> of_f32;
  for (const cuda_test::HostBackend& backend : serving(problem)) {
    run(backend, r);
    run_backward(backend, r);
    std::vector<double> d_q;
    conformance::for_each_element(r.d_q, [&](const std::int64_t(&)[4], unsigned char* element) {
      d_q.push_back(static_cast<double>(oracle::decode(element, r.d_q.dtype)));
    });
    if (of_f32.empty()) of_f32 = d_q;
    double largest = 0.0;
    for (const double x : of_f32) largest = std::max(largest, std::abs(x));
    EXPECT_GT(largest, 0.0);
    for (std::size_t n = 0; n < d_q.size(); ++n) {
      EXPECT_NEAR(d_q[n], of_f32[n], 0.01 * largest) << name_of(backend);
    }
  }
}

// Passing over blocks of rows finds what a look at each of them finds.
TEST(RowBlocks, NextIsTheFirstThatSees) {
  std::mt19937_64 random(5);
  const auto draw = [&](std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random);
  };
  int skipped = 0;
  for (int round = 0; round < 3000; ++round) {
    regard::problem::Problem p;
    p.group_size = draw(1, 9);
    p.seqlen_q = draw(0, 400);
    problem::Sequence s;
    s.rows_q = p.seqlen_q;
    s.len_q = draw(0, p.seqlen_q);
    s.band.len_kv = draw(0, 600);
    s.band.shift = round % 50 == 0 ? std::numeric_limits<std::int64_t>::min() : draw(-300, 300);
    s.band.window_left = draw(-1, 200);
    s.band.window_right = draw(-1, 50);
    const semantics::Tile tile = semantics::tile_at(draw(0, 4), 128, s.band.len_kv);
    const std::int64_t blocks = cuda::count_row_blocks<32>(p);
    const std::int64_t from = round % 4 == 0 ? draw(0, blocks) : 0;
    std::int64_t expected = from;
    while (expected < blocks &&
           cuda::classify<128>(
               cuda::reach_of(p, cuda::group_rows<32>(p, cuda::queries_of(s), 0, expected), s),
               tile) == semantics::TileClass::kEmpty) {
      ++expected;
    }
    EXPECT_EQ((cuda::next_row_block<32, 128>(p, s, 0, tile, from)), expected) << round;
    skipped += expected > from + 1 && expected < blocks ? 1 : 0;
  }
  EXPECT_GT(skipped, 100);
}

// Scores of 0 make all probabilities 1/n, and V = identity shows them: out[i][j] > 0 iff kept.
TEST_F(Schedules, DropoutDropsWhatTheMaskSays) {
  for (const char* text :
       {"b2 hq4 hkv2 sq37 skv90 d16 dv90 f32 dropout=0.3 seed=3",
        "b3 hq2 sq70 skv130 d16 dv130 bf16 dropout=0.5 lens causal diag=br seed=4",
        "b2 hq2 sq33 skv72 d16 dv72 f16 dropout=0.1 diag=-20 window=30,5 seed=5"}) {
    const Problem problem = problem_of(text);
    for (const cuda_test::HostBackend& backend : serving(problem)) {
      const AttentionRequest& r = problem.request();
      conformance::for_each_element(r.q, [&](const std::int64_t(&)[4], unsigned char* element) {
        oracle::encode(0.0, element, r.q.dtype);
      });
      conformance::for_each_element(r.v, [&](const std::int64_t(&at)[4], unsigned char* element) {
        oracle::encode(at[2] == at[3] ? 1.0 : 0.0, element, r.v.dtype);
      });
      run(backend, r);
      const AttentionParams params = describe(r).value();
      const TensorView kept = tensors_.make(
          Dtype::kBool, {params.batch, params.num_heads_q, params.seqlen_q, params.seqlen_kv});
      ASSERT_TRUE(dropout_mask(params, r, kept).ok());
      std::int64_t shown = 0, dropped = 0;
      conformance::for_each_element(r.out, [&](const std::int64_t(&at)[4], unsigned char* element) {
        const std::int64_t index =
            at[0] * kept.strides[0] + at[1] * kept.strides[1] + at[2] * kept.strides[2] + at[3];
        const bool is_kept = static_cast<unsigned char*>(kept.data)[index] != 0;
        const bool is_shown = oracle::decode(element, r.out.dtype) > 0.0L;
        EXPECT_LE(is_shown, is_kept) << text;
        shown += is_shown ? 1 : 0;
        dropped += is_kept ? 0 : 1;
      });
      EXPECT_GT(shown, 500);
      EXPECT_GT(dropped, 100);
      if (params.window_right == kUnlimited && !params.features.has(Feature::kSeqlensKv)) {
        EXPECT_EQ(shown + dropped, kept.strides[0] * params.batch) << text;
      }
    }
  }
}

}  // namespace
}  // namespace regard
