#include "core/describe/describe.h"

#include <bit>
#include <iterator>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/overlap.h"
#include "core/describe/view_checks.h"
#include "core/text/thrown_by.h"

namespace regard {
namespace {

bool same_view(const TensorView& a, const TensorView& b) noexcept {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank || a.device != b.device) {
    return false;
  }
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i] || a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

Layout layout_of(const TensorView& view) noexcept {
  if (layout_matches(view, Layout::kBhsd)) return Layout::kBhsd;
  return layout_matches(view, Layout::kBshd) ? Layout::kBshd : Layout::kStrided;
}

// One request on its way to params. Each step returns what is wrong, and later steps rely on the
// ones before.
class Describer {
 public:
  Describer(const Buffers& buffers, const AttentionOptions& options, const char* where)
      : b_(buffers), o_(options), where_(where) {}

  Expected<AttentionParams> run() {
    using Step = Status (Describer::*)();
    static constexpr Step kSteps[] = {
        &Describer::check_views,    &Describer::take_main,
        &Describer::take_outputs,   &Describer::describe_score_modifiers,
        &Describer::take_lengths,   &Describer::take_paging,
        &Describer::take_descales,  &Describer::take_cache,
        &Describer::take_options,   &Describer::take_diagonal,
        &Describer::check_overlaps, &Describer::finish};
    for (const Step step : kSteps) {
      if (Status status = (this->*step)(); !status.ok()) return status;
    }
    return p_;
  }

 private:
  void feature(Feature f, const TensorView& view) noexcept { p_.features.set(f, view.present()); }

  // Every tensor by itself, before any size is multiplied or address computed elsewhere.
  Status check_views() {
    for (std::size_t i = 0; i < 4; ++i) {
      const TensorView& view = b_.*kBufferTensors[i].view;
      if (view.rank == 4) continue;
      constexpr const char* kLetters[] = {"[B,Hq,Sq,Dqk]", "[B,Hkv,Skv,Dqk]", "[B,Hkv,Skv,Dv]",
                                          "[B,Hq,Sq,Dv]"};
      return expect_rank(where_, {kBufferTensors[i].name, view}, 4, kLetters[i]);
    }
    for (const BufferTensor& tensor : kBufferTensors) {
      const TensorView& view = b_.*tensor.view;
      if (!view.present()) continue;
      Present& present = present_[count_++];
      present.tensor = &tensor;
      Status status = check_view(where_, {tensor.name, view}, b_.q.device, &present.span);
      if (!status.ok()) return status;
    }
    for (std::size_t i = 0; i < 4; ++i) {
      const TensorView& view = b_.*kBufferTensors[i].view;
      if (view.strides[3] == 1 || view.shape[3] <= 1) continue;
      return invalid(where_, "last stride of ", kBufferTensors[i].name, " (", view.strides[3],
                     ") must be 1");
    }
    return {};
  }

  Status expect_equal(const char* what, const char* a, std::int64_t actual, const char* b,
                      std::int64_t expected) {
    if (actual == expected) return {};
    return invalid(where_, what, " of ", a, " (", actual, ") must be ", b, "'s, ", expected);
  }

