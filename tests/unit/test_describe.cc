#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/describe/describe.h"
#include "tests/unit/described_request.h"

namespace regard {
namespace {

using namespace described;

TEST(Describe, PlainRequest) {
  const AttentionParams p = describe(good_request()).value();
  AttentionParams expected;
  expected.batch = kB;
  expected.num_heads_q = kHq;
  expected.num_heads_kv = kHkv;
  expected.seqlen_q = kSq;
  expected.seqlen_kv = kSkv;
  expected.head_dim_qk = kD;
  expected.head_dim_v = kDv;
  expected.softmax_scale = 0.25;
  expected.features = {Feature::kGqa, Feature::kHeadDimsDiffer};
  EXPECT_EQ(p, expected) << to_json(p);
}

TEST(Describe, FullRequest) {
  const AttentionParams p = describe(full_request()).value();
  EXPECT_EQ(p.features,
            (FeatureSet{Feature::kGqa, Feature::kHeadDimsDiffer, Feature::kCausal,
                        Feature::kWindowLeft, Feature::kDiagonalBottomRight, Feature::kSoftcap,
                        Feature::kDropout, Feature::kAttnMask, Feature::kAttnBias, Feature::kAlibi,
                        Feature::kSinks, Feature::kSegmentIds, Feature::kSeqlensQ,
                        Feature::kSeqlensKv, Feature::kLse, Feature::kScoresOut,
                        Feature::kSavedStats, Feature::kNeedsGrad, Feature::kSeqlenQGreaterKv}));
  EXPECT_EQ(p.mask_dims, 1 | 4 | 8);
  EXPECT_EQ(p.bias_dims, 2 | 8);
  EXPECT_EQ(p.window_left, 3);
  EXPECT_EQ(p.window_right, 0);
  EXPECT_EQ(p.diagonal, Diagonal::kBottomRight);
  EXPECT_EQ(p.softmax_scale, 0.5);
  EXPECT_EQ(p.scores_kind, ScoresKind::kEdited);
}

TEST(Describe, OptionsOfDescribeTheSame) {
  std::vector<AttentionRequest> requests{good_request(), full_request()};
  requests.push_back(full_request());
  requests.back().options.diagonal = Diagonal::kOffset;
  requests.back().diagonal_offset = -3;
  requests.push_back(full_request());
  requests.back().options.diagonal = Diagonal::kOffset;
  requests.back().diagonal_offsets = tensor(15, Dtype::kI64, {kB});
  requests.push_back(good_request());  // an offset that nothing measures from
  requests.back().options.diagonal = Diagonal::kOffset;
  requests.back().diagonal_offset = 5;
  for (const AttentionRequest& r : requests) {
    const AttentionParams p = describe(r).value();
    const Expected<AttentionParams> again = describe_buffers(r, options_of(p), "again");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(*again, p) << to_json(*again) << "\n" << to_json(p);
  }
}

TEST(Describe, Diagonals) {
  AttentionRequest r = full_request();
  r.options.diagonal = Diagonal::kOffset;
  EXPECT_TRUE(describe(r).value().features.has(Feature::kDiagonalOffset));
  r.diagonal_offsets = tensor(15, Dtype::kI64, {kB});
  const AttentionParams p = describe(r).value();
  EXPECT_TRUE(p.features.has(Feature::kDiagonalPerSequence));
  EXPECT_FALSE(p.features.has(Feature::kDiagonalOffset));
  r = good_request();  // nothing measures from it
  r.options.diagonal = Diagonal::kTopLeft;
  EXPECT_EQ(describe(r).value().diagonal, Diagonal::kUnnamed);
}

TEST(Describe, DiagonalNeedsNoNameWhereAllAgree) {
  AttentionRequest r = good_request();
  r.k = tensor(1, Dtype::kF32, {kB, kHkv, kSq, kD});
  r.v = tensor(2, Dtype::kF32, {kB, kHkv, kSq, kDv});
  r.options.is_causal = true;
  EXPECT_EQ(describe(r).value().diagonal, Diagonal::kUnnamed);
  r.seqlens_q = r.seqlens_kv = tensor(13, Dtype::kI32, {kB});
  EXPECT_EQ(describe(r).value().diagonal, Diagonal::kTopLeft) << "one view of both lengths";
  r.seqlens_kv = tensor(14, Dtype::kI32, {kB});
  EXPECT_FALSE(describe(r).ok()) << "two views, whatever they hold";
  r.seqlens_kv = {};
  EXPECT_FALSE(describe(r).ok());
}

TEST(Describe, EmptySizesAreValidAndNeedNoData) {
  for (const int which : {0, 1, 2, 3}) {
    const std::int64_t b = which == 0 ? 0 : kB, hq = which == 1 ? 0 : kHq,
                       hkv = which == 1 ? 0 : kHkv, sq = which == 2 ? 0 : kSq,
                       skv = which == 3 ? 0 : kSkv;
    AttentionRequest r;
    r.q = make_view(b * hq * sq == 0 ? nullptr : arena(0), Dtype::kF32, {b, hq, sq, kD});
    r.k = make_view(b * hkv * skv == 0 ? nullptr : arena(kSlot), Dtype::kF32, {b, hkv, skv, kD});
    r.v =
        make_view(b * hkv * skv == 0 ? nullptr : arena(2 * kSlot), Dtype::kF32, {b, hkv, skv, kD});
    r.out = make_view(b * hq * sq == 0 ? nullptr : arena(3 * kSlot), Dtype::kF32, {b, hq, sq, kD});
    const Expected<AttentionParams> p = describe(r);
    EXPECT_TRUE(p.ok()) << which << ": " << p.status().message();
  }
}

TEST(Describe, LayoutsAndAlignment) {
  AttentionRequest r = good_request();
  // BSHD: rows of one position adjacent; out padded by two elements a row.
  r.q = make_view(arena(0), Dtype::kF32, {kB, kHq, kSq, kD}, {kHq * kSq * kD, kD, kHq * kD, 1});
  r.out = make_view(arena(3 * kSlot + 4), Dtype::kF32, {kB, kHq, kSq, kDv},
                    {kHq * kSq * 34, kSq * 34, 34, 1});
  // One K/V head for all: stride 0 over heads.
  r.k = make_view(arena(kSlot), Dtype::kF32, {kB, kHkv, kSkv, kD}, {kSkv * kD, 0, kD, 1});
  const AttentionParams p = describe(r).value();
  EXPECT_EQ(p.layout_q, Layout::kBshd);
  EXPECT_EQ(p.layout_k, Layout::kBhsd);
  EXPECT_EQ(p.layout_v, Layout::kBhsd);
  EXPECT_EQ(p.layout_out, Layout::kStrided);
  EXPECT_EQ(p.align_q_log2, 4);
  EXPECT_EQ(p.align_out_log2, 2);
  EXPECT_TRUE(layout_matches(r.q, Layout::kBshd));
  EXPECT_FALSE(layout_matches(r.q, Layout::kBhsd));
  EXPECT_TRUE(layout_matches(r.q, Layout::kStrided));
}

TEST(Describe, PackedQkvMayHoldItsOutputInAFreeSlot) {
  // [B, S, 4, H, D]: q, k, v and out are slots of one tensor.
  const std::int64_t row = 4 * kHq * kD;
  AttentionRequest r;
  TensorView* views[] = {&r.q, &r.k, &r.v, &r.out};
  for (std::size_t i = 0; i < 4; ++i) {
    *views[i] = make_view(arena(i * kHq * kD * 4), Dtype::kF32, {kB, kHq, kSq, kD},
                          {kSq * row, kD, row, 1});
  }
  const Expected<AttentionParams> p = describe(r);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->layout_q, Layout::kBshd);
  r.out.data = r.v.data;
  EXPECT_FALSE(describe(r).ok());
}

TEST(Describe, InputsMayOverlap) {
  AttentionRequest r = good_request();
  r.v = r.k;  // MLA: V lies inside K
  r.v.shape[3] = 8;
  r.out = tensor(3, Dtype::kF32, {kB, kHq, kSq, 8});
  EXPECT_TRUE(describe(r).ok());
}

TEST(Describe, LaterFeaturesSetTheirBits) {
  AttentionRequest r = good_request();
  // Packed rows of three sequences.
  r.q = tensor(0, Dtype::kF32, {1, kHq, 12, kD});
  r.out = tensor(3, Dtype::kF32, {1, kHq, 12, kDv});
  r.k = tensor(1, Dtype::kF32, {1, kHkv, 20, kD});
  r.v = tensor(2, Dtype::kF32, {1, kHkv, 20, kDv});
  r.cu_seqlens_q = tensor(13, Dtype::kI32, {4});
  r.cu_seqlens_kv = tensor(14, Dtype::kI32, {4});
  r.lse = tensor(4, Dtype::kF32, {kHq, 12});
  AttentionParams p = describe(r).value();
  EXPECT_TRUE(p.features.has(Feature::kPacked));
  EXPECT_EQ(p.batch, 3);
  EXPECT_EQ(p.total_q, 12);
  EXPECT_EQ(p.total_kv, 20);

  r = good_request();
  r.k = tensor(1, Dtype::kF32, {7, kHkv, 4, kD});
  r.v = tensor(2, Dtype::kF32, {7, kHkv, 4, kDv});
  r.page_table = tensor(13, Dtype::kI32, {kB, 3});
  r.seqlens_kv = tensor(14, Dtype::kI32, {kB});
  p = describe(r).value();
  EXPECT_TRUE(p.features.has(Feature::kPaged));
  EXPECT_EQ(p.num_pages, 7);
  EXPECT_EQ(p.page_size, 4);
  EXPECT_EQ(p.seqlen_kv, 12);
  EXPECT_EQ(describe_buffers(r, options_of(p), "again").value(), p);

  r = good_request();
  r.k = tensor(1, Dtype::kF32, {5, kHkv, kSkv, kD});  // a cache of five, used by two
  r.v = tensor(2, Dtype::kF32, {5, kHkv, kSkv, kDv});
  r.cache_batch_idx = tensor(13, Dtype::kI32, {kB});
  r.seqlens_kv = tensor(10, Dtype::kI32, {kB});
  r.k_new = tensor(4, Dtype::kF32, {kB, kHkv, 1, kD});
  r.v_new = tensor(5, Dtype::kF32, {kB, kHkv, 1, kDv});
  r.rotary_cos = tensor(6, Dtype::kF32, {64, 4});
  r.rotary_sin = tensor(7, Dtype::kF32, {64, 4});
  r.block_mask = tensor(8, Dtype::kU8, {1, 1, 1, 1});
  r.options.block_size_q = kSq;
  r.options.block_size_kv = kSkv;
  r.options.mask_function = Expression::parse("kv_idx%2==0").value();
  r.descale_k = tensor(9, Dtype::kF32, {1});
  p = describe(r).value();
  for (const Feature f : {Feature::kCacheBatchIdx, Feature::kAppendKv, Feature::kRotary,
                          Feature::kBlockMask, Feature::kDescales}) {
    EXPECT_TRUE(p.features.has(f)) << to_string(f);
  }
  EXPECT_EQ(p.rotary_dim, 8);
}

TEST(Describe, DescalesAreAFeatureAndSoIsOneAHead) {
  AttentionRequest r = good_request();
  r.descale_v = tensor(9, Dtype::kF32, {1});
  AttentionParams p = describe(r).value();
  EXPECT_TRUE(p.features.has(Feature::kDescales));
  EXPECT_FALSE(p.features.has(Feature::kDescalesPerHead));
  r.descale_q = tensor(10, Dtype::kF32, {kB, kHkv});
  p = describe(r).value();
  EXPECT_TRUE(p.features.has(Feature::kDescales));
  EXPECT_TRUE(p.features.has(Feature::kDescalesPerHead));
}

TEST(Describe, NamesItsCaller) {
  const AttentionRequest r;
  EXPECT_EQ(describe_buffers(r, r.options, "execute").status().message().rfind("[execute] ", 0),
            0u);
}

TEST(Describe, StridesOfSingleExtentsDoNotMatter) {
  AttentionRequest r = good_request();
  r.q = make_view(arena(0), Dtype::kF32, {kB, kHq, 1, 1}, {kHq, 1, 1, 1});
  r.k = make_view(arena(kSlot), Dtype::kF32, {kB, kHkv, kSkv, 1}, {kHkv * kSkv, kSkv, 1, 77});
  r.v = r.k;
  r.out = make_view(arena(3 * kSlot), Dtype::kF32, {kB, kHq, 1, 1}, {kHq, 1, 999, 0});
  EXPECT_TRUE(describe(r).ok()) << describe(r).status().message();
}

// Whatever the numbers: an answer, no trap (the sanitizers watch), and params only if they are
// valid.
TEST(Describe, HostileNumbersAreJudgedNotComputedWith) {
  constexpr std::int64_t kNumbers[] = {
      -1,       0,    1,        2, 6, 16, 1 << 20, std::int64_t{1} << 31, std::int64_t{1} << 61,
      kMax - 1, kMax, -kMax - 1};
  std::mt19937_64 rng(5);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    AttentionRequest r = full_request();
    if (rng() % 2 == 0) {
      r.cu_seqlens_q = r.cu_seqlens_kv = tensor(15, Dtype::kI32, {3});
      r.q.shape[0] = r.k.shape[0] = r.v.shape[0] = r.out.shape[0] = 1;
    }
    if (rng() % 2 == 0) {
      r.page_table = tensor(16, Dtype::kI32, {kB, 1});
      r.rotary_cos = r.rotary_sin = tensor(17, Dtype::kF32, {4, 2});
      r.k_new = tensor(18, Dtype::kF32, {kB, kHkv, 1, kD});
      r.v_new = tensor(19, Dtype::kF32, {kB, kHkv, 1, kDv});
    }
    for (std::uint64_t change = rng() % 4; change > 0; --change) {
      const TensorSpec& spec = kTensors[rng() % std::size(kTensors)];
      if (spec.buffer == nullptr) continue;
      TensorView& view = r.*spec.buffer;
      const std::int64_t number = kNumbers[rng() % std::size(kNumbers)];
      switch (rng() % 6) {
        case 0: view.rank = static_cast<std::int32_t>(rng() % 7) - 1; break;
        case 1: view.dtype = static_cast<Dtype>(rng() % 13); break;
        case 2: view.data = reinterpret_cast<void*>(number); break;
        case 3: view.shape[rng() % 4] = number; break;
        case 4: view.strides[rng() % 4] = number; break;
        default: r.options.window_left = number;
      }
    }
    const Expected<AttentionParams> p = describe(r);
    if (!p) {
      ASSERT_FALSE(p.status().message().empty());
      continue;
    }
    ++accepted;
    ASSERT_TRUE(validate(*p, "test").ok()) << to_json(*p);
    ASSERT_EQ(describe_buffers(r, options_of(*p), "again").value(), *p);
    ASSERT_FALSE(to_string(*p).empty());
    (void)AttentionKey::make(*p, true).ok();
  }
  EXPECT_GT(accepted, 500);
}

TEST(Describe, IsFast) {
  const AttentionRequest plain = good_request();
  constexpr int kCalls = 20000;
  double best_ns = 1e9;
  for (int round = 0; round < 9; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(describe(plain).ok());
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    best_ns = std::min(best_ns, spent.count() / kCalls);
  }
  RecordProperty("describe_ns", std::to_string(best_ns));
  EXPECT_LT(best_ns, 20000.0) << "a bound for sanitizers; the benchmark holds the real one";
}

}  // namespace
}  // namespace regard
