#include "core/execute/shared_prefix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/message.h"
#include "base/scratch.h"
#include "core/describe/describe.h"
#include "core/describe/view_checks.h"
#include "problem/rotary.h"

namespace regard {

Status check_prefix_length(const char* where, std::int64_t shared) {
  if (shared >= 0) return {};
  return invalid(where, "shared_prefix_kv (", shared, ") must be >= 0");
}

Status check_prefix_features(const char* where, const AttentionParams& p, std::int64_t shared) {
  struct Refused {
    const char* name;
    bool given;
  };
  const FeatureSet f = p.features;
  const Refused kRefused[] = {{"window_left", p.window_left >= 0},
                              {"alibi_slopes", f.has(Feature::kAlibi)},
                              {"attn_mask", f.has(Feature::kAttnMask)},
                              {"attn_bias", f.has(Feature::kAttnBias)},
                              {"segment_ids_q", f.has(Feature::kSegmentIds)},
                              {"dropout_p", p.dropout_p != 0.0},
                              {"scores_out", f.has(Feature::kScoresOut)},
                              {"out_amax", f.has(Feature::kOutAmax)},
                              {"descales [B,Hkv]", f.has(Feature::kDescalesPerHead)},
                              {"scales_q", f.has(Feature::kScalesQ)},
                              {"cache_leftpad", f.has(Feature::kCacheLeftpad)},
                              {"block_mask", f.has(Feature::kBlockMask)},
                              {"needs_grad", f.has(Feature::kNeedsGrad)},
                              {"out of 8 bits", size_of(p.dtype_out) == 1}};
  for (const Refused& refused : kRefused) {
    if (!refused.given) continue;
    return invalid(where, refused.name, " (given) is not supported; expected attention() for it");
  }
  if (p.device.type != DeviceType::kCpu) {
    return invalid(where, "device (", to_string(p.device.type),
                   ") is not supported; expected tensors on the CPU");
  }
  if (p.window_right >= 0 && p.diagonal != Diagonal::kBottomRight) {
    return invalid(where, "diagonal (", to_string(p.diagonal), ") must be bottom_right");
  }
  if (!f.has(Feature::kPaged)) {
    return invalid(where, "page_table (absent) must be given: a prefix is shared in pages");
  }
  if (shared > p.seqlen_kv || shared % p.page_size != 0) {
    return invalid(where, "shared_prefix_kv (", shared, ") must be a multiple of page_size, ",
                   p.page_size, ", and at most ", p.seqlen_kv, ", the rows of a sequence's pages");
  }
  return {};
}

Status check_prefix_sequences(const PrefixCall& call, const problem::Problem& p) {
  const TensorView& table = call.request.page_table;
  const auto id_at = [&](std::int64_t b, std::int64_t page) {
    return read_integer(table, b * table.strides[0] + page * table.strides[1]);
  };
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    const std::int64_t before = s.band.len_kv - p.seqlen_new;
    if (before < call.shared) {
      return invalid(call.where, "seqlens_kv[", b, "] (", before, "), expected at least ",
                     call.shared, ", shared_prefix_kv");
    }
    // The first query's reach ends with the last key of the prefix, or behind it.
    const std::int64_t reach = semantics::visible_keys(s.band, 0).hi;
    if (s.len_q > 0 && reach < call.shared) {
      return invalid(call.where, "keys that the first query of sequence ", b, " sees (", reach,
                     "), expected at least ", call.shared, ", shared_prefix_kv");
    }
    if (p.tree.present && s.band.len_kv - p.tree_keys < call.shared) {
      return invalid(call.where, "keys of tree_mask (", p.tree_keys, "), expected at most ",
                     s.band.len_kv - call.shared, ", those of sequence ", b, " behind its prefix");
    }
    for (std::int64_t page = 0; page < call.shared / p.pages.page_size; ++page) {
      if (id_at(b, page) == id_at(0, page)) continue;
      return invalid(call.where, "page_table[", b, ",", page, "] (", id_at(b, page), "), expected ",
                     id_at(0, page), ", that of sequence 0: shared_prefix_kv is ", call.shared);
    }
  }
  return {};
}

PrefixMemory::PrefixMemory(const AttentionParams& p)
    : heads_(p.num_heads_q), head_dim_v_(p.head_dim_v) {
  const bool packed = p.features.has(Feature::kPacked);
  batch_ = packed ? 1 : p.batch;
  seqlen_ = packed ? p.total_q : p.seqlen_q;
  rows_ = saturating_mul(batch_, seqlen_);
  wide_ = p.dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  const std::int64_t row = saturating_mul(rows_, heads_);
  ScratchLayout layout;
  for (Partial& partial : partials_) {
    partial.at_out = layout.take(saturating_mul(row, head_dim_v_), size_of(wide_));
    partial.at_lse = layout.take(row, size_of(wide_));
    partial.at_stats = layout.take(saturating_mul(2, row), size_of(wide_));
  }
  at_q_ = layout.take(saturating_mul(row, p.head_dim_qk), size_of(p.dtype_q));
  at_positions_ = layout.take(rows_, sizeof(std::int32_t));
  at_lengths_ = layout.take(saturating_add(p.batch, 1), sizeof(std::int32_t));
  bytes_ = layout.total();
}