  // q, k, v, out: extents, heads, types, places. B is cu_seqlens' with packed rows, and k and v are
  // pages or a larger cache where a table says so.
  Status take_main() {
    const bool packed = b_.cu_seqlens_q.present();
    const bool own_batch = b_.page_table.present() || b_.cache_batch_idx.present();
    p_.device = b_.q.device;
    p_.dtype_q = b_.q.dtype;
    p_.dtype_kv = b_.k.dtype;
    p_.dtype_out = b_.out.dtype;
    p_.batch = b_.q.shape[0];
    p_.num_heads_q = b_.q.shape[1];
    p_.num_heads_kv = b_.k.shape[1];
    p_.seqlen_q = b_.q.shape[2];
    p_.seqlen_kv = b_.k.shape[2];
    p_.head_dim_qk = b_.q.shape[3];
    p_.head_dim_v = b_.v.shape[3];
    if (b_.v.dtype != b_.k.dtype) {
      return invalid(where_, "dtype of v (", to_string(b_.v.dtype), ") must be k's, ",
                     to_string(b_.k.dtype));
    }
    struct Pair {
      const char* what;
      const char* a;
      std::int64_t actual;
      const char* b;
      std::int64_t expected;
    };
    const Pair pairs[] = {
        {"batch", "k", b_.k.shape[0], "q", own_batch ? b_.k.shape[0] : p_.batch},
        {"batch", "v", b_.v.shape[0], "k", b_.k.shape[0]},
        {"batch", "out", b_.out.shape[0], "q", p_.batch},
        {"num_heads", "v", b_.v.shape[1], "k", p_.num_heads_kv},
        {"num_heads", "out", b_.out.shape[1], "q", p_.num_heads_q},
        {"seqlen", "v", b_.v.shape[2], "k", p_.seqlen_kv},
        {"seqlen", "out", b_.out.shape[2], "q", p_.seqlen_q},
        {"head_dim", "k", b_.k.shape[3], "q", p_.head_dim_qk},
        {"head_dim", "out", b_.out.shape[3], "v", p_.head_dim_v},
    };
    for (const Pair& e : pairs) {
      if (e.actual == e.expected) continue;
      return expect_equal(e.what, e.a, e.actual, e.b, e.expected);
    }
    if (packed || b_.cu_seqlens_kv.present()) {
      if (Status status = take_packed(); !status.ok()) return status;
    }
    p_.layout_q = layout_of(b_.q);
    p_.layout_k = layout_of(b_.k);
    p_.layout_v = layout_of(b_.v);
    p_.layout_out = layout_of(b_.out);
    p_.align_q_log2 = align_log2_of(b_.q);
    p_.align_k_log2 = align_log2_of(b_.k);
    p_.align_v_log2 = align_log2_of(b_.v);
    p_.align_out_log2 = align_log2_of(b_.out);
    return {};
  }

  Status take_packed() {
    if (!b_.cu_seqlens_q.present()) {
      return invalid(where_, "cu_seqlens_q (absent) must be given with cu_seqlens_kv");
    }
    if (!b_.cu_seqlens_kv.present() && !b_.page_table.present()) {
      return invalid(where_,
                     "cu_seqlens_kv (absent) must be given with cu_seqlens_q, or page_table");
    }
    const NamedView starts{"cu_seqlens_q", b_.cu_seqlens_q};
    if (Status s = expect_rank(where_, starts, 1, "[B+1]"); !s.ok()) return s;
    if (starts.view.shape[0] < 1) {
      return invalid(where_, "shape of cu_seqlens_q ([0]) must be [B+1]");
    }
    if (Status s = expect_equal("batch", "packed q", p_.batch, "a packed tensor", 1); !s.ok()) {
      return s;
    }
    p_.features.set(Feature::kPacked);
    p_.batch = starts.view.shape[0] - 1;
    p_.total_q = p_.seqlen_q;  // no sequence is longer than all together
    p_.total_kv = b_.page_table.present() ? 0 : p_.seqlen_kv;
    for (const NamedView& view : {starts, NamedView{"cu_seqlens_kv", b_.cu_seqlens_kv}}) {
      if (!view.view.present()) continue;
      if (Status s = expect_dtype(where_, view, {Dtype::kI32}); !s.ok()) return s;
      if (Status s = expect_shape(where_, view, {p_.batch + 1}, "[B+1]"); !s.ok()) return s;
    }
    return {};
  }

