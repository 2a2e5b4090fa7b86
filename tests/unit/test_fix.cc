#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "regard/case.h"
#include "regard/selection.h"

namespace regard {
namespace {

using Op = Fix::Op;

AttentionParams params_of(const char* text) { return parse_case(text).value().params; }

constexpr const char* kEverything =
    "b2 hq8 hkv4 sq16 skv12 d64 dv32 bf16 packed paged page_size=4 num_pages=9 append rotary=8 "
    "hadamard "
    "score=score*r0[h] mask=kv_idx%2==0 callback tree block_mask cache_batch_idx cache_leftpad "
    "descales=head kv=i8 v=f8e4m3 scales=token "
    "channel_scales causal "
    "diag=br window=3,0 softcap=3 alibi "
    "mask=B,H,Sq,Skv bias=B,1,Sq,Skv bias_dtype=bf16 lens segments sinks dropout=0.5 lse "
    "scores=probs saved grad d_lse delta";

TEST(ApplyFix, ClearsEveryFeatureWithWhatBelongsToIt) {
  int cleared = 0;
  for (const char* text :
       {kEverything, "b2 sq4 skv8 d8 causal diag=3", "sq4 d8 window=1,5",
        "b2 sq4 skv8 d8 causal diag=seq", "sq4 skv8 d8 bf16 kv=u4 v=i8",
        "sq4 skv200 d160 f8e4m3 scales=128x128 scales_q future_scales quantized_probs amax",
        "sq4 skv8 d64 f8e4m3 scales=1x32", "sq4 skv8 d64 f8e4m3 scales=1x128"}) {
    const AttentionParams before = params_of(text);
    for (int i = 0; i < kFeatureCount; ++i) {
      const Feature feature = static_cast<Feature>(i);
      if (!before.features.has(feature)) continue;
      AttentionParams after = before;
      Policy policy;
      const Status status = apply_fix({Op::kClear, to_string(feature), ""}, &after, &policy);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_FALSE(after.features.has(feature)) << to_string(feature);
      AttentionParams again = after;
      canonicalize(again);
      EXPECT_EQ(again, after) << "canonical after " << to_string(feature);
      EXPECT_TRUE(validate(after, "test").ok())
          << to_string(feature) << ": " << validate(after, "test").message();
      EXPECT_EQ(policy, Policy{});
      ++cleared;
    }
  }
  EXPECT_GE(cleared, kFeatureCount - 1);
  AttentionParams p = params_of(kEverything);
  Policy policy;
  ASSERT_TRUE(apply_fix({Op::kClear, "attn_bias", ""}, &p, &policy).ok());
  EXPECT_EQ(p.bias_dims, 0);
  EXPECT_EQ(p.dtype_bias, Dtype::kF32);
  ASSERT_TRUE(apply_fix({Op::kClear, "gqa", ""}, &p, &policy).ok());
  EXPECT_EQ(p.num_heads_kv, 8);
  ASSERT_TRUE(apply_fix({Op::kClear, "head_dims_differ", ""}, &p, &policy).ok());
  EXPECT_EQ(p.head_dim_v, 64);
  ASSERT_TRUE(apply_fix({Op::kClear, "seqlen_q_greater_kv", ""}, &p, &policy).ok());
  EXPECT_EQ(p.seqlen_q, 12);
}

TEST(ApplyFix, WithoutTheRelationNoLengthOfKeysIsData) {
  Policy policy;
  for (const char* words :
       {"b2 sq8 skv9 d4 lens", "b2 sq9 skv8 d4 lens_kv=1,2", "b2 sq8 d4 packed"}) {
    AttentionParams p = params_of(words);
    ASSERT_TRUE(apply_fix({Op::kClear, "seqlen_q_greater_kv", ""}, &p, &policy).ok()) << words;
    EXPECT_FALSE(p.features.has(Feature::kSeqlenQGreaterKv)) << words;
  }
}

TEST(ApplyFix, NonFiniteBehindMaskIsThePolicys) {
  AttentionParams p;
  Policy policy;
  ASSERT_TRUE(apply_fix({Op::kClear, "non_finite_behind_mask", ""}, &p, &policy).ok());
  EXPECT_EQ(policy.assume_finite, true);
  EXPECT_EQ(p, AttentionParams{});
}

TEST(ApplyFix, SetsFieldsOfEveryType) {
  AttentionParams p = params_of("hq4 sq16 skv32 d64 causal diag=br");
  Policy policy;
  const auto set = [&](const char* field, const char* value) {
    const Status status = apply_fix({Op::kSet, field, value}, &p, &policy);
    EXPECT_TRUE(status.ok()) << field << ": " << status.message();
  };
  set("dtype_q", "bf16");
  set("head_dim_qk", "96");
  set("layout_k", "strided");
  set("diagonal", "top_left");
  set("softcap", "2.5");
  set("scores_kind", "probs");
  set("device", "cuda:1");
  set("window_left", "7");
  set("lse", "");
  EXPECT_EQ(p.dtype_q, Dtype::kBf16);
  EXPECT_EQ(p.head_dim_qk, 96);
  EXPECT_TRUE(p.features.has(Feature::kHeadDimsDiffer));
  EXPECT_EQ(p.layout_k, Layout::kStrided);
  EXPECT_EQ(p.diagonal, Diagonal::kTopLeft);
  EXPECT_TRUE(p.features.has(Feature::kSoftcap));
  EXPECT_EQ(p.scores_kind, ScoresKind::kProbs);
  EXPECT_EQ(p.device, (Device{DeviceType::kCuda, 1}));
  EXPECT_TRUE(p.features.has(Feature::kWindowLeft));
  EXPECT_TRUE(p.features.has(Feature::kLse));
  set("features", "sinks,alibi");
  EXPECT_TRUE(p.features.has(Feature::kAlibi));
  EXPECT_FALSE(p.features.has(Feature::kLse));
}

TEST(ApplyFix, SetsAllDtypesAndABiasOfQsOwnFollows) {
  AttentionParams p = params_of("sq16 d64 bf16 bias bias_dtype=bf16");
  Policy policy;
  ASSERT_TRUE(apply_fix({Op::kSet, "dtype", "f16"}, &p, &policy).ok());
  EXPECT_EQ(p, params_of("sq16 d64 f16 bias bias_dtype=f16"));
  ASSERT_TRUE(apply_fix({Op::kSet, "dtype", "f32,i8,bf16"}, &p, &policy).ok());
  EXPECT_EQ(p, params_of("sq16 d64 f32 kv=i8 out=bf16 bias"));
  EXPECT_FALSE(apply_fix({Op::kSet, "dtype", "f32,i8"}, &p, &policy).ok());
  ASSERT_TRUE(apply_fix({Op::kSet, "dtype", "bf16"}, &p, &policy).ok());
  ASSERT_TRUE(apply_fix({Op::kSet, "dtype", "f8e4m3"}, &p, &policy).ok());
  EXPECT_EQ(p, params_of("sq16 d64 f8e4m3 out=bf16 bias bias_dtype=f32"));
}

TEST(ApplyFix, AtMostIsAMinimum) {
  AttentionParams p = params_of("sq16 d512");
  Policy policy;
  ASSERT_TRUE(apply_fix({Op::kAtMost, "head_dim_qk", "256"}, &p, &policy).ok());
  EXPECT_EQ(p.head_dim_qk, 256);
  ASSERT_TRUE(apply_fix({Op::kAtMost, "head_dim_qk", "300"}, &p, &policy).ok());
  EXPECT_EQ(p.head_dim_qk, 256);
}

TEST(ApplyFix, MoreAlignmentPadsDenseRows) {
  for (const char* text : {"hq2 sq16 d3", "hq1 sq16 d3", "hq2 sq16 d3 layout=bshd"}) {
    AttentionParams p = params_of(text);
    ASSERT_EQ(p.align_v_log2, 2);
    Policy policy;
    ASSERT_TRUE(apply_fix({Op::kSet, "align_v_log2", "4"}, &p, &policy).ok());
    EXPECT_EQ(p.align_v_log2, 4) << text;
    EXPECT_EQ(p.align_k_log2, 2) << text;
  }
}

TEST(ApplyFix, ChangesThePolicy) {
  AttentionParams p;
  Policy policy;
  policy.only = std::vector<BackendRef>{{BackendId::kFlash}};
  policy.deny = {{BackendId::kMath}, {BackendId::kCustom, "mine"}};
  policy.require = Determinism::kBatchInvariant;
  policy.max_error = 1e-9;
  policy.max_workspace_bytes = 5;
  policy.on_fallback = OnFallback::kError;
  policy.assume_finite = true;
  const auto apply = [&](Op op, const char* field, const char* value) {
    return apply_fix({op, field, value}, &p, &policy);
  };
  ASSERT_TRUE(apply(Op::kClear, "policy.deny", "math").ok());
  EXPECT_EQ(policy.deny, (std::vector<BackendRef>{{BackendId::kCustom, "mine"}}));
  ASSERT_TRUE(apply(Op::kClear, "policy.deny", "custom:mine").ok());
  EXPECT_TRUE(policy.deny.empty());
  for (const char* field :
       {"policy.only", "policy.require", "policy.max_error", "policy.max_workspace_bytes",
        "policy.on_fallback", "policy.assume_finite"}) {
    ASSERT_TRUE(apply(Op::kClear, field, "").ok()) << field;
  }
  EXPECT_EQ(policy, Policy{});
  EXPECT_TRUE(apply(Op::kSet, "policy.only", "math,flash").ok());
  EXPECT_TRUE(apply(Op::kSet, "policy.require", "run_to_run").ok());
  EXPECT_TRUE(apply(Op::kSet, "policy.max_error", "0.5").ok());
  EXPECT_TRUE(apply(Op::kSet, "policy.max_workspace_bytes", "64").ok());
  EXPECT_TRUE(apply(Op::kSet, "policy.on_fallback", "warn").ok());
  EXPECT_TRUE(apply(Op::kSet, "policy.assume_finite", "true").ok());
  EXPECT_EQ(policy.only->size(), 2u);
  EXPECT_EQ(policy.max_workspace_bytes, 64);
  EXPECT_EQ(policy.on_fallback, OnFallback::kWarn);
  EXPECT_EQ(p, AttentionParams{});
}

TEST(ApplyFix, RefusesWhatItCannotRead) {
  const Fix bad[] = {
      {Op::kNone, "", ""},
      {Op::kSet, "no_such_field", "3"},
      {Op::kClear, "head_dim_qk", ""},
      {Op::kClear, "policy.nothing", ""},
      {Op::kSet, "policy.max_error", "much"},
      {Op::kSet, "dtype_q", "f33"},
      {Op::kSet, "head_dim_qk", "64x"},
      {Op::kSet, "layout_q", "?"},
      {Op::kAtMost, "layout_q", "bhsd"},
      {Op::kSet, "features", "sinks,nothing"},
      {Op::kSet, "causal", ""},  // follows from window_right
  };
  for (const Fix& fix : bad) {
    AttentionParams p;
    Policy policy;
    const Status status = apply_fix(fix, &p, &policy);
    EXPECT_FALSE(status.ok()) << to_string(fix);
    EXPECT_EQ(status.message().rfind("[apply_fix] ", 0), 0u) << status.message();
    EXPECT_EQ(p, AttentionParams{}) << to_string(fix);
    EXPECT_EQ(policy, Policy{}) << to_string(fix);
  }
}

TEST(FixText, IsAnInstruction) {
  struct Row {
    Fix fix;
    const char* text;
  };
  const Row rows[] = {
      {{}, ""},
      {{Op::kSet, "dtype_q", "bf16"}, "set dtype_q to bf16"},
      {{Op::kSet, "dtype", "bf16,i8,f32"}, "set dtype to q=bf16 kv=i8 out=f32"},
      {{Op::kSet, "lse", ""}, "add lse"},
      {{Op::kSet, "align_k_log2", "4"}, "align k to 16 bytes"},
      {{Op::kSet, "align_out_log2", "a"}, "align out to 2^a bytes"},
      {{Op::kClear, "attn_bias", ""}, "remove attn_bias"},
      {{Op::kClear, "gqa", ""}, "give k and v as many heads as q"},
      {{Op::kClear, "seqlen_q_greater_kv", ""}, "reduce seqlen_q to seqlen_kv"},
      {{Op::kClear, "non_finite_behind_mask", ""}, "set assume_finite to true"},
      {{Op::kAtMost, "head_dim_qk", "256"}, "reduce head_dim_qk to 256"},
      {{Op::kClear, "policy.deny", "math"}, "remove math from deny"},
      {{Op::kSet, "policy.only", "math,flash"}, "set only to math,flash"},
      {{Op::kSet, "policy.max_error", "4.0e-03"}, "raise max_error to 4.0e-03"},
      {{Op::kSet, "policy.max_workspace_bytes", "64"}, "raise max_workspace_bytes to 64"},
      {{Op::kSet, "policy.require", "run_to_run"}, "lower require to run_to_run"},
  };
  for (const Row& row : rows) EXPECT_EQ(to_string(row.fix), row.text);
}

struct SentenceRow {
  Refusal refusal;
  const char* sentence;
};

TEST(RefusalText, IsASentenceWithTheFix) {
  using Code = RefusalCode;
  const SentenceRow rows[] = {
      {{Code::kNotBuilt, "configure with -DREGARD_CUDA=ON", "", {}},
       "is not part of this build: configure with -DREGARD_CUDA=ON"},
      {{Code::kNotBuilt, "", "", {}}, "is not part of this build"},
      {{Code::kDevice, "a CUDA device", "a case on the CPU", {}},
       "needs a CUDA device, got a case on the CPU"},
      {{Code::kIsa, "avx2", "scalar", {}}, "needs at least avx2, got scalar"},
      {{Code::kDenied, "math,flash", "flash", {Op::kClear, "policy.deny", "flash"}},
       "is listed in deny (math,flash); remove it"},
      {{Code::kNotInOnly, "flash", "math", {Op::kSet, "policy.only", "flash,math"}},
       "is not listed in only (flash); add it"},
      {{Code::kNotInOnly, "", "math", {Op::kSet, "policy.only", "math"}},
       "is not listed in only, which is empty; add it"},
      {{Code::kDirection, "forward only", "needs_grad", {Op::kClear, "needs_grad", ""}},
       "computes no gradients; remove needs_grad"},
      {{Code::kDtype, "f32, bf16", "f64", {Op::kSet, "dtype", "f32"}},
       "does not support f64; set dtype to f32"},
      {{Code::kFeature, "", "scores_out", {Op::kClear, "scores_out", ""}},
       "does not support scores_out; remove it"},
      {{Code::kFeature, "", "gqa", {Op::kClear, "gqa", ""}, true},
       "does not support gqa in a backward; give k and v as many heads as q"},
      {{Code::kFeature, "only with f8e4m3", "descales", {Op::kClear, "descales", ""}},
       "supports descales only with f8e4m3; remove it"},
      {{Code::kHeadDimQk, "1 to 256", "512", {Op::kAtMost, "head_dim_qk", "256"}, true},
       "supports head_dim_qk 1 to 256 in a backward, got 512; reduce it to 256"},
      {{Code::kHeadDimV, "8 to 256 in multiples of 8", "13", {Op::kSet, "head_dim_v", "16"}},
       "supports head_dim_v 8 to 256 in multiples of 8, got 13; set it to 16"},
      {{Code::kLayout, "bhsd or bshd", "strided", {Op::kSet, "layout_k", "bhsd"}},
       "supports layout_k bhsd or bshd, got strided; set it to bhsd"},
      {{Code::kAlignment, "16 bytes", "4 bytes", {Op::kSet, "align_v_log2", "4"}},
       "needs v aligned to 16 bytes, got 4 bytes; align it to 16 bytes"},
      {{Code::kDeterminism, "batch_invariant", "none", {Op::kSet, "policy.require", "none"}},
       "has determinism none, require is batch_invariant; lower it to none"},
      {{Code::kErrorBound, "1.0e-03", "4.0e-03", {Op::kSet, "policy.max_error", "4.0e-03"}},
       "has a stated error of 4.0e-03, max_error allows 1.0e-03; raise it to 4.0e-03"},
      {{Code::kWorkspace, "307200", "448512", {Op::kSet, "policy.max_workspace_bytes", "448512"}},
       "needs 448512 bytes of workspace, max_workspace_bytes allows 307200; raise it to 448512"},
      {{Code::kWorkspace, "9223372036854775807 bytes", "more", {}},
       "needs more than 9223372036854775807 bytes of workspace"},
      {{Code::kLearned, "was refused by its library", "no engine", {}},
       "was refused by its library: no engine"},
      {{Code::kCustom, "needs two sequences", "the case has 3", {Op::kSet, "batch", "2"}},
       "needs two sequences: the case has 3; set batch to 2"},
      {{Code::kCustom, "needs two sequences", "", {}}, "needs two sequences"},
  };
  std::set<RefusalCode> seen;
  for (const SentenceRow& row : rows) {
    EXPECT_EQ(to_string(row.refusal), row.sentence);
    seen.insert(row.refusal.code);
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(RefusalCode::kCount));
}

TEST(RefusalText, NamesABackendThatRunsTheCaseAsItStands) {
  const BackendRef math{BackendId::kMath, ""};
  const Refusal feature{RefusalCode::kFeature, "", "scores_out", {Op::kClear, "scores_out", ""}};
  EXPECT_EQ(to_string(feature, math), "does not support scores_out; remove it, or use math");
  EXPECT_EQ(to_string(Refusal{RefusalCode::kIsa, "avx2", "scalar", {}}, math),
            "needs at least avx2, got scalar; use math");
  // The policy is the obstacle, which other backends do not remove.
  const Refusal workspace{
      RefusalCode::kWorkspace, "1", "64", {Op::kSet, "policy.max_workspace_bytes", "64"}};
  EXPECT_EQ(to_string(workspace, math), to_string(workspace));
}

TEST(RefusalText, CodesHaveNames) {
  std::set<std::string> names;
  for (int i = 0; i < static_cast<int>(RefusalCode::kCount); ++i) {
    names.insert(to_string(static_cast<RefusalCode>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(RefusalCode::kCount));
  EXPECT_EQ(names.count("?"), 0u);
}

TEST(FeatureText, NamesAreReadBack) {
  std::set<std::string> names;
  for (int i = 0; i < kFeatureCount; ++i) {
    const Feature feature = static_cast<Feature>(i);
    EXPECT_TRUE(names.insert(to_string(feature)).second);
    EXPECT_EQ(parse_feature(to_string(feature)), feature);
  }
  EXPECT_FALSE(parse_feature("nothing").has_value());
  EXPECT_STREQ(to_string(Feature::kCount), "?");
}

}  // namespace
}  // namespace regard
