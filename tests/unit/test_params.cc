#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "regard/env.h"
#include "regard/params.h"
#include "regard/policy.h"

namespace regard {
namespace {

// ---- No field may be left out of a field list. A structured binding must name every member of an
// aggregate, so a new member breaks the build here until it is added; the addresses then show that
// the list visits each member once, in order.

template <class Visit, class... Members>
void expect_all_visited(Visit visit, const Members&... members) {
  std::vector<const void*> expected{static_cast<const void*>(&members)...};
  std::vector<const void*> visited;
  std::set<std::string> names;
  visit([&](const char* name, const auto& field) {
    visited.push_back(&field);
    EXPECT_TRUE(names.insert(name).second) << name << " is visited twice";
  });
  EXPECT_EQ(visited, expected);
}

TEST(FieldList, HasEveryMemberOfAttentionParams) {
  const AttentionParams p;
  const auto& [device, dtype_q, dtype_k, dtype_v, dtype_out, dtype_bias, dtype_d_out,
               dtype_gradients, fp8_recipe, batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_kv,
               head_dim_qk, head_dim_v, total_q, total_kv, tokens_q, tokens_kv, num_pages,
               page_size, rotary_dim, layout_q, layout_k, layout_v, layout_out, align_q_log2,
               align_k_log2, align_v_log2, align_out_log2, features, mask_dims, bias_dims, diagonal,
               window_left, window_right, softmax_scale, softcap, dropout_p, scores_kind,
               score_function, mask_function, block_size_q, block_size_kv] = p;
  expect_all_visited([&](auto f) { for_each_field(p, f); }, device, dtype_q, dtype_k, dtype_v,
                     dtype_out, dtype_bias, dtype_d_out, dtype_gradients, fp8_recipe, batch,
                     num_heads_q, num_heads_kv, seqlen_q, seqlen_kv, head_dim_qk, head_dim_v,
                     total_q, total_kv, tokens_q, tokens_kv, num_pages, page_size, rotary_dim,
                     layout_q, layout_k, layout_v, layout_out, align_q_log2, align_k_log2,
                     align_v_log2, align_out_log2, features, mask_dims, bias_dims, diagonal,
                     window_left, window_right, softmax_scale, softcap, dropout_p, scores_kind,
                     score_function, mask_function, block_size_q, block_size_kv);
}

TEST(FieldList, HasEveryMemberOfEnv) {
  const Env e;
  const auto& [device, sm_version, isa, isa_available, cpu_model, l1d_bytes, l2_bytes, l3_bytes,
               concurrency, version, compiler, built_with_cuda, device_name, cuda_driver,
               cudnn_version, cuda_devices, variables, warnings] = e;
  expect_all_visited([&](auto f) { for_each_env_field(e, f); }, device, sm_version, isa,
                     isa_available, cpu_model, l1d_bytes, l2_bytes, l3_bytes, concurrency, version,
                     compiler, built_with_cuda, device_name, cuda_driver, cudnn_version,
                     cuda_devices, variables, warnings);
}

TEST(FieldList, HasEveryMemberOfPolicy) {
  const Policy p;
  const auto& [only, deny, prefer, require, max_error, max_workspace_bytes, on_fallback,
               assume_finite, self_check, self_check_deny, self_check_dir] = p;
  expect_all_visited([&](auto f) { for_each_policy_field(p, f); }, only, deny, prefer, require,
                     max_error, max_workspace_bytes, on_fallback, assume_finite, self_check,
                     self_check_deny, self_check_dir);
}

// ---- Every field is seen by ==, hash and JSON.

void change(Device& x) { x.index += 1; }
void change(FeatureSet& x) { x.set(Feature::kSinks, !x.has(Feature::kSinks)); }
void change(double& x) { x += 0.5; }
void change(std::int64_t& x) { x += 3; }
void change(std::int32_t& x) { x -= 1; }
void change(BroadcastDims& x) { x ^= 1; }
void change(Expression& x) { x = x.empty() ? Expression(1.5) : Expression(); }
template <class E>
requires(std::is_enum_v<E>) void change(E& x) {
  x = static_cast<E>(static_cast<int>(x) == 0 ? 1 : 0);
}

TEST(Params, EveryFieldChangesEqualityHashAndJson) {
  const AttentionParams base;
  int fields = 0;
  for_each_field(base, [&](const char*, const auto&) { ++fields; });
  for (int i = 0; i < fields; ++i) {
    AttentionParams changed = base;
    std::string name;
    int at = 0;
    for_each_field(changed, [&](const char* field_name, auto& field) {
      if (at++ != i) return;
      name = field_name;
      change(field);
    });
    EXPECT_FALSE(changed == base) << name;
    EXPECT_NE(hash_value(changed), hash_value(base)) << name;
    EXPECT_NE(to_json(changed), to_json(base)) << name;
    EXPECT_EQ(changed, AttentionParams(changed)) << name;
  }
}

TEST(Params, HashSpreads) {
  std::set<std::size_t> hashes;
  int count = 0;
  AttentionParams p;
  for (p.batch = 0; p.batch < 8; ++p.batch) {
    for (p.seqlen_q = 0; p.seqlen_q < 64; ++p.seqlen_q) {
      for (p.seqlen_kv = 0; p.seqlen_kv < 64; ++p.seqlen_kv) {
        hashes.insert(hash_value(p));
        ++count;
      }
    }
  }
  EXPECT_EQ(hashes.size(), static_cast<std::size_t>(count));
}

TEST(Params, JsonNamesValues) {
  AttentionParams p;
  p.dtype_q = Dtype::kBf16;
  p.window_right = 0;
  p.diagonal = Diagonal::kBottomRight;
  p.features.set(Feature::kAttnMask);
  p.mask_dims = 12;
  p.seqlen_q = p.seqlen_kv = 8;
  canonicalize(p);
  const std::string json = to_json(p);
  for (const char* fragment :
       {"\"device\":\"cpu:0\"", "\"dtype_q\":\"bf16\"", "\"diagonal\":\"bottom_right\"",
        "\"features\":[\"causal\",\"diagonal_bottom_right\",\"attn_mask\"]",
        "\"mask_dims\":\"1,1,Sq,Skv\"", "\"window_right\":0", "\"scores_kind\":\"none\""}) {
    EXPECT_NE(json.find(fragment), std::string::npos) << fragment << " in " << json;
  }
}

// ---- canonicalize

TEST(Canonicalize, DerivesFeaturesFromFields) {
  AttentionParams p;
  p.num_heads_q = 8;
  p.num_heads_kv = 2;
  p.head_dim_qk = 64;
  p.head_dim_v = 32;
  p.seqlen_q = 9;
  p.seqlen_kv = 4;
  p.window_left = 3;
  p.window_right = 2;
  p.softcap = 30;
  p.dropout_p = 0.1;
  p.scores_kind = ScoresKind::kProbs;
  p.diagonal = Diagonal::kOffset;
  canonicalize(p);
  EXPECT_EQ(p.features,
            (FeatureSet{Feature::kGqa, Feature::kHeadDimsDiffer, Feature::kSeqlenQGreaterKv,
                        Feature::kWindowLeft, Feature::kWindowRight, Feature::kSoftcap,
                        Feature::kDropout, Feature::kScoresOut, Feature::kDiagonalOffset}));
  p.features.set(Feature::kDiagonalPerSequence);
  canonicalize(p);
  EXPECT_TRUE(p.features.has(Feature::kDiagonalPerSequence));
  EXPECT_FALSE(p.features.has(Feature::kDiagonalOffset));
}

// Extents bound lengths from above; lengths that are data may be anything down to 0. What cannot be
// proven false counts as set.
TEST(Canonicalize, ARelationOfLengthsIsSetUnlessItIsProvenFalse) {
  struct Relation {
    std::int64_t seqlen_q, seqlen_kv;
    FeatureSet lengths;
    bool is_set;
  };
  const Relation relations[] = {
      {4, 4, {}, false},
      {5, 4, {}, true},
      {4, 9, {Feature::kSeqlensQ}, false},  // a query length is at most 4
      {9, 4, {Feature::kSeqlensQ}, true},
      {4, 9, {Feature::kSeqlensKv}, true},  // a key length may be 0
      {4, 4, {Feature::kSeqlensKv, Feature::kSeqlensQ}, true},
      {0, 9, {Feature::kSeqlensKv}, false},
      {4, 9, {Feature::kPacked}, true},
      {4, 4, {Feature::kPacked}, true},
      {1, 64, {Feature::kPaged, Feature::kSeqlensKv}, true},
  };
  for (const Relation& relation : relations) {
    AttentionParams p;
    p.seqlen_q = relation.seqlen_q;
    p.seqlen_kv = relation.seqlen_kv;
    p.features = relation.lengths;
    p.total_q = p.total_kv = 64;
    canonicalize(p);
    EXPECT_EQ(p.features.has(Feature::kSeqlenQGreaterKv), relation.is_set) << to_json(p);
    canonicalize(p);
    EXPECT_EQ(p.features.has(Feature::kSeqlenQGreaterKv), relation.is_set) << "not idempotent";
  }
}

TEST(Canonicalize, ClearsWhatHasNoFeature) {
  AttentionParams p;
  p.mask_dims = p.bias_dims = 15;
  p.dtype_bias = Dtype::kF64;
  p.dtype_d_out = p.dtype_gradients = Dtype::kF8E5M2;
  p.total_q = p.total_kv = p.num_pages = p.page_size = p.rotary_dim = 7;
  p.features = {Feature::kCausal, Feature::kWindowLeft, Feature::kGqa,
                Feature::kNonFiniteBehindMask};
  p.diagonal = Diagonal::kBottomRight;
  canonicalize(p);
  EXPECT_EQ(p, AttentionParams{}) << to_json(p);
}

TEST(Canonicalize, KeepsTheDiagonalWhereSomethingCountsFromIt) {
  for (const int what : {0, 1, 2, 3, 4}) {
    AttentionParams p;
    p.diagonal = Diagonal::kTopLeft;
    if (what == 0) p.window_right = 0;
    if (what == 1) p.window_left = 5;
    if (what == 2) p.features.set(Feature::kAlibi);
    if (what == 3) p.dropout_p = 0.5;
    canonicalize(p);
    EXPECT_EQ(p.diagonal, what == 4 ? Diagonal::kUnnamed : Diagonal::kTopLeft) << what;
  }
}

TEST(Canonicalize, NegativeZeroIsZero) {
  AttentionParams a;
  a.softmax_scale = 0.0;
  AttentionParams b = a;
  b.softmax_scale = b.softcap = b.dropout_p = -0.0;
  canonicalize(a);
  canonicalize(b);
  EXPECT_EQ(a, b);
}

TEST(Canonicalize, ExtentOneIsBroadcast) {
  AttentionParams p;
  p.features = {Feature::kAttnMask, Feature::kAttnBias};
  p.mask_dims = p.bias_dims = 15;
  p.batch = 1;
  p.num_heads_q = p.num_heads_kv = 2;
  p.seqlen_q = 1;
  p.seqlen_kv = 0;
  canonicalize(p);
  EXPECT_EQ(p.mask_dims, 2 | 8);
  EXPECT_EQ(p.bias_dims, 2 | 8);
}

TEST(Canonicalize, LayoutAndAlignmentSayWhatMemoryCanHold) {
  AttentionParams p;
  p.num_heads_q = p.num_heads_kv = 4;
  p.seqlen_q = 1;
  p.seqlen_kv = 5;
  p.head_dim_qk = p.head_dim_v = 3;
  p.layout_q = p.layout_k = p.layout_v = p.layout_out = Layout::kStrided;
  p.layout_v = Layout::kBhsd;
  canonicalize(p);
  EXPECT_EQ(p.layout_q, Layout::kBhsd);  // one row is in any order
  EXPECT_EQ(p.layout_k, Layout::kStrided);
  EXPECT_EQ(p.align_q_log2, 4);
  EXPECT_EQ(p.align_k_log2, 4);  // padded rows
  EXPECT_EQ(p.align_v_log2, 2);  // rows of 12 bytes
  p.align_k_log2 = 0;
  p.num_heads_q = p.num_heads_kv = 1;
  canonicalize(p);
  EXPECT_EQ(p.layout_k, Layout::kBshd);  // one head, padded rows
  EXPECT_EQ(p.align_k_log2, 2);          // an f32 lies at a multiple of 4
}

// ---- validate

struct Invalid {
  const char* name;
  void (*spoil)(AttentionParams&);
  const char* fragment;
  StatusCode code = StatusCode::kInvalidArgument;
};

class ValidateRefuses : public testing::TestWithParam<Invalid> {};

TEST_P(ValidateRefuses, WithValueAndExpectation) {
  AttentionParams p;
  p.batch = 2;
  p.num_heads_q = p.num_heads_kv = 8;
  p.seqlen_q = p.seqlen_kv = 16;
  p.head_dim_qk = p.head_dim_v = 64;
  ASSERT_TRUE(validate(p, "here").ok());
  GetParam().spoil(p);
  const Status status = validate(p, "here");
  EXPECT_EQ(status.code(), GetParam().code) << status.message();
  EXPECT_EQ(status.message().rfind("[here] ", 0), 0u) << status.message();
  EXPECT_NE(status.message().find(GetParam().fragment), std::string::npos) << status.message();
}

constexpr std::int64_t kHuge = std::int64_t{1} << 40;
const Invalid kInvalid[] = {
    {"dtype_q", [](AttentionParams& p) { p.dtype_q = static_cast<Dtype>(77); },
     "dtype_q (77) must be a known dtype"},
    {"dtype_k", [](AttentionParams& p) { p.dtype_k = static_cast<Dtype>(12); }, "dtype_k (12)"},
    {"dtype_out", [](AttentionParams& p) { p.dtype_out = static_cast<Dtype>(255); },
     "dtype_out (255)"},
    {"dtype_bias", [](AttentionParams& p) { p.dtype_bias = Dtype::kBf16; },
     "dtype of attn_bias (bf16) must be f32, f64 or q's f32"},
    {"dtype_d_out",
     [](AttentionParams& p) {
       p.dtype_q = p.dtype_k = p.dtype_v = Dtype::kF8E4M3;
       p.features.set(Feature::kNeedsGrad);
       p.dtype_d_out = Dtype::kI8;
     },
     "dtype_d_out (i8) must be f8e4m3, f8e5m2, bf16, f16 or f32 where q has 8-bit floats"},
    {"dtype_gradients", [](AttentionParams& p) { p.dtype_gradients = static_cast<Dtype>(99); },
     "dtype_gradients (99) must be a known dtype"},
    {"fp8_recipe", [](AttentionParams& p) { p.fp8_recipe = static_cast<Fp8Recipe>(9); },
     "fp8_recipe (9) must be 0..4"},
    {"device", [](AttentionParams& p) { p.device.index = -1; }, "device (cpu:-1)"},
    {"features", [](AttentionParams& p) { p.features = FeatureSet::from_bits(1ull << 60); },
     "features (1152921504606846976)"},
    {"diagonal_value", [](AttentionParams& p) { p.diagonal = static_cast<Diagonal>(9); },
     "diagonal (9) must be 0..3"},
    {"scores_kind", [](AttentionParams& p) { p.scores_kind = static_cast<ScoresKind>(9); },
     "scores_kind (9)"},
    {"layout", [](AttentionParams& p) { p.layout_v = static_cast<Layout>(3); },
     "layout_v (3) must be 0..2"},
    {"align", [](AttentionParams& p) { p.align_out_log2 = 5; }, "align_out_log2 (5) must be 0..4"},
    {"batch", [](AttentionParams& p) { p.batch = -1; }, "batch (-1) must be >= 0"},
    {"seqlen_kv", [](AttentionParams& p) { p.seqlen_kv = -3; }, "seqlen_kv (-3) must be >= 0"},
    {"page_size", [](AttentionParams& p) { p.page_size = -3; }, "page_size (-3) must be >= 0"},
    {"heads", [](AttentionParams& p) { p.num_heads_kv = 3; },
     "num_heads_kv (3) must divide num_heads_q (8)"},
    {"heads_zero", [](AttentionParams& p) { p.num_heads_kv = 0; },
     "num_heads_kv (0) must divide num_heads_q (8)"},
    {"rotary", [](AttentionParams& p) { p.rotary_dim = 65; },
     "rotary_dim (65) must be at most head_dim_qk (64)"},
    {"overflow", [](AttentionParams& p) { p.batch = p.seqlen_q = p.seqlen_kv = kHuge; },
     "its size in bytes must fit 64 bits", StatusCode::kOverflow},
    {"overflow_behind_zero",
     [](AttentionParams& p) { p.batch = p.seqlen_q = kHuge, p.seqlen_kv = 0; },
     "q of batch 1099511627776", StatusCode::kOverflow},
    {"overflow_of_kv", [](AttentionParams& p) { p.seqlen_kv = std::int64_t{1} << 56; },
     "k of batch 2", StatusCode::kOverflow},
    {"overflow_of_scores",
     [](AttentionParams& p) {
       p.seqlen_q = p.seqlen_kv = std::int64_t{1} << 30;
       p.scores_kind = ScoresKind::kProbs;
       canonicalize(p);
     },
     "scores_out of batch 2", StatusCode::kOverflow},
    {"scale_nan", [](AttentionParams& p) { p.softmax_scale = std::nan(""); },
     "softmax_scale (nan) must be finite"},
    {"scale_inf",
     [](AttentionParams& p) { p.softmax_scale = -std::numeric_limits<double>::infinity(); },
     "softmax_scale (-inf) must be finite"},
    {"softcap", [](AttentionParams& p) { p.softcap = -1.0; },
     "softcap (-1) must be finite and >= 0"},
    {"softcap_nan", [](AttentionParams& p) { p.softcap = std::nan(""); }, "softcap (nan)"},
    {"window_left", [](AttentionParams& p) { p.window_left = -2; },
     "window_left (-2) must be >= -1"},
    {"window_right", [](AttentionParams& p) { p.window_right = -7; },
     "window_right (-7) must be >= -1"},
    {"dropout_one", [](AttentionParams& p) { p.dropout_p = 1.0; },
     "dropout_p (1) must be in [0, 1)"},
    {"dropout_negative", [](AttentionParams& p) { p.dropout_p = -0.25; }, "dropout_p (-0.25)"},
    {"dropout_nan", [](AttentionParams& p) { p.dropout_p = std::nan(""); }, "dropout_p (nan)"},
    {"dropout_small", [](AttentionParams& p) { p.dropout_p = 1e-6; }, "(65536) in 1..65535"},
    {"dropout_large", [](AttentionParams& p) { p.dropout_p = 0.999999; }, "(0) in 1..65535"},
    {"diagonal_of_causal",
     [](AttentionParams& p) {
       p.window_right = 0;
       p.seqlen_q = 3;
     },
     "diagonal (unnamed) must be named (top_left, bottom_right or offset): causal measures from it "
     "and seqlen_q (3) is not seqlen_kv (16)"},
    {"diagonal_of_window",
     [](AttentionParams& p) {
       p.window_left = 4;
       p.features.set(Feature::kSeqlensKv);
     },
     "a window measures from it and lengths are given"},
    {"diagonal_of_alibi",
     [](AttentionParams& p) {
       p.features = {Feature::kAlibi, Feature::kSeqlensQ};
     },
     "ALiBi measures from it and lengths are given"},
};
INSTANTIATE_TEST_SUITE_P(All, ValidateRefuses, testing::ValuesIn(kInvalid),
                         [](const auto& test) { return test.param.name; });

TEST(Validate, AcceptsTheEdges) {
  AttentionParams p;
  p.batch = p.num_heads_q = p.num_heads_kv = p.seqlen_q = p.seqlen_kv = 0;
  p.head_dim_qk = p.head_dim_v = 0;
  EXPECT_TRUE(validate(p, "here").ok());
  p = {};
  p.num_heads_q = 0;
  p.num_heads_kv = 3;
  EXPECT_TRUE(validate(p, "here").ok());
  p = {};
  p.softmax_scale = -2.5;
  p.window_left = p.window_right = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(validate(p, "here").ok());
  p = {};
  p.dropout_p = 1.0 / 65536;  // the smallest that rounds to a threshold below 65536
  EXPECT_TRUE(validate(p, "here").ok());
  p.dropout_p = 65535.0 / 65536;
  EXPECT_TRUE(validate(p, "here").ok());
  p = {};
  p.window_right = 0;  // equal extents, no lengths: every diagonal is the same
  p.seqlen_q = p.seqlen_kv = 7;
  EXPECT_TRUE(validate(p, "here").ok());
  p = {};
  p.seqlen_q = 3;  // nothing measures from the diagonal
  p.dropout_p = 0.5;
  EXPECT_TRUE(validate(p, "here").ok());
}

TEST(Validate, DefaultScale) {
  EXPECT_DOUBLE_EQ(default_softmax_scale(64), 0.125);
  EXPECT_DOUBLE_EQ(default_softmax_scale(0), 1.0);
}

// ---- the key

TEST(ExtentClass, IsExactTo64ThenEightStepsAnOctave) {
  for (std::int64_t n = -2; n <= 64; ++n) EXPECT_EQ(extent_class(n), n);
  EXPECT_EQ(extent_class(65), 72);
  EXPECT_EQ(extent_class(72), 72);
  EXPECT_EQ(extent_class(73), 80);
  EXPECT_EQ(extent_class(128), 128);
  EXPECT_EQ(extent_class(129), 144);
  EXPECT_EQ(extent_class(4096), 4096);
  EXPECT_EQ(extent_class(4097), 4608);
  EXPECT_EQ(extent_class((std::int64_t{1} << 62) - 1), std::int64_t{1} << 62);
  EXPECT_EQ(extent_class(std::numeric_limits<std::int64_t>::max()),
            std::numeric_limits<std::int64_t>::max());
}

TEST(ExtentClass, GrowsSlowlyAndNeverShrinks) {
  std::set<std::int64_t> decode;
  std::set<std::int64_t> all;
  std::int64_t before = 0;
  for (std::int64_t n = 1; n <= 100000; ++n) {
    const std::int64_t c = extent_class(n);
    ASSERT_GE(c, n);
    ASSERT_GE(c, before);
    ASSERT_LE(c, n + n / 8) << n;
    ASSERT_EQ(extent_class(c), c) << "a class is its own";
    before = c;
    if (n >= 65 && n <= 4160) decode.insert(c);
    if (n <= 4096) all.insert(c);
  }
  EXPECT_LE(decode.size(), 64u);
  EXPECT_LE(all.size(), 112u);
}

TEST(Key, RoundsExtentsOnly) {
  AttentionParams p;
  p.batch = 65;
  p.num_heads_q = p.num_heads_kv = 97;
  p.seqlen_q = 1000;
  p.seqlen_kv = 999;
  p.head_dim_qk = p.head_dim_v = 101;
  p.features = {Feature::kPacked, Feature::kPaged};
  p.total_q = 4099;
  p.num_pages = 66;
  p.page_size = 77;
  canonicalize(p);
  ASSERT_TRUE(p.features.has(Feature::kSeqlenQGreaterKv));
  const AttentionKey key = AttentionKey::make(p, true).value();
  AttentionParams expected = p;
  expected.batch = 72;
  expected.seqlen_q = expected.seqlen_kv = 1024;
  expected.total_q = 4608;
  expected.num_pages = 72;
  EXPECT_EQ(key.params(), expected) << to_json(key.params());
  EXPECT_EQ(key.hash(), hash_value(expected));
  // The relation of before rounding stays.
  EXPECT_TRUE(key.params().features.has(Feature::kSeqlenQGreaterKv));
}

TEST(Key, RequiresFinitenessBehindMasksUnlessWaived) {
  AttentionParams p;
  p.features = {Feature::kCausal};
  const AttentionKey strict = AttentionKey::make(p, false).value();
  const AttentionKey waived = AttentionKey::make(p, true).value();
  EXPECT_TRUE(strict.params().features.has(Feature::kNonFiniteBehindMask));
  EXPECT_FALSE(waived.params().features.has(Feature::kNonFiniteBehindMask));
  EXPECT_FALSE(strict == waived);
}

TEST(Key, RequiresNothingBehindMasksThatAreNotThere) {
  AttentionParams p;
  p.features = {
      Feature::kLse,   Feature::kNeedsGrad, Feature::kDropout, Feature::kDiagonalBottomRight,
      Feature::kSinks, Feature::kGqa,       Feature::kSoftcap};
  EXPECT_EQ(AttentionKey::make(p, false).value(), AttentionKey::make(p, true).value());
  const FeatureSet harmless = p.features;
  for (const Feature feature :
       {Feature::kCausal, Feature::kWindowLeft, Feature::kWindowRight, Feature::kAttnMask,
        Feature::kAttnBias, Feature::kAlibi, Feature::kSegmentIds, Feature::kSeqlensQ,
        Feature::kSeqlensKv, Feature::kBlockMask, Feature::kPacked, Feature::kPaged}) {
    p.features = harmless.with({feature});
    const AttentionKey strict = AttentionKey::make(p, false).value();
    EXPECT_TRUE(strict.params().features.has(Feature::kNonFiniteBehindMask)) << to_string(feature);
  }
}

TEST(Key, RefusesClassesThatOverflow) {
  AttentionParams p;
  p.head_dim_qk = p.head_dim_v = 0;
  p.seqlen_kv = (std::int64_t{1} << 62) + 1;
  const Expected<AttentionKey> key = AttentionKey::make(p, true);
  EXPECT_EQ(key.status().code(), StatusCode::kOverflow);
  EXPECT_NE(key.status().message().find("seqlen_kv (4611686018427387905)"), std::string::npos);
  p.seqlen_kv = (std::int64_t{1} << 60) + 1;  // the class fits, bytes of k at the class do not
  p.head_dim_qk = p.head_dim_v = 1;
  p.dtype_k = p.dtype_v = Dtype::kF16;
  const Expected<AttentionKey> larger = AttentionKey::make(p, true);
  EXPECT_TRUE(larger.ok()) << larger.status().message();
  p.seqlen_kv = (std::int64_t{1} << 62) - 1;
  EXPECT_TRUE(validate(p, "here").ok());
  EXPECT_EQ(AttentionKey::make(p, true).status().code(), StatusCode::kOverflow);
}

}  // namespace
}  // namespace regard