  Status take_outputs() {
    const Dtype dtype = p_.dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
    const bool packed = p_.features.has(Feature::kPacked);
    const std::int64_t outer = packed ? 1 : p_.batch;
    feature(Feature::kLse, b_.lse);
    feature(Feature::kSavedStats, b_.saved_stats);
    if (b_.lse.present()) {
      const NamedView lse{"lse", b_.lse};
      if (Status s = expect_dtype(where_, lse, {dtype}); !s.ok()) return s;
      Status s =
          packed ? expect_shape(where_, lse, {p_.num_heads_q, p_.total_q}, "[Hq,total_q]")
                 : expect_shape(where_, lse, {p_.batch, p_.num_heads_q, p_.seqlen_q}, "[B,Hq,Sq]");
      if (!s.ok()) return s;
    }
    if (b_.saved_stats.present()) {
      const NamedView stats{"saved_stats", b_.saved_stats};
      if (Status s = expect_dtype(where_, stats, {dtype}); !s.ok()) return s;
      Status s =
          expect_shape(where_, stats, {outer, p_.num_heads_q, p_.seqlen_q, 2}, "[B,Hq,Sq,2]");
      if (!s.ok()) return s;
    }
    if (b_.scores_out.present()) {
      const NamedView scores{"scores_out", b_.scores_out};
      if (Status s = expect_dtype(where_, scores, {dtype}); !s.ok()) return s;
      Status s = expect_shape(where_, scores, {p_.batch, p_.num_heads_q, p_.seqlen_q, kv_extent()},
                              "[B,Hq,Sq,Skv]");
      if (!s.ok()) return s;
    }
    return {};
  }

  // Positions of keys that a sequence may have: pages count as the rows that they hold.
  std::int64_t kv_extent() const noexcept {
    if (!b_.page_table.present() || b_.page_table.rank != 2) return p_.seqlen_kv;
    return saturating_mul(b_.page_table.shape[1], b_.k.shape[2]);
  }

  // Tensors that edit scores: mask, bias, ALiBi, sinks, segments.
  Status describe_score_modifiers() {
    const std::int64_t full[4] = {p_.batch, p_.num_heads_q, p_.seqlen_q, kv_extent()};
    feature(Feature::kAttnMask, b_.attn_mask);
    feature(Feature::kAttnBias, b_.attn_bias);
    feature(Feature::kAlibi, b_.alibi_slopes);
    feature(Feature::kSinks, b_.sinks);
    if (b_.attn_mask.present()) {
      const NamedView mask{"attn_mask", b_.attn_mask};
      if (Status s = expect_dtype(where_, mask, {Dtype::kBool, Dtype::kU8}); !s.ok()) return s;
      if (Status s = expect_broadcast(where_, mask, full, &p_.mask_dims); !s.ok()) return s;
    }
    if (b_.attn_bias.present()) {
      const NamedView bias{"attn_bias", b_.attn_bias};
      p_.dtype_bias = b_.attn_bias.dtype;
      const Dtype narrow = is_f8(p_.dtype_q) ? Dtype::kF32 : p_.dtype_q;
      Status s = expect_dtype(where_, bias, {Dtype::kF32, Dtype::kF64, narrow});
      if (!s.ok()) return s;
      if (s = expect_broadcast(where_, bias, full, &p_.bias_dims); !s.ok()) return s;
    }
    if (b_.alibi_slopes.present()) {
      const NamedView slopes{"alibi_slopes", b_.alibi_slopes};
      if (Status s = expect_dtype(where_, slopes, {Dtype::kF32}); !s.ok()) return s;
      Status s = b_.alibi_slopes.rank == 2
                     ? expect_shape(where_, slopes, {p_.batch, p_.num_heads_q}, "[Hq] or [B,Hq]")
                     : expect_shape(where_, slopes, {p_.num_heads_q}, "[Hq] or [B,Hq]");
      if (!s.ok()) return s;
    }
    if (b_.sinks.present()) {
      const NamedView sinks{"sinks", b_.sinks};
      if (Status s = expect_dtype(where_, sinks, {Dtype::kF32}); !s.ok()) return s;
      if (Status s = expect_shape(where_, sinks, {p_.num_heads_q}, "[Hq]"); !s.ok()) return s;
    }
    return {};
  }

  Status expect_i32(const char* name, const TensorView& view,
                    std::initializer_list<std::int64_t> shape, const char* letters) {
    if (!view.present()) return {};
    const NamedView tensor{name, view};
    if (Status s = expect_dtype(where_, tensor, {Dtype::kI32}); !s.ok()) return s;
    return expect_shape(where_, tensor, shape, letters);
  }

  Status both_or_neither(const char* a, const TensorView& view_a, const char* b,
                         const TensorView& view_b) {
    if (view_a.present() == view_b.present()) return {};
    return invalid(where_, view_a.present() ? b : a, " (absent) must be given with ",
                   view_a.present() ? a : b, ": both or neither");
  }

