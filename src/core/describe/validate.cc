#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/extents.h"
#include "core/describe/functions.h"
#include "core/text/thrown_by.h"
#include "regard/params.h"

namespace regard {
namespace {

bool bytes_fit(std::int64_t size, std::initializer_list<std::int64_t> shape) noexcept {
  std::int64_t bytes = size;
  for (const std::int64_t extent : shape) {
    if (!checked_mul(bytes, std::max<std::int64_t>(extent, 1), &bytes)) return false;
  }
  return true;
}

bool broadcast_fits(const AttentionParams& p, BroadcastDims dims, std::int64_t size) noexcept {
  return bytes_fit(size, {(dims & 1) != 0 ? p.batch : 1, (dims & 2) != 0 ? p.num_heads_q : 1,
                          (dims & 4) != 0 ? p.seqlen_q : 1, (dims & 8) != 0 ? p.seqlen_kv : 1});
}

Status check_types(const AttentionParams& p, const char* where) {
  struct Typed {
    const char* name;
    Dtype dtype;
  };
  for (const Typed& t :
       {Typed{"dtype_q", p.dtype_q}, Typed{"dtype_k", p.dtype_k}, Typed{"dtype_v", p.dtype_v},
        Typed{"dtype_out", p.dtype_out}, Typed{"dtype_bias", p.dtype_bias},
        Typed{"dtype_d_out", p.dtype_d_out}, Typed{"dtype_gradients", p.dtype_gradients}}) {
    if (is_known(t.dtype)) continue;
    return invalid(where, t.name, " (", static_cast<int>(t.dtype), ") must be a known dtype, 0..",
                   kDtypeCount - 1);
  }
  for (const Typed& t :
       {Typed{"dtype_d_out", p.dtype_d_out}, Typed{"dtype_gradients", p.dtype_gradients}}) {
    const bool has_choice = is_f8(p.dtype_q) && p.features.has(Feature::kNeedsGrad);
    if (!has_choice || is_f8_gradient(t.dtype)) continue;
    return invalid(where, t.name, " (", to_string(t.dtype),
                   ") must be f8e4m3, f8e5m2, bf16, f16 or f32 where q has 8-bit floats");
  }
  const bool is_wide = p.dtype_bias == Dtype::kF32 || p.dtype_bias == Dtype::kF64;
  if (!is_wide && is_f8(p.dtype_q)) {
    return invalid(where, "dtype of attn_bias (", to_string(p.dtype_bias),
                   ") must be f32 or f64 where q is of 8 bits");
  }
  if (!is_wide && p.dtype_bias != p.dtype_q) {
    return invalid(where, "dtype of attn_bias (", to_string(p.dtype_bias),
                   ") must be f32, f64 or q's ", to_string(p.dtype_q));
  }
  if (p.device.type > DeviceType::kCuda || p.device.index < 0) {
    return invalid(where, "device (", to_string(p.device.type), ":", p.device.index,
                   ") must be cpu or cuda with an index >= 0");
  }
  if ((p.features.bits() >> kFeatureCount) != 0) {
    return invalid(where, "features (", p.features.bits(), ") must have bits below ", kFeatureCount,
                   " only");
  }
  return {};
}

Status check_enums(const AttentionParams& p, const char* where) {
  if (p.diagonal > Diagonal::kOffset) {
    return invalid(where, "diagonal (", static_cast<int>(p.diagonal), ") must be 0..3");
  }
  if (p.scores_kind > ScoresKind::kProbs) {
    return invalid(where, "scores_kind (", static_cast<int>(p.scores_kind), ") must be 0..3");
  }
  if (p.fp8_recipe > Fp8Recipe::kBlock) {
    return invalid(where, "fp8_recipe (", static_cast<int>(p.fp8_recipe), ") must be 0..4");
  }
  for (const TensorLayout& layout : kTensorLayouts) {
    if (p.*layout.order > Layout::kStrided) {
      return invalid(where, layout.order_field, " (", static_cast<int>(p.*layout.order),
                     ") must be 0..2");
    }
    if (p.*layout.align_log2 < 0 || p.*layout.align_log2 > kMaxAlignLog2) {
      return invalid(where, layout.align_field, " (", p.*layout.align_log2, ") must be 0..",
                     kMaxAlignLog2);
    }
  }
  return {};
}

bool is_power_of_two(std::int64_t n) noexcept { return n > 0 && (n & (n - 1)) == 0; }

Status check_extents(const AttentionParams& p, const char* where) {
  struct Extent {
    const char* name;
    std::int64_t value;
  };
  for (const Extent& e :
       {Extent{"batch", p.batch}, Extent{"num_heads_q", p.num_heads_q},
        Extent{"num_heads_kv", p.num_heads_kv}, Extent{"seqlen_q", p.seqlen_q},
        Extent{"seqlen_kv", p.seqlen_kv}, Extent{"head_dim_qk", p.head_dim_qk},
        Extent{"head_dim_v", p.head_dim_v}, Extent{"total_q", p.total_q},
        Extent{"total_kv", p.total_kv}, Extent{"tokens_q", p.tokens_q},
        Extent{"tokens_kv", p.tokens_kv}, Extent{"num_pages", p.num_pages},
        Extent{"page_size", p.page_size}, Extent{"rotary_dim", p.rotary_dim},
        Extent{"block_size_q", p.block_size_q}, Extent{"block_size_kv", p.block_size_kv}}) {
    if (e.value < 0) return invalid(where, e.name, " (", e.value, ") must be >= 0");
  }
  if (p.num_heads_kv == 0 ? p.num_heads_q != 0 : p.num_heads_q % p.num_heads_kv != 0) {
    return invalid(where, "num_heads_kv (", p.num_heads_kv, ") must divide num_heads_q (",
                   p.num_heads_q, ")");
  }
  for (const Extent& e : {Extent{"head_dim_qk", p.dtype_k == Dtype::kU4 ? p.head_dim_qk : 0},
                          Extent{"head_dim_v", p.dtype_v == Dtype::kU4 ? p.head_dim_v : 0}}) {
    if (e.value % 2 == 0) continue;
    return invalid(where, e.name, " (", e.value, ") must be even: two elements of u4 share a byte");
  }
  if (p.features.has(Feature::kHadamard) && !is_power_of_two(p.head_dim_qk)) {
    return invalid(where, "head_dim_qk (", p.head_dim_qk, ") must be a power of two with hadamard");
  }
  if (p.rotary_dim > p.head_dim_qk) {
    return invalid(where, "rotary_dim (", p.rotary_dim, ") must be at most head_dim_qk (",
                   p.head_dim_qk, ")");
  }
  if (p.rotary_dim % 2 != 0) {
    return invalid(where, "rotary_dim (", p.rotary_dim, ") must be even: pairs are rotated");
  }
  if (p.features.has(Feature::kPositions) && p.features.has(Feature::kAppendKv) &&
      p.features.has(Feature::kPacked)) {
    return invalid(where, "positions (present) must be left out with packed queries beside k_new, ",
                   "whose rows are not packed");
  }
  if (p.features.has(Feature::kAppendKv) && p.features.has(Feature::kPacked) &&
      !p.features.has(Feature::kPaged)) {
    return invalid(where,
                   "append_kv (present) must be left out with packed keys: they have no room");
  }
  if (p.features.has(Feature::kCacheLeftpad) && p.features.has(Feature::kPacked) &&
      !p.features.has(Feature::kPaged)) {
    return invalid(where,
                   "cache_leftpad (present) must be left out with packed keys: cu_seqlens_kv ",
                   "say where they begin");
  }
  if (p.features.has(Feature::kPaged) && (p.page_size == 0 || p.seqlen_kv % p.page_size != 0)) {
    return invalid(where, "page_size (", p.page_size, ") must be at least 1 and divide seqlen_kv (",
                   p.seqlen_kv, "), the rows of a sequence's pages");
  }
  if (const char* tensor = first_overflowing_tensor(p)) {
    return failure(StatusCode::kOverflow, where, tensor, " of batch ", p.batch, ", num_heads ",
                   p.num_heads_q, " and ", p.num_heads_kv, ", seqlen ", p.seqlen_q, " and ",
                   p.seqlen_kv, ", head_dim ", p.head_dim_qk, " and ", p.head_dim_v,
                   ": its size in bytes must fit 64 bits");
  }
  return {};
}

Status check_scale_layout(const AttentionParams& p, const char* where) {
  const FeatureSet f = p.features;
  const ScaleLayout layout = scale_layout_of(f);
  if (f.has(Feature::kScalesQ) && (f.has(Feature::kRotary) || f.has(Feature::kHadamard))) {
    return invalid(where, "scales_q (present) must be left out with rotary embedding or hadamard, ",
                   "which mix columns of q");
  }
  if (layout == ScaleLayout::kRows) return {};
  if (f.has(Feature::kAppendKv)) {
    return invalid(where, "k_new (present) must be left out with scale_layout ", to_string(layout),
                   ": quantise new rows before the call");
  }
  if (layout != ScaleLayout::k128x128) return {};
  if (f.has(Feature::kPaged)) {
    return invalid(where, "page_table (present) must be left out with scale_layout 128x128: ",
                   "blocks of rows lie in one page, or not");
  }
  if (p.window_right >= 0 && !f.has(Feature::kFutureScales)) {
    return invalid(where, "scale_layout (128x128) must be 1x128 or 1x32 with a causal mask, or ",
                   "allow_future_scales true: a block's scale depends on its later rows");
  }
  return {};
}

Status check_numbers(const AttentionParams& p, const char* where) {
  if (!std::isfinite(p.softmax_scale)) {
    return invalid(where, "softmax_scale (", p.softmax_scale, ") must be finite");
  }
  if (!std::isfinite(p.softcap) || p.softcap < 0.0) {
    return invalid(where, "softcap (", p.softcap, ") must be finite and >= 0 (0: none)");
  }
  if (p.window_left < kUnlimited) {
    return invalid(where, "window_left (", p.window_left, ") must be >= -1 (-1: unlimited)");
  }
  if (p.window_right < kUnlimited) {
    return invalid(where, "window_right (", p.window_right, ") must be >= -1 (-1: unlimited)");
  }
  if (!(p.dropout_p >= 0.0 && p.dropout_p < 1.0)) {
    return invalid(where, "dropout_p (", p.dropout_p, ") must be in [0, 1)");
  }
  if (p.dropout_p > 0.0) {
    const double threshold = std::floor((1.0 - p.dropout_p) * 65536.0 + 0.5);
    if (threshold < 1.0 || threshold > 65535.0) {
      return invalid(where, "dropout_p (", p.dropout_p,
                     ") must keep floor((1 - p) * 65536 + 0.5) (",
                     static_cast<std::int64_t>(threshold), ") in 1..65535");
    }
  }
  return {};
}

// The diagonal's places agree only where no length can differ: equal extents, no lengths. (describe
// names the top left where q and kv share one view of lengths, which params do not show.)
Status check_diagonal(const AttentionParams& p, const char* where) {
  if (p.diagonal != Diagonal::kUnnamed) return {};
  const FeatureSet f = p.features;
  const char* measured = p.window_right == 0                        ? "causal"
                         : p.window_left >= 0 || p.window_right > 0 ? "a window"
                         : f.has(Feature::kAlibi)                   ? "ALiBi"
                         : uses_of_functions(p).position            ? "q_pos"
                                                                    : nullptr;
  if (measured == nullptr) return {};
  const bool lengths = f.has(Feature::kSeqlensQ) || f.has(Feature::kSeqlensKv) ||
                       f.has(Feature::kPacked) || f.has(Feature::kPaged);
  if (p.seqlen_q == p.seqlen_kv && !lengths) return {};
  return invalid(
      where, "diagonal (unnamed) must be named (top_left, bottom_right or offset): ", measured,
      " measures from it and ",
      lengths ? concat("lengths are given")
              : concat("seqlen_q (", p.seqlen_q, ") is not seqlen_kv (", p.seqlen_kv, ")"));
}

}  // namespace

const char* first_overflowing_tensor(const AttentionParams& p) noexcept {
  const bool packed = p.features.has(Feature::kPacked);
  const bool paged = p.features.has(Feature::kPaged);
  const std::int64_t outer_q = packed ? 1 : p.batch;
  const std::int64_t outer_kv = paged ? p.num_pages : packed ? 1 : p.batch;
  const std::int64_t rows_q = packed ? p.total_q : p.seqlen_q;
  const std::int64_t rows_kv = paged ? p.page_size : packed ? p.total_kv : p.seqlen_kv;
  if (!bytes_fit(size_of(p.dtype_q), {outer_q, p.num_heads_q, rows_q, p.head_dim_qk})) return "q";
  if (!bytes_fit(size_of(p.dtype_k), {outer_kv, p.num_heads_kv, rows_kv, p.head_dim_qk})) {
    return "k";
  }
  if (!bytes_fit(size_of(p.dtype_v), {outer_kv, p.num_heads_kv, rows_kv, p.head_dim_v})) {
    return "v";
  }
  if (!bytes_fit(size_of(p.dtype_out), {outer_q, p.num_heads_q, rows_q, p.head_dim_v})) {
    return "out";
  }
  // Two f64 a row: saved_stats at its widest; lse is smaller. Always, for rows are counted always.
  if (!bytes_fit(16, {p.batch, p.num_heads_q, p.seqlen_q})) return "saved_stats";
  if (p.features.has(Feature::kScoresOut) && !broadcast_fits(p, 15, 8)) return "scores_out";
  if (p.features.has(Feature::kAttnMask) && !broadcast_fits(p, p.mask_dims, 1)) return "attn_mask";
  if (p.features.has(Feature::kAttnBias) &&
      !broadcast_fits(p, p.bias_dims, size_of(p.dtype_bias))) {
    return "attn_bias";
  }
  return nullptr;
}

Status validate(const AttentionParams& params, const char* where) try {
  if (Status status = check_types(params, where); !status.ok()) return status;
  if (Status status = check_enums(params, where); !status.ok()) return status;
  if (Status status = check_extents(params, where); !status.ok()) return status;
  if (Status status = check_numbers(params, where); !status.ok()) return status;
  if (Status status = check_scale_layout(params, where); !status.ok()) return status;
  if (Status status = check_functions(params, where); !status.ok()) return status;
  return check_diagonal(params, where);
} catch (...) {
  return status_of_exception(where);
}

}  // namespace regard