void PrefixMemory::set_outputs(bool of_prefix, const AttentionRequest& given,
                               AttentionRequest* request) const {
  const std::int64_t batch = of_prefix ? 1 : batch_, seqlen = of_prefix ? rows_ : seqlen_;
  const Partial& partial = partials_[of_prefix ? 0 : 1];
  request->out = view(partial.at_out, wide_, batch, seqlen, head_dim_v_);
  request->lse = lse_of(of_prefix, batch, seqlen);
  if (!of_prefix && given.cu_seqlens_q.present()) {
    request->lse.rank = 2;
    for (int dim = 0; dim < 2; ++dim) {
      request->lse.shape[dim] = request->lse.shape[dim + 1];
      request->lse.strides[dim] = request->lse.strides[dim + 1];
    }
  }
  request->saved_stats = TensorView{};
  if (given.saved_stats.present()) request->saved_stats = stats_of(of_prefix, batch, seqlen);
}

StateView PrefixMemory::state(bool of_prefix) const {
  const Partial& partial = partials_[of_prefix ? 0 : 1];
  return {view(partial.at_out, wide_, batch_, seqlen_, head_dim_v_),
          lse_of(of_prefix, batch_, seqlen_)};
}

TensorView PrefixMemory::queries(const TensorView& q, Layout layout) const {
  const bool in_one = batch_ <= 1 || seqlen_ == 1 || q.strides[0] == seqlen_ * q.strides[2];
  TensorView one = q;
  one.shape[0] = 1;
  one.shape[2] = rows_;
  if (batch_ > 1 && seqlen_ == 1) one.strides[2] = q.strides[0];
  one.strides[0] = 0;
  if (in_one && layout_matches(one, layout)) return one;
  one = view(at_q_, q.dtype, 1, rows_, q.shape[3]);
  const auto bytes = static_cast<std::size_t>(q.shape[3] * size_of(q.dtype));
  for (std::int64_t row = 0; row < rows_; ++row) {
    for (std::int64_t h = 0; h < q.shape[1]; ++h) {
      const std::int64_t from =
          row / seqlen_ * q.strides[0] + h * q.strides[1] + row % seqlen_ * q.strides[2];
      const std::int64_t to = h * one.strides[1] + row * one.strides[2];
      std::memcpy(static_cast<char*>(one.data) + to * size_of(q.dtype),
                  static_cast<const char*>(q.data) + from * size_of(q.dtype), bytes);
    }
  }
  return one;
}

TensorView PrefixMemory::positions(const problem::Problem& p) const {
  auto* const to = reinterpret_cast<std::int32_t*>(at(at_positions_));
  std::fill_n(to, rows_, 0);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    for (std::int64_t i = 0; i < s.len_q; ++i) {
      to[first_row(p, b) + i] = static_cast<std::int32_t>(problem::query_position(p, s, i));
    }
  }
  return make_view(to, Dtype::kI32, {1, rows_});
}

TensorView PrefixMemory::lengths(std::int64_t count, std::int64_t shared) const {
  auto* const to = reinterpret_cast<std::int32_t*>(at(at_lengths_));
  std::fill_n(to, count, static_cast<std::int32_t>(shared));
  return make_view(to, Dtype::kI32, {count});
}

void PrefixMemory::hide_padding(const problem::Problem& p) const {
  const auto hide = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin * heads_; n < end * heads_; ++n) {
      if (wide_ == Dtype::kF64) {
        hide_row<double>(n);
      } else {
        hide_row<float>(n);
      }
    }
  };
  std::int64_t end = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    end = first_row(p, b) + s.rows_q;
    hide(first_row(p, b) + s.len_q, end);
  }
  hide(end, rows_);
}

std::int64_t PrefixMemory::first_row(const problem::Problem& p, std::int64_t b) const {
  return p.q.starts.data != nullptr ? problem::row_start(p.q.starts, b) : b * seqlen_;
}

/// [batch,Hq,seqlen,columns] whose rows hold all heads.
TensorView PrefixMemory::view(std::int64_t offset, Dtype dtype, std::int64_t batch,
                              std::int64_t seqlen, std::int64_t columns) const {
  const std::int64_t row = heads_ * columns;
  return make_view(at(offset), dtype, {batch, heads_, seqlen, columns},
                   {seqlen * row, columns, row, 1});
}

TensorView PrefixMemory::lse_of(bool of_prefix, std::int64_t batch, std::int64_t seqlen) const {
  return make_view(at(partials_[of_prefix ? 0 : 1].at_lse), wide_, {batch, heads_, seqlen},
                   {seqlen * heads_, 1, heads_});
}

TensorView PrefixMemory::stats_of(bool of_prefix, std::int64_t batch, std::int64_t seqlen) const {
  return view(partials_[of_prefix ? 0 : 1].at_stats, wide_, batch, seqlen, 2);
}