  Status take_lengths() {
    feature(Feature::kSegmentIds, b_.segment_ids_q);
    feature(Feature::kSeqlensQ, b_.seqlens_q);
    feature(Feature::kSeqlensKv, b_.seqlens_kv);
    Status s =
        both_or_neither("segment_ids_q", b_.segment_ids_q, "segment_ids_kv", b_.segment_ids_kv);
    if (!s.ok()) return s;
    s = expect_i32("segment_ids_q", b_.segment_ids_q, {p_.batch, p_.seqlen_q}, "[B,Sq]");
    if (!s.ok()) return s;
    s = expect_i32("segment_ids_kv", b_.segment_ids_kv, {p_.batch, kv_extent()}, "[B,Skv]");
    if (!s.ok()) return s;
    s = expect_i32("seqlens_q", b_.seqlens_q, {p_.batch}, "[B]");
    if (!s.ok()) return s;
    return expect_i32("seqlens_kv", b_.seqlens_kv, {p_.batch}, "[B]");
  }

  Status take_paging() {
    if (!b_.page_table.present()) {
      if (o_.page_size == 0) return {};
      return invalid(where_, "page_size (", o_.page_size, ") must be 0 without a page_table");
    }
    if (!b_.seqlens_kv.present()) {
      return invalid(where_, "seqlens_kv (absent) must be given with page_table");
    }
    const NamedView table{"page_table", b_.page_table};
    if (Status s = expect_rank(where_, table, 2, "[B,pages]"); !s.ok()) return s;
    Status s = expect_i32(table.name, table.view, {p_.batch, table.view.shape[1]}, "[B,pages]");
    if (!s.ok()) return s;
    const std::int64_t page_size = b_.k.shape[2];
    if (page_size < 1 || (o_.page_size != 0 && o_.page_size != page_size)) {
      return invalid(where_, "page_size (", o_.page_size, ") must be the rows of a page of k (",
                     page_size, "), at least 1");
    }
    p_.features.set(Feature::kPaged);
    p_.num_pages = b_.k.shape[0];
    p_.page_size = page_size;
    if (!checked_mul(table.view.shape[1], page_size, &p_.seqlen_kv)) {
      return failure(StatusCode::kOverflow, where_, "page_table of ", table.view.shape[1],
                     " pages of ", page_size, " rows: the product must fit 64 bits");
    }
    return {};
  }

  // What q, k and v are multiplied by: one number for all, or one a sequence and kv head.
  Status take_descales() {
    for (const NamedView& scale :
         {NamedView{"descale_q", b_.descale_q}, NamedView{"descale_k", b_.descale_k},
          NamedView{"descale_v", b_.descale_v}}) {
      if (!scale.view.present()) continue;
      if (Status s = expect_dtype(where_, scale, {Dtype::kF32}); !s.ok()) return s;
      const bool per_head = scale.view.rank == 2;
      Status s = per_head
                     ? expect_shape(where_, scale, {p_.batch, p_.num_heads_kv}, "[B,Hkv] or [1]")
                     : expect_shape(where_, scale, {1}, "or [B,Hkv]");
      if (!s.ok()) return s;
      p_.features.set(Feature::kDescales);
      if (per_head) p_.features.set(Feature::kDescalesPerHead);
    }
    return {};
  }

