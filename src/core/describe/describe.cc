#include "core/describe/describe.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/functions.h"
#include "core/describe/overlap.h"
#include "core/describe/scale_shapes.h"
#include "core/describe/tensor_rules.h"
#include "core/describe/view_checks.h"
#include "core/text/thrown_by.h"
#include "function/recognise.h"

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
  Describer(const Buffers& buffers, const AttentionOptions& options, const char* where,
            TensorSpecs specs)
      : b_(buffers), o_(options), where_(where), specs_(specs) {}

  Expected<AttentionParams> run() {
    using Step = Status (Describer::*)();
    static constexpr Step kSteps[] = {
        &Describer::check_views,   &Describer::take_main,      &Describer::take_packed,
        &Describer::take_paging,   &Describer::take_others,    &Describer::check_scales,
        &Describer::take_options,  &Describer::take_functions, &Describer::take_diagonal,
        &Describer::check_written, &Describer::finish};
    for (const Step step : kSteps) {
      if (Status status = (this->*step)(); !status.ok()) return status;
    }
    return p_;
  }

 private:
  // Every tensor by itself, before any size is multiplied or address computed elsewhere.
  Status check_views() {
    for (const TensorSpec& spec : specs_.first(kMainTensors)) {
      const TensorView& view = b_.*spec.buffer;
      if (view.rank == 4) continue;
      return expect_rank(where_, {spec.name, view}, 4, spec.shape.text());
    }
    for (const TensorSpec& spec : specs_) {
      if (spec.buffer == nullptr) break;  // the rows of a backward
      const TensorView& view = b_.*spec.buffer;
      if (!view.present()) continue;
      specs_present_[count_] = &spec;
      UsedTensor& used = present_[count_++];
      used.name = spec.name;
      used.view = &view;
      Status status = check_view(where_, {spec.name, view}, b_.q.device, &used.span);
      if (!status.ok()) return status;
    }
    for (const TensorSpec& spec : specs_.first(kMainTensors)) {
      if (Status s = check_last_stride(where_, spec, b_.*spec.buffer); !s.ok()) return s;
    }
    return {};
  }

  struct MaxSeqlen {
    const char* name;
    std::int64_t value;
  };

  Status expect_equal(const char* what, const char* a, std::int64_t actual, const char* b,
                      std::int64_t expected) {
    if (actual == expected) return {};
    return invalid(where_, what, " of ", a, " (", actual, ") must be ", b, "'s, ", expected);
  }

  // q, k, v, out: extents, heads, types, layouts. k and v are pages or a larger cache where a table
  // says so.
  Status take_main() {
    const bool own_batch = b_.page_table.present() || b_.cache_batch_idx.present();
    p_.device = b_.q.device;
    p_.dtype_q = b_.q.dtype;
    p_.dtype_k = b_.k.dtype;
    p_.dtype_v = b_.v.dtype;
    p_.dtype_out = b_.out.dtype;
    p_.batch = b_.q.shape[0];
    p_.num_heads_q = b_.q.shape[1];
    p_.num_heads_kv = b_.k.shape[1];
    p_.seqlen_q = b_.q.shape[2];
    p_.seqlen_kv = b_.k.shape[2];
    p_.head_dim_qk = b_.q.shape[3];
    p_.head_dim_v = b_.v.shape[3];
    for (const TensorSpec& spec : specs_.first(kMainTensors)) {
      const TensorView& view = b_.*spec.buffer;
      if (Status s = rules_.check_dtype(spec, view); !s.ok()) return s;
      p_.*spec.layout->order = layout_of(view);
      p_.*spec.layout->align_log2 = align_log2_of(view);
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
    return {};
  }

  // B is that of cu_seqlens.
  Status take_packed() {
    if (!b_.cu_seqlens_q.present() && !b_.cu_seqlens_kv.present()) return check_no_max_seqlens();
    if (!b_.cu_seqlens_q.present()) {
      return invalid(where_, "cu_seqlens_q (absent) must be given with cu_seqlens_kv");
    }
    if (!b_.cu_seqlens_kv.present() && !b_.page_table.present()) {
      return invalid(where_,
                     "cu_seqlens_kv (absent) must be given with cu_seqlens_q, or page_table");
    }
    if (b_.cu_seqlens_kv.present() && b_.page_table.present()) {
      return invalid(where_, "cu_seqlens_kv (given) must be left out with a page_table");
    }
    const NamedView starts{"cu_seqlens_q", b_.cu_seqlens_q};
    if (Status s = expect_rank(where_, starts, 1, "[B+1]"); !s.ok()) return s;
    if (starts.view.shape[0] < 1) {
      return invalid(where_, "shape of cu_seqlens_q ([0]) must be [B+1]");
    }
    if (Status s = expect_equal("batch", "packed q", p_.batch, "a packed tensor", 1); !s.ok()) {
      return s;
    }
    p_.batch = starts.view.shape[0] - 1;
    p_.total_q = p_.seqlen_q;
    p_.total_kv = b_.page_table.present() ? 0 : p_.seqlen_kv;
    return take_max_seqlens();
  }

  Status check_no_max_seqlens() {
    for (const auto& [name, value] : {MaxSeqlen{"max_seqlen_q", b_.max_seqlen_q},
                                      MaxSeqlen{"max_seqlen_kv", b_.max_seqlen_kv}}) {
      if (value == 0) continue;
      return invalid(where_, name, " (", value, ") must be 0 without cu_seqlens_q");
    }
    return {};
  }

  // Without them no sequence is longer than all together.
  Status take_max_seqlens() {
    const bool paged = b_.page_table.present();
    if (paged && b_.max_seqlen_kv != 0) {
      return invalid(where_, "max_seqlen_kv (", b_.max_seqlen_kv, ") must be 0 with a page_table");
    }
    for (const auto& [name, value] : {MaxSeqlen{"max_seqlen_q", b_.max_seqlen_q},
                                      MaxSeqlen{"max_seqlen_kv", b_.max_seqlen_kv}}) {
      if (value < 0) return invalid(where_, name, " (", value, ") must be >= 0 (0: not stated)");
    }
    if (b_.max_seqlen_q > 0) p_.seqlen_q = std::min(b_.max_seqlen_q, p_.total_q);
    if (b_.max_seqlen_kv > 0) p_.seqlen_kv = std::min(b_.max_seqlen_kv, p_.total_kv);
    return {};
  }

  // Skv is the number of rows that the pages of one sequence hold.
  Status take_paging() {
    if (b_.cache_batch_idx.present() && (b_.page_table.present() || b_.cu_seqlens_q.present())) {
      return invalid(where_, "cache_batch_idx (given) must be left out with ",
                     b_.page_table.present() ? "a page_table" : "cu_seqlens_q",
                     ": it names an entry of the batch of k for each entry of q's");
    }
    if (b_.k_new.present() && (!b_.seqlens_kv.present() || b_.cu_seqlens_kv.present())) {
      return b_.cu_seqlens_kv.present()
                 ? invalid(where_, "k_new (given) must be left out with cu_seqlens_kv")
                 : invalid(where_, "seqlens_kv (absent) must be given with k_new, which follows ",
                           "the rows that a sequence has");
    }
    if (b_.cache_leftpad.present() && b_.cu_seqlens_kv.present()) {
      return invalid(where_,
                     "cache_leftpad (given) must be left out with cu_seqlens_kv, which say ",
                     "where keys begin");
    }
    if (!b_.page_table.present()) {
      if (o_.page_size == 0) return {};
      return invalid(where_, "page_size (", o_.page_size, ") must be 0 without a page_table");
    }
    const NamedView table{"page_table", b_.page_table};
    if (Status s = expect_rank(where_, table, 2, "[B,pages]"); !s.ok()) return s;
    const std::int64_t page_size = b_.k.shape[2];
    if (page_size < 1 || (o_.page_size != 0 && o_.page_size != page_size)) {
      return invalid(where_, "page_size (", o_.page_size, ") must be the rows of a page of k (",
                     page_size, "), at least 1");
    }
    p_.num_pages = b_.k.shape[0];
    p_.page_size = page_size;
    if (!checked_mul(table.view.shape[1], page_size, &p_.seqlen_kv)) {
      return failure(StatusCode::kOverflow, where_, "page_table of ", table.view.shape[1],
                     " pages of ", page_size, " rows: the product must fit 64 bits");
    }
    return {};
  }

  // Every tensor but q, k, v and out, by the rules of its row.
  Status take_others() {
    if (count_ == kMainTensors) return {};
    extents_ = extents_of(p_);
    extents_[Extent::kEntries] = b_.k.shape[0];
    extents_[Extent::kRows] = b_.k.shape[2];
    set_scale_extents(b_.q, o_.scale_layout, Extent::kScaleRowsQ, Extent::kScaleColumnsQ,
                      &extents_);
    set_scale_extents(b_.k, o_.scale_layout, Extent::kScaleRowsK, Extent::kScaleColumnsK,
                      &extents_);
    set_scale_extents(b_.v, o_.scale_layout, Extent::kScaleRowsV, Extent::kScaleColumnsV,
                      &extents_);
    for (int i = kMainTensors; i < count_; ++i) {
      const TensorSpec& spec = *specs_present_[i];
      const TensorView& view = *present_[i].view;
      ShapeMatch match;
      if (Status s = rules_.check(spec, view, &match); !s.ok()) return s;
      p_.features = p_.features.with(spec.features);
      if (match.is_second) p_.features = p_.features.with(spec.second_shape_features);
      if (spec.dtype_in_params != nullptr) p_.*spec.dtype_in_params = view.dtype;
      if (spec.full_dims != nullptr) p_.*spec.full_dims = match.full_dims;
    }
    if (p_.features.has(Feature::kRotary)) {
      p_.rotary_dim = saturating_mul(extents_[Extent::kRotaryHalf], 2);
    }
    return {};
  }

  // Of 8-bit floats alone: no other queries are codes.
  Status check_query_scales() {
    if (o_.quantize_probs && !is_f8(b_.q.dtype)) {
      return invalid(where_, "quantize_probs (true) must be false where q is ",
                     to_string(b_.q.dtype), ", not f8e4m3 or f8e5m2");
    }
    if (b_.scales_q.present() && !is_f8(b_.q.dtype)) {
      return invalid(where_, "scales_q (given) must be left out where q is ", to_string(b_.q.dtype),
                     ", not f8e4m3 or f8e5m2");
    }
    if (o_.scale_layout != ScaleLayout::kRows && !b_.scales_q.present() && !b_.scales_k.present() &&
        !b_.scales_v.present()) {
      return invalid(where_, "scale_layout (", to_string(o_.scale_layout),
                     ") must be left out without scales_q, scales_k and scales_v");
    }
    p_.features = with_scale_layout(p_.features, o_.scale_layout);
    p_.features.set(Feature::kFutureScales, o_.allow_future_scales);
    p_.features.set(Feature::kQuantizedProbs, o_.quantize_probs);
    return check_scale_shape(where_, o_.scale_layout, {"q", b_.q}, {"scales_q", b_.scales_q});
  }

  // Of k and v of 8 bits, or 4, alone; integers mean nothing without them.
  Status check_scales() {
    struct Scaled {
      const char* name;
      const TensorView& rows;
      const char* scales_name;
      const TensorView& scales;
      bool needed;
    };
    const bool by_channel = b_.channel_scales_k.present();
    const Scaled all[] = {
        {"k", b_.k, "scales_k", b_.scales_k,
         b_.k.dtype == Dtype::kU4 || (b_.k.dtype == Dtype::kI8 && !by_channel)},
        {"v", b_.v, "scales_v", b_.scales_v, b_.v.dtype == Dtype::kU4 || b_.v.dtype == Dtype::kI8},
        {"k", b_.k, "channel_scales_k", b_.channel_scales_k, false}};
    for (const Scaled& s : all) {
      if (s.scales.present() && !is_quantised(s.rows.dtype)) {
        return invalid(where_, s.scales_name, " (given) must be left out where ", s.name, " is ",
                       to_string(s.rows.dtype), ", not i8, u4, f8e4m3 or f8e5m2");
      }
      if (s.needed && !s.scales.present()) {
        return invalid(where_, s.scales_name, " (absent) must be given with ", s.name, " of ",
                       to_string(s.rows.dtype));
      }
      if (&s.scales != &b_.channel_scales_k) {
        Status status =
            check_scale_shape(where_, o_.scale_layout, {s.name, s.rows}, {s.scales_name, s.scales});
        if (!status.ok()) return status;
      }
      const bool has_blocks = o_.scale_layout != ScaleLayout::kRows && s.rows.dtype != Dtype::kU4;
      const bool per_row = s.scales.rank >= 3 && s.scales.shape[2] == s.rows.shape[2];
      if (per_row && !has_blocks) p_.features.set(Feature::kScalesPerToken);
    }
    return check_query_scales();
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
                 ? invalid(where_,
                           "scores_kind (none) must be scaled, edited or probs where scores_out is "
                           "given")
                 : invalid(where_, "scores_out (absent) must be given with scores_kind ",
                           to_string(o_.scores_kind));
    }
    p_.window_left = o_.window_left;
    // A right bound below -1 is validate's to refuse, causal or not.
    p_.window_right = o_.is_causal && o_.window_right == kUnlimited ? 0 : o_.window_right;
    p_.softmax_scale = o_.softmax_scale.value_or(default_softmax_scale(p_.head_dim_qk));
    p_.softcap = o_.softcap;
    p_.dropout_p = o_.dropout_p;
    if (Status s = check_dropout_origin(); !s.ok()) return s;
    p_.features.set(Feature::kDropoutOrigin, b_.dropout_origin != DropoutOrigin{});
    p_.scores_kind = o_.scores_kind;
    p_.diagonal = o_.diagonal;
    p_.tokens_q = o_.tokens_q;
    p_.tokens_kv = o_.tokens_kv;
    p_.features.set(Feature::kNeedsGrad, o_.needs_grad);
    p_.features.set(Feature::kDLse, o_.d_lse);
    p_.features.set(Feature::kDelta, o_.delta);
    if (Status s = take_f8(); !s.ok()) return s;
    return take_rotary();
  }

  Status check_dropout_origin() const {
    const DropoutOrigin& origin = b_.dropout_origin;
    if (origin.key < 0 || origin.key % 8 != 0) {
      return invalid(where_, "dropout_origin.key (", origin.key,
                     ") must be a multiple of 8, at least 0");
    }
    if (origin.heads < 0 || origin.heads > UINT32_MAX) {
      return invalid(where_, "dropout_origin.heads (", origin.heads, ") must be 0 to 4294967295");
    }
    return {};
  }

  // What only a backward of 8-bit floats has a choice of.
  Status take_f8() {
    struct Chosen {
      const char* name;
      const std::optional<Dtype>& dtype;
      Dtype otherwise;
    };
    for (const Chosen& c : {Chosen{"dtype_d_out", o_.dtype_d_out, p_.dtype_out},
                            Chosen{"dtype_gradients", o_.dtype_gradients, p_.dtype_q}}) {
      if (!c.dtype || is_f8(p_.dtype_q) || *c.dtype == c.otherwise) continue;
      return invalid(where_, c.name, " (", to_string(*c.dtype), ") must be left out, or ",
                     to_string(c.otherwise), ", where q is ", to_string(p_.dtype_q),
                     ": only 8-bit floats have gradients of other types");
    }
    p_.dtype_d_out = o_.dtype_d_out.value_or(p_.dtype_out);
    p_.dtype_gradients = o_.dtype_gradients.value_or(default_dtype_out(p_.dtype_q));
    p_.fp8_recipe = o_.fp8_recipe;
    return {};
  }

  // Without new rows nothing says where queries stand.
  Status take_rotary() {
    const bool rotates = p_.features.has(Feature::kRotary);
    if (o_.rotary_interleaved && !rotates) {
      return invalid(where_, "rotary_interleaved (true) must be false without rotary_cos");
    }
    if (rotates && !b_.k_new.present() && !b_.positions.present()) {
      return invalid(where_, "positions (absent) must be given with rotary_cos without k_new, ",
                     "whose rows say where queries stand");
    }
    if (b_.positions.present() && b_.k_new.present() && b_.k_new.shape[2] != p_.seqlen_q) {
      return invalid(where_, "seqlen of k_new (", b_.k_new.shape[2], ") must be q's, ", p_.seqlen_q,
                     ", with positions: both have one for each row");
    }
    p_.features.set(Feature::kRotaryInterleaved, o_.rotary_interleaved);
    p_.features.set(Feature::kHadamard, o_.hadamard);
    return {};
  }

  Status take_functions() {
    p_.score_function = o_.score_function;
    p_.mask_function = o_.mask_function;
    p_.block_size_q = o_.block_size_q;
    p_.block_size_kv = o_.block_size_kv;
    if (b_.score_callback.edit != nullptr) p_.features.set(Feature::kScoreCallback);
    // Its types are judged before anything is concluded from it.
    if (Status s = check_functions(p_, where_); !s.ok()) return s;
    if (Status s = check_captured(b_, p_, where_); !s.ok()) return s;
    return check_block_mask(b_, p_, where_);
  }

  Status take_diagonal() {
    function::recognise_features(&p_);
    // Dropout counts rows from the diagonal where one is named, and needs none.
    const bool needed = p_.window_left >= 0 || p_.window_right >= 0 ||
                        p_.features.has(Feature::kAlibi) || uses_of_functions(p_).position;
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
           (!starts || same_view(b_.cu_seqlens_q, b_.cu_seqlens_kv)) && !b_.cache_leftpad.present();
  }

  Status check_written() {
    for (int i = 0; i < count_; ++i) {
      UsedTensor& used = present_[i];
      used.is_written = is_written(specs_present_[i]->forward_with(p_.features));
      if (!used.is_written) continue;
      if (Status s = check_writable(where_, {used.name, *used.view}); !s.ok()) return s;
    }
    return check_overlaps(where_, {present_, static_cast<std::size_t>(count_)});
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
  const TensorSpecs specs_;
  AttentionParams p_;
  Extents extents_;
  TensorRules rules_{where_, b_, specs_, b_.cu_seqlens_q.present(), &extents_};
  // The tensors that are there: the first count_.
  UsedTensor present_[kMaxTensors];
  const TensorSpec* specs_present_[kMaxTensors];
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

std::int32_t align_log2_of(const TensorView& elements) noexcept {
  const TensorView view = as_bytes(elements);
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
  if (options.needs_grad && is_f8(params.dtype_q)) {
    options.dtype_d_out = params.dtype_d_out;
    options.dtype_gradients = params.dtype_gradients;
  }
  options.fp8_recipe = params.fp8_recipe;
  options.scale_layout = scale_layout_of(params.features);
  options.allow_future_scales = params.features.has(Feature::kFutureScales);
  options.quantize_probs = params.features.has(Feature::kQuantizedProbs);
  options.page_size = params.page_size;
  options.rotary_interleaved = params.features.has(Feature::kRotaryInterleaved);
  options.hadamard = params.features.has(Feature::kHadamard);
  options.score_function = params.score_function;
  options.mask_function = params.mask_function;
  options.block_size_q = params.block_size_q;
  options.block_size_kv = params.block_size_kv;
  options.tokens_q = params.tokens_q;
  options.tokens_kv = params.tokens_kv;
  return options;
}

Expected<AttentionParams> describe_buffers(const Buffers& buffers, const AttentionOptions& options,
                                           const char* where, TensorSpecs specs) {
  return Describer(buffers, options, where, specs).run();
}

Expected<AttentionParams> describe(const AttentionRequest& request) try {
  return describe_buffers(request, request.options, "describe");
} catch (...) {
  return status_of_exception("describe");
}

}  // namespace regard
