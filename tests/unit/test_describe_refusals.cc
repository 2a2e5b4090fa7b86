#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "tests/unit/described_request.h"

// Every rule of describe: what breaks it, and the words that answer.

namespace regard {
namespace {

using namespace described;

struct BadRequest {
  const char* name;
  void (*spoil)(AttentionRequest&);
  const char* fragment;
  StatusCode code = StatusCode::kInvalidArgument;
};

class DescribeRefuses : public testing::TestWithParam<BadRequest> {};

TEST_P(DescribeRefuses, WithValueAndExpectation) {
  AttentionRequest r = full_request();
  GetParam().spoil(r);
  const Expected<AttentionParams> p = describe(r);
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.status().code(), GetParam().code) << p.status().message();
  EXPECT_EQ(p.status().message().rfind("[describe] ", 0), 0u) << p.status().message();
  EXPECT_NE(p.status().message().find(GetParam().fragment), std::string::npos)
      << p.status().message();
}

using R = AttentionRequest;

/// Packed, without what has other shapes then.
R* pack(R* r) {
  r->q.shape[0] = r->k.shape[0] = r->v.shape[0] = r->out.shape[0] = 1;
  r->cu_seqlens_q = tensor(15, Dtype::kI32, {3});
  r->cu_seqlens_kv = tensor(16, Dtype::kI64, {3});
  r->options.scores_kind = ScoresKind::kNone;
  r->scores_out = r->lse = r->saved_stats = r->segment_ids_q = r->segment_ids_kv = {};
  return r;
}

const BadRequest kBad[] = {
    // rank and presence
    {"q_absent", [](R& r) { r.q = {}; }, "q (absent) must have rank 4, [B,Hq,Sq,Dqk]"},
    {"out_absent", [](R& r) { r.out = {}; }, "out (absent) must have rank 4"},
    {"k_rank",
     [](R& r) {
       r.k = tensor(1, Dtype::kF32, {kHkv, kSkv, kD});
     },
     "rank of k (3) must be 4, [B,Hkv,Skv,Dqk]"},
    {"v_rank_5",
     [](R& r) {
       r.v = tensor(1, Dtype::kF32, {1, 1, 1, 1, 1});
     },
     "rank of v (5) must be 4"},
    {"mask_rank_negative", [](R& r) { r.attn_mask.rank = -2; },
     "rank of attn_mask (-2) must be 1..4"},
    {"sinks_rank_least", [](R& r) { r.sinks.rank = std::numeric_limits<std::int32_t>::min(); },
     "rank of sinks (2147483648) must be 1..4"},
    {"mask_rank",
     [](R& r) {
       r.attn_mask = tensor(7, Dtype::kBool, {kSq, kSkv});
     },
     "rank of attn_mask (2) must be 4, [1|B,1|Hq,1|Sq,1|Skv]"},
    {"lse_rank",
     [](R& r) {
       r.lse = tensor(4, Dtype::kF32, {kB, kHq, kSq, 1});
     },
     "rank of lse (4) must be 3, [B,Hq,Sq]"},
    // shapes
    {"batch_k",
     [](R& r) {
       r.k = tensor(1, Dtype::kF32, {3, kHkv, kSkv, kD});
     },
     "batch of k (3) must be q's, 2"},
    {"batch_v",
     [](R& r) {
       r.v = tensor(2, Dtype::kF32, {1, kHkv, kSkv, kDv});
     },
     "batch of v (1) must be k's, 2"},
    {"batch_out",
     [](R& r) {
       r.out = tensor(3, Dtype::kF32, {1, kHq, kSq, kDv});
     },
     "batch of out (1) must be q's, 2"},
    {"heads_v",
     [](R& r) {
       r.v = tensor(2, Dtype::kF32, {kB, 2, kSkv, kDv});
     },
     "num_heads of v (2) must be k's, 4"},
    {"heads_out",
     [](R& r) {
       r.out = tensor(3, Dtype::kF32, {kB, 4, kSq, kDv});
     },
     "num_heads of out (4) must be q's, 8"},
    {"heads_not_divisible",
     [](R& r) {
       r.k = tensor(1, Dtype::kF32, {kB, 3, kSkv, kD});
       r.v = tensor(2, Dtype::kF32, {kB, 3, kSkv, kDv});
     },
     "num_heads_kv (3) must divide num_heads_q (8)"},
    {"seqlen_v",
     [](R& r) {
       r.v = tensor(2, Dtype::kF32, {kB, kHkv, 9, kDv});
     },
     "seqlen of v (9) must be k's, 10"},
    {"seqlen_out",
     [](R& r) {
       r.out = tensor(3, Dtype::kF32, {kB, kHq, 5, kDv});
     },
     "seqlen of out (5) must be q's, 6"},
    {"head_dim_k",
     [](R& r) {
       r.k = tensor(1, Dtype::kF32, {kB, kHkv, kSkv, 15});
     },
     "head_dim of k (15) must be q's, 16"},
    {"head_dim_out",
     [](R& r) {
       r.out = tensor(3, Dtype::kF32, {kB, kHq, kSq, kD});
     },
     "head_dim of out (16) must be v's, 32"},
    {"lse_shape",
     [](R& r) {
       r.lse = tensor(4, Dtype::kF32, {kB, kHq, 7});
     },
     "shape of lse ([2,8,7]) must be [2,8,6], [B,Hq,Sq]"},
    {"saved_shape",
     [](R& r) {
       r.saved_stats = tensor(5, Dtype::kF32, {kB, kHq, kSq, 1});
     },
     "shape of saved_stats ([2,8,6,1]) must be [2,8,6,2]"},
    {"scores_shape",
     [](R& r) {
       r.scores_out = tensor(6, Dtype::kF32, {kB, kHq, kSkv, kSq});
     },
     "shape of scores_out ([2,8,10,6]) must be [2,8,6,10]"},
    {"mask_shape",
     [](R& r) {
       r.attn_mask = tensor(7, Dtype::kBool, {2, 1, 3, 10});
     },
     "shape of attn_mask ([2,1,3,10]) must broadcast to [2,8,6,10]"},
    {"bias_shape",
     [](R& r) {
       r.attn_bias = tensor(8, Dtype::kF32, {2, 4, 6, 10});
     },
     "shape of attn_bias ([2,4,6,10]) must broadcast to [2,8,6,10]"},
    {"mask_empty",
     [](R& r) {
       r.attn_mask = tensor(7, Dtype::kBool, {2, 1, 0, 10});
     },
     "shape of attn_mask ([2,1,0,10]) must broadcast"},
    {"slopes_shape", [](R& r) { r.alibi_slopes = tensor(9, Dtype::kF32, {kHkv}); },
     "shape of alibi_slopes ([4]) must be [8]"},
    {"slopes_batch",
     [](R& r) {
       r.alibi_slopes = tensor(9, Dtype::kF32, {3, kHq});
     },
     "shape of alibi_slopes ([3,8]) must be [2,8]"},
    {"sinks_shape", [](R& r) { r.sinks = tensor(10, Dtype::kF32, {1}); },
     "shape of sinks ([1]) must be [8], [Hq]"},
    {"segments_shape",
     [](R& r) {
       r.segment_ids_kv = tensor(12, Dtype::kI32, {kB, kSq});
     },
     "shape of segment_ids_kv ([2,6]) must be [2,10], [B,Skv]"},
    {"segments_one", [](R& r) { r.segment_ids_kv = {}; },
     "segment_ids_kv (absent) must be given with segment_ids_q: both or neither"},
    {"segments_other", [](R& r) { r.segment_ids_q = {}; },
     "segment_ids_q (absent) must be given with segment_ids_kv"},
    {"seqlens_shape", [](R& r) { r.seqlens_q = tensor(13, Dtype::kI32, {kB + 1}); },
     "shape of seqlens_q ([3]) must be [2], [B]"},
    // strides, extents, sizes
    {"last_stride", [](R& r) { r.q.strides[3] = 2; }, "last stride of q (2) must be 1"},
    {"last_stride_out", [](R& r) { r.out.strides[3] = 0; }, "last stride of out (0) must be 1"},
    {"last_stride_v", [](R& r) { std::swap(r.v.strides[2], r.v.strides[3]); },
     "last stride of v (32) must be 1"},
    {"extent", [](R& r) { r.v.shape[0] = -2; }, "extent 0 of v (-2) must be >= 0"},
    {"stride", [](R& r) { r.k.strides[1] = -160; }, "stride 1 of k (-160) must be >= 0"},
    {"mask_stride", [](R& r) { r.attn_mask.strides[3] = -1; },
     "stride 3 of attn_mask (-1) must be >= 0"},
    {"size_overflow", [](R& r) { r.q.shape[0] = kMax; }, "must fit 64 bits", StatusCode::kOverflow},
    {"stride_overflow", [](R& r) { r.k.strides[0] = kMax / 2; }, "k f32[2,4,10,16] strides (46116",
     StatusCode::kOverflow},
    {"address_overflow",
     [](R& r) {
       r.k.strides[0] = kMax / 4 - 4000;
       r.v.strides[0] = kMax;
     },
     "must fit 64 bits", StatusCode::kOverflow},
    {"product_overflow_behind_zero",
     [](R& r) {
       for (TensorView* view : {&r.q, &r.k, &r.v, &r.out}) {
         view->shape[0] = 0;
         view->shape[1] = view->shape[2] = std::int64_t{1} << 40;
       }
     },
     "must fit 64 bits", StatusCode::kOverflow},
    // dtypes
    {"dtype", [](R& r) { r.q.dtype = static_cast<Dtype>(42); },
     "dtype of q (42) must be a known dtype, 0..11"},
    {"dtype_lse", [](R& r) { r.lse.dtype = Dtype::kF64; }, "dtype of lse (f64) must be f32"},
    {"dtype_lse_f64",
     [](R& r) {
       r.q = tensor(0, Dtype::kF64, {kB, kHq, kSq, kD});
     },
     "dtype of lse (f32) must be f64"},
    {"dtype_mask", [](R& r) { r.attn_mask.dtype = Dtype::kI8; },
     "dtype of attn_mask (i8) must be bool or u8"},
    {"dtype_bias", [](R& r) { r.attn_bias.dtype = Dtype::kF16; },
     "dtype of attn_bias (f16) must be f32 or f64"},
    {"dtype_slopes", [](R& r) { r.alibi_slopes.dtype = Dtype::kI32; },
     "dtype of alibi_slopes (i32) must be f32"},
    {"dtype_sinks", [](R& r) { r.sinks.dtype = Dtype::kBf16; },
     "dtype of sinks (bf16) must be f32"},
    {"dtype_segments", [](R& r) { r.segment_ids_q.dtype = Dtype::kF32; },
     "dtype of segment_ids_q (f32) must be i32"},
    {"dtype_seqlens", [](R& r) { r.seqlens_kv = tensor(14, Dtype::kI64, {kB}); },
     "dtype of seqlens_kv (i64) must be i32"},
    {"dtype_unknown_extra", [](R& r) { r.sinks.dtype = static_cast<Dtype>(99); },
     "dtype of sinks (99)"},
    // data
    {"null", [](R& r) { r.k.data = nullptr; },
     "data of k (null) must hold its [2,4,10,16] elements"},
    {"null_mask", [](R& r) { r.attn_mask.data = nullptr; }, "data of attn_mask (null)"},
    {"misaligned", [](R& r) { r.v.data = arena(2 * kSlot + 2); },
     "must be aligned to 4 bytes, for its elements are f32"},
    {"device",
     [](R& r) {
       r.k.device = {DeviceType::kCuda, 1};
     },
     "device of k (cuda:1) must be q's, cpu:0"},
    {"device_lens",
     [](R& r) {
       r.seqlens_q.device = {DeviceType::kCuda, 0};
     },
     "device of seqlens_q (cuda:0) must be q's, cpu:0"},
    // overlaps
    {"out_on_q", [](R& r) { r.out.data = r.q.data; }, "out f32[2,8,6,32]"},
    {"out_on_v_tail",
     [](R& r) { r.out.data = arena(2 * kSlot + 4 * (kB * kHkv * kSkv * kDv - 1)); },
     "must not overlap v f32[2,4,10,32]"},
    {"out_on_mask", [](R& r) { r.attn_mask.data = arena(3 * kSlot + 100); },
     "must not overlap attn_mask bool[2,1,6,10]"},
    {"lse_on_lens", [](R& r) { r.lse.data = r.seqlens_q.data; }, "must not overlap seqlens_q"},
    {"lse_on_out", [](R& r) { r.lse.data = r.out.data; }, "must not overlap lse"},
    {"scores_on_saved", [](R& r) { r.saved_stats.data = r.scores_out.data; },
     "saved_stats f32[2,8,6,2] strides (96,12,2,1) must not overlap scores_out"},
    {"out_broadcast", [](R& r) { r.out.strides[1] = 0; }, "must not overlap itself"},
    {"lse_broadcast", [](R& r) { r.lse.strides[0] = 1; }, "must not overlap itself"},
    // options
    {"scale_nan", [](R& r) { r.options.softmax_scale = std::nan(""); },
     "softmax_scale (nan) must be finite"},
    {"scale_inf", [](R& r) { r.options.softmax_scale = HUGE_VAL; }, "softmax_scale (inf)"},
    {"softcap", [](R& r) { r.options.softcap = -3.0; }, "softcap (-3) must be finite and >= 0"},
    {"window_left", [](R& r) { r.options.window_left = -5; }, "window_left (-5) must be >= -1"},
    {"window_right", [](R& r) { r.options.window_right = -5; }, "window_right (-5) must be >= -1"},
    {"causal_and_window", [](R& r) { r.options.window_right = 3; },
     "window_right (3) must be -1 or 0 with is_causal"},
    {"dropout", [](R& r) { r.options.dropout_p = 1.0; }, "dropout_p (1) must be in [0, 1)"},
    {"dropout_tiny", [](R& r) { r.options.dropout_p = 1e-9; }, "dropout_p (1e-09) must keep"},
    {"diagonal_unnamed", [](R& r) { r.options.diagonal = Diagonal::kUnnamed; },
     "diagonal (unnamed) must be named"},
    {"diagonal_value", [](R& r) { r.options.diagonal = static_cast<Diagonal>(7); },
     "diagonal (7) must be 0..3"},
    {"diagonal_offset_ignored", [](R& r) { r.diagonal_offset = 4; },
     "diagonal (bottom_right) must be offset where diagonal_offset (4) is given"},
    {"diagonal_offsets_ignored", [](R& r) { r.diagonal_offsets = tensor(15, Dtype::kI64, {kB}); },
     "diagonal (bottom_right) must be offset where diagonal_offsets are given"},
    {"diagonal_offset_ignored_by_dropout",
     [](R& r) {
       r.options.is_causal = false;
       r.options.window_left = r.options.window_right = kUnlimited;
       r.options.diagonal = Diagonal::kUnnamed;
       r.alibi_slopes = {};
       r.options.dropout_p = 0.5;
       r.diagonal_offset = 3;
     },
     "diagonal (unnamed) must be offset where diagonal_offset (3) is given"},
    {"diagonal_offsets_twice",
     [](R& r) {
       r.options.diagonal = Diagonal::kOffset;
       r.diagonal_offsets = tensor(15, Dtype::kI64, {kB});
       r.diagonal_offset = 4;
     },
     "diagonal_offset (4) must be 0 where diagonal_offsets are given"},
    {"diagonal_offsets_dtype",
     [](R& r) {
       r.options.diagonal = Diagonal::kOffset;
       r.diagonal_offsets = tensor(15, Dtype::kI32, {kB});
     },
     "dtype of diagonal_offsets (i32) must be i64"},
    {"scores_unsaid", [](R& r) { r.options.scores_kind = ScoresKind::kNone; },
     "scores_kind (none) must be scaled, edited or probs where scores_out is given"},
    {"scores_absent", [](R& r) { r.scores_out = {}; },
     "scores_out (absent) must be given with scores_kind edited"},
    {"page_size", [](R& r) { r.options.page_size = 16; }, "page_size (16) must be 0 without"},
    // fields of later features
    {"cu_one", [](R& r) { r.cu_seqlens_kv = tensor(15, Dtype::kI32, {3}); },
     "cu_seqlens_q (absent) must be given with cu_seqlens_kv"},
    {"cu_other", [](R& r) { r.cu_seqlens_q = tensor(15, Dtype::kI32, {3}); },
     "cu_seqlens_kv (absent) must be given"},
    {"cu_batch", [](R& r) { r.cu_seqlens_q = r.cu_seqlens_kv = tensor(15, Dtype::kI32, {3}); },
     "batch of packed q (2) must be a packed tensor's, 1"},
    {"cu_empty", [](R& r) { r.cu_seqlens_q = r.cu_seqlens_kv = tensor(15, Dtype::kI32, {0}); },
     "shape of cu_seqlens_q ([0]) must be [B+1]"},
    {"cu_dtype", [](R& r) { pack(&r)->cu_seqlens_q.dtype = Dtype::kU8; },
     "dtype of cu_seqlens_q (u8) must be i32 or i64"},
    {"cu_stride", [](R& r) { pack(&r)->cu_seqlens_kv.strides[0] = 2; },
     "last stride of cu_seqlens_kv (2) must be 1"},
    {"cu_lengths", [](R& r) { pack(&r)->cu_seqlens_kv = tensor(16, Dtype::kI32, {4}); },
     "shape of cu_seqlens_kv ([4]) must be [3], [B+1]"},
    {"max_seqlen_alone", [](R& r) { r.max_seqlen_kv = 3; },
     "max_seqlen_kv (3) must be 0 without cu_seqlens_q"},
    {"max_seqlen_negative", [](R& r) { pack(&r)->max_seqlen_q = -1; },
     "max_seqlen_q (-1) must be >= 0"},
    {"packed_lse", [](R& r) { pack(&r)->lse = full_request().lse; },
     "rank of lse (3) must be 2, [Hq,total_q]"},
    {"packed_segments",
     [](R& r) {
       pack(&r);
       r.segment_ids_q = r.segment_ids_kv = full_request().segment_ids_q;
     },
     "rank of segment_ids_q (2) must be 1, [total_q]"},
    {"pages_without_lens",
     [](R& r) {
       r.seqlens_kv = {};
       r.page_table = tensor(15, Dtype::kI32, {kB, 1});
       r.scores_out = r.attn_mask = r.attn_bias = r.segment_ids_q = r.segment_ids_kv = {};
     },
     "seqlens_kv (absent) must be given with page_table"},
    {"k_new_alone",
     [](R& r) {
       r.k_new = tensor(15, Dtype::kF32, {kB, kHkv, 1, kD});
     },
     "v_new (absent) must be given with k_new"},
    {"rotary_alone",
     [](R& r) {
       r.rotary_sin = tensor(15, Dtype::kF32, {4, 4});
     },
     "rotary_cos (absent) must be given with rotary_sin"},
    {"rotary_wide",
     [](R& r) {
       r.rotary_sin = r.rotary_cos = tensor(15, Dtype::kF32, {4, 9});
       r.positions = tensor(16, Dtype::kI32, {kB, kSq});
     },
     "rotary_dim (18) must be at most head_dim_qk (16)"},
    {"cache_idx", [](R& r) { r.cache_batch_idx = tensor(15, Dtype::kI64, {kB}); },
     "dtype of cache_batch_idx (i64) must be i32"},
    {"descale", [](R& r) { r.descale_v = tensor(15, Dtype::kF64, {1}); },
     "dtype of descale_v (f64) must be f32"},
    {"descale_of_query_heads",
     [](R& r) {
       r.descale_q = tensor(15, Dtype::kF32, {kB, kHq});
     },
     "shape of descale_q ([2,8]) must be [2,4], [B,Hkv] or [1]"},
    {"descale_of_batch", [](R& r) { r.descale_k = tensor(15, Dtype::kF32, {kB}); },
     "shape of descale_k ([2]) must be [1], or [B,Hkv]"},
    {"bias_of_8_bits",
     [](R& r) {
       r.q.dtype = r.k.dtype = r.v.dtype = Dtype::kF8E4M3;
       r.attn_bias = tensor(8, Dtype::kF8E4M3, {1, kHq, 1, kSkv});
     },
     "dtype of attn_bias (f8e4m3) must be f32"},
};
INSTANTIATE_TEST_SUITE_P(All, DescribeRefuses, testing::ValuesIn(kBad),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace regard