  // Appending, rotary embeddings, cache indices, block masks.
  Status take_cache() {
    feature(Feature::kBlockMask, b_.block_mask);
    feature(Feature::kAppendKv, b_.k_new);
    feature(Feature::kRotary, b_.rotary_cos);
    feature(Feature::kCacheBatchIdx, b_.cache_batch_idx);
    Status s = both_or_neither("k_new", b_.k_new, "v_new", b_.v_new);
    if (!s.ok()) return s;
    s = both_or_neither("rotary_cos", b_.rotary_cos, "rotary_sin", b_.rotary_sin);
    if (!s.ok()) return s;
    if (b_.k_new.present()) {
      const std::int64_t rows = b_.k_new.rank == 4 ? b_.k_new.shape[2] : 0;
      s = expect_shape(where_, {"k_new", b_.k_new},
                       {p_.batch, p_.num_heads_kv, rows, p_.head_dim_qk}, "[B,Hkv,Snew,Dqk]");
      if (!s.ok()) return s;
      s = expect_shape(where_, {"v_new", b_.v_new},
                       {p_.batch, p_.num_heads_kv, rows, p_.head_dim_v}, "[B,Hkv,Snew,Dv]");
      if (!s.ok()) return s;
    }
    if (b_.rotary_cos.present()) {
      const NamedView cosines{"rotary_cos", b_.rotary_cos};
      if (s = expect_rank(where_, cosines, 2, "[positions,rotary_dim/2]"); !s.ok()) return s;
      s = expect_shape(where_, {"rotary_sin", b_.rotary_sin},
                       {b_.rotary_cos.shape[0], b_.rotary_cos.shape[1]}, "rotary_cos's");
      if (!s.ok()) return s;
      p_.rotary_dim = saturating_mul(b_.rotary_cos.shape[1], 2);
    }
    return expect_i32("cache_batch_idx", b_.cache_batch_idx, {p_.batch}, "[B]");
  }

  Status take_options() {
    if (!o_.needs_grad && (o_.d_lse || o_.delta)) {
      return invalid(where_, o_.d_lse ? "d_lse" : "delta",
                     " (true) is given to a backward: needs_grad must be true");
    }
    if (o_.is_causal && o_.window_right > 0) {
      return invalid(where_, "window_right (", o_.window_right, ") must be -1 or 0 with is_causal");
    }
    if (b_.scores_out.present() != (o_.scores_kind != ScoresKind::kNone)) {
      return b_.scores_out.present()
                 ? invalid(where_, "scores_kind (none) must say what scores_out receives")
                 : invalid(where_, "scores_out (absent) must be given with scores_kind ",
                           to_string(o_.scores_kind));
    }
    p_.window_left = o_.window_left;
    // A right bound below -1 is validate's to refuse, causal or not.
    p_.window_right = o_.is_causal && o_.window_right == kUnlimited ? 0 : o_.window_right;
    p_.softmax_scale = o_.softmax_scale.value_or(default_softmax_scale(p_.head_dim_qk));
    p_.softcap = o_.softcap;
    p_.dropout_p = o_.dropout_p;
    p_.scores_kind = o_.scores_kind;
    p_.diagonal = o_.diagonal;
    p_.features.set(Feature::kNeedsGrad, o_.needs_grad);
    p_.features.set(Feature::kDLse, o_.d_lse);
    p_.features.set(Feature::kDelta, o_.delta);
    return {};
  }

  Status take_diagonal() {
    // Dropout counts rows from the diagonal where one is named, and needs none.
    const bool needed =
        p_.window_left >= 0 || p_.window_right >= 0 || p_.features.has(Feature::kAlibi);
    if (b_.diagonal_offsets.present()) {
      const NamedView offsets{"diagonal_offsets", b_.diagonal_offsets};
      if (Status s = expect_dtype(where_, offsets, {Dtype::kI64}); !s.ok()) return s;
      if (Status s = expect_shape(where_, offsets, {p_.batch}, "[B]"); !s.ok()) return s;
      p_.features.set(Feature::kDiagonalPerSequence);
    }
    if (!needed && p_.dropout_p == 0.0) return {};
    const bool offset = p_.diagonal == Diagonal::kOffset;
    if (b_.diagonal_offsets.present() && (!offset || b_.diagonal_offset != 0)) {
      return offset ? invalid(where_, "diagonal_offset (", b_.diagonal_offset,
                              ") must be 0 where diagonal_offsets are given")
                    : invalid(where_, "diagonal (", to_string(p_.diagonal),
                              ") must be offset where diagonal_offsets are given");
    }
    if (!offset && b_.diagonal_offset != 0) {
      return invalid(where_, "diagonal (", to_string(p_.diagonal),
                     ") must be offset where diagonal_offset (", b_.diagonal_offset, ") is given");
    }
    // With one view of lengths for both sides every diagonal is the same; params name it, since
    // they do not show that the views are one.
    if (needed && p_.diagonal == Diagonal::kUnnamed && p_.seqlen_q == p_.seqlen_kv &&
        one_view_of_lengths()) {
      p_.diagonal = Diagonal::kTopLeft;
    }
    return {};
  }