template <class T>
void PrefixMemory::hide_row(std::int64_t n) const {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  reinterpret_cast<T*>(at(partials_[0].at_lse))[n] = kNothing;
  T* const stats = reinterpret_cast<T*>(at(partials_[0].at_stats)) + 2 * n;
  stats[0] = kNothing;
  stats[1] = 0;
}

namespace {

template <class T>
void merge_rows(const TensorView& a, const TensorView& b, const TensorView& to) {
  const auto at = [](const TensorView& view, std::int64_t n, std::int64_t x) -> T& {
    const std::int64_t i = n % view.shape[2], h = n / view.shape[2] % view.shape[1],
                       batch = n / view.shape[2] / view.shape[1];
    return static_cast<T*>(view.data)[batch * view.strides[0] + h * view.strides[1] +
                                      i * view.strides[2] + x * view.strides[3]];
  };
  for (std::int64_t n = 0; n < to.shape[0] * to.shape[1] * to.shape[2]; ++n) {
    const T max = std::max(at(a, n, 0), at(b, n, 0));
    const auto share = [&](const TensorView& of) {
      return at(of, n, 1) == T(0) ? T(0) : at(of, n, 1) * std::exp(at(of, n, 0) - max);
    };
    const T sum = share(a) + share(b);
    at(to, n, 0) = max;
    at(to, n, 1) = sum;
  }
}

/// Rows of a partial result: [B,S,H,D], in the memory of the call.
void set_partial_out(AttentionParams* p) {
  p->dtype_out = p->dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  p->layout_out = p->seqlen_q <= 1 || p->num_heads_q <= 1 ? Layout::kBhsd : Layout::kBshd;
  p->features.set(Feature::kLse);
}

}  // namespace

void PrefixMemory::merge_stats(const TensorView& to) const {
  if (wide_ == Dtype::kF64) {
    merge_rows<double>(stats(true), stats(false), to);
  } else {
    merge_rows<float>(stats(true), stats(false), to);
  }
}

AttentionRequest prefix_request(const PrefixCall& call, const problem::Problem& p,
                                const PrefixMemory& memory, Layout layout) {
  const AttentionRequest& given = call.request;
  AttentionRequest request;
  request.q = memory.queries(given.q, layout);
  request.k = given.k;
  request.v = given.v;
  request.scales_k = given.scales_k;
  request.scales_v = given.scales_v;
  request.channel_scales_k = given.channel_scales_k;
  request.descale_q = given.descale_q;
  request.descale_k = given.descale_k;
  request.descale_v = given.descale_v;
  request.page_table = given.page_table;
  request.page_table.shape[0] = 1;
  request.page_table.shape[1] = call.shared / call.params.page_size;
  request.seqlens_kv = memory.lengths(1, call.shared);
  if (given.rotary_cos.present()) {
    request.rotary_cos = given.rotary_cos;
    request.rotary_sin = given.rotary_sin;
    request.positions = memory.positions(p);
    request.options.rotary_interleaved = given.options.rotary_interleaved;
  }
  request.options.hadamard = given.options.hadamard;
  request.options.scale_layout = given.options.scale_layout;
  request.options.softmax_scale = given.options.softmax_scale;
  request.options.softcap = given.options.softcap;
  memory.set_outputs(true, given, &request);
  return request;
}

AttentionParams prefix_params(const AttentionParams& params, std::int64_t shared) {
  AttentionParams p = params;
  const bool packed = p.features.has(Feature::kPacked);
  p.seqlen_q = packed ? p.total_q : saturating_mul(p.batch, p.seqlen_q);
  // As PrefixMemory::queries() has them: one query of each sequence lies where it was.
  const bool lies_anywhere = params.seqlen_q == 1 && p.layout_q == Layout::kStrided;
  if (!packed && params.batch > 1 && !lies_anywhere) {
    p.layout_q = p.num_heads_q <= 1 ? Layout::kBhsd : Layout::kBshd;
  }
  p.batch = 1;
  p.seqlen_kv = shared;
  p.tokens_q = p.tokens_kv = p.total_q = 0;
  p.window_left = p.window_right = kUnlimited;
  p.features = p.features.without({Feature::kPacked, Feature::kSeqlensQ, Feature::kAppendKv,
                                   Feature::kTreeMask, Feature::kSinks, Feature::kCacheBatchIdx});
  if (p.features.has(Feature::kRotary)) p.features.set(Feature::kPositions);
  set_partial_out(&p);
  canonicalize(p);
  return p;
}

AttentionParams own_params(const AttentionParams& params) {
  AttentionParams p = params;
  p.features.set(Feature::kCacheLeftpad);
  set_partial_out(&p);
  canonicalize(p);
  return p;
}

AttentionRequest own_request(const PrefixCall& call, const PrefixMemory& memory) {
  AttentionRequest request = call.request;
  request.cache_leftpad = memory.lengths(call.params.batch, call.shared);
  memory.set_outputs(false, call.request, &request);
  return request;
}

}  // namespace regard