  bool one_view_of_lengths() const noexcept {
    const bool seqlens = b_.seqlens_q.present() || b_.seqlens_kv.present();
    const bool starts = b_.cu_seqlens_q.present() || b_.cu_seqlens_kv.present();
    return (seqlens || starts) && (!seqlens || same_view(b_.seqlens_q, b_.seqlens_kv)) &&
           (!starts || same_view(b_.cu_seqlens_q, b_.cu_seqlens_kv));
  }

  // No element of an output shares bytes with an input, another output or itself.
  Status check_overlaps() {
    for (int i = 0; i < count_; ++i) {
      if (!present_[i].tensor->output) continue;
      const TensorView& output = b_.*present_[i].tensor->view;
      if (!proves_injective(output)) {
        return invalid(where_, present_[i].tensor->name, " ", to_string(output),
                       " must not overlap itself");
      }
      for (int j = 0; j < count_; ++j) {
        // A pair of outputs is met twice; once is enough.
        if (j == i || (present_[j].tensor->output && j < i)) continue;
        if (!intersects(present_[i].span, present_[j].span)) continue;
        const TensorView& other = b_.*present_[j].tensor->view;
        if (proves_disjoint(output, other)) continue;
        return invalid(where_, present_[i].tensor->name, " ", to_string(output),
                       " must not overlap ", present_[j].tensor->name, " ", to_string(other));
      }
    }
    return {};
  }

  Status finish() {
    // Canonical params hide what contradicts itself (a NaN, a window of -7), so it is judged first.
    if (Status status = validate(p_, where_); !status.ok()) return status;
    canonicalize(p_);
    return {};
  }

  const Buffers& b_;
  const AttentionOptions& o_;
  const char* where_;
  AttentionParams p_;
  struct Present {
    const BufferTensor* tensor;
    ByteSpan span;
  };
  Present present_[std::size(kBufferTensors)];  // the first count_
  int count_ = 0;
};

}  // namespace

bool layout_matches(const TensorView& view, Layout layout) noexcept {
  switch (layout) {
    case Layout::kBhsd: return view.strides[2] == view.shape[3] || view.shape[2] <= 1;
    case Layout::kBshd: return view.strides[1] == view.shape[3] || view.shape[1] <= 1;
    case Layout::kStrided: return true;
  }
  return false;
}

std::int32_t align_log2_of(const TensorView& view) noexcept {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(view.data) | (1u << kMaxAlignLog2);
  for (int i = 0; i + 1 < view.rank; ++i) {
    if (view.shape[i] <= 1) continue;
    bits |= static_cast<std::uint64_t>(view.strides[i]) *
            static_cast<std::uint64_t>(size_of(view.dtype));
  }
  return std::countr_zero(bits);
}

AttentionOptions options_of(const AttentionParams& params) noexcept {
  AttentionOptions options;
  options.is_causal = params.window_right == 0;
  options.window_left = params.window_left;
  options.window_right = params.window_right;
  options.diagonal = params.diagonal;
  options.softmax_scale = params.softmax_scale;
  options.softcap = params.softcap;
  options.dropout_p = params.dropout_p;
  options.scores_kind = params.scores_kind;
  options.needs_grad = params.features.has(Feature::kNeedsGrad);
  options.d_lse = params.features.has(Feature::kDLse);
  options.delta = params.features.has(Feature::kDelta);
  options.page_size = params.page_size;
  return options;
}

Expected<AttentionParams> describe_buffers(const Buffers& buffers, const AttentionOptions& options,
                                           const char* where) {
  return Describer(buffers, options, where).run();
}

Expected<AttentionParams> describe(const AttentionRequest& request) try {
  return describe_buffers(request, request.options, "describe");
} catch (...) {
  return status_of_exception("describe");
}

}  // namespace regard
