#include "conformance/problem.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "conformance/captured.h"
#include "conformance/delta.h"
#include "conformance/fill.h"
#include "conformance/layout.h"
#include "conformance/rng.h"
#include "conformance/spelling.h"
#include "oracle/number.h"
#include "oracle/padded.h"
#include "oracle/rules.h"

namespace regard::conformance {
namespace {

constexpr int kFloatAlign = 2;  // log2 of the bytes that an f32 is aligned to
constexpr std::uint64_t kSideStream = 0x73696465;
constexpr std::uint64_t kGradStream = 0x67726164;
constexpr std::uint64_t kStartsStream = 0x737461727473;
constexpr std::uint64_t kAnglesStream = 0x616e676c6573;
constexpr std::uint64_t kTreeProblemStream = 0x74726565;
constexpr std::uint64_t kCapturedStream = 0x63617074;
constexpr std::uint64_t kSpellingStream = 0x7370656c6c;

TensorView shaped(Dtype dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view;
  view.dtype = dtype;
  for (const std::int64_t extent : shape) view.shape[view.rank++] = extent;
  return view;
}

AttentionOptions options_of(const Case& c, Rng* rng) {
  const AttentionParams& p = c.params;
  AttentionOptions options;
  // Both spellings of causal must mean the same.
  options.is_causal = p.window_right == 0;
  options.window_right = options.is_causal && rng->chance(0.5) ? kUnlimited : p.window_right;
  options.window_left = p.window_left;
  options.diagonal = p.diagonal;
  // So must a default scale, given or left out.
  if (p.softmax_scale != default_softmax_scale(p.head_dim_qk) || rng->chance(0.5)) {
    options.softmax_scale = p.softmax_scale;
  }
  options.softcap = p.softcap;
  options.dropout_p = p.dropout_p;
  options.scores_kind = p.scores_kind;
  options.needs_grad = p.features.has(Feature::kNeedsGrad);
  options.d_lse = p.features.has(Feature::kDLse);
  options.delta = p.features.has(Feature::kDelta);
  if (options.needs_grad && is_f8(p.dtype_q)) {
    // The defaults may be left out.
    if (p.dtype_d_out != p.dtype_out || rng->chance(0.5)) options.dtype_d_out = p.dtype_d_out;
    if (p.dtype_gradients != Dtype::kBf16 || rng->chance(0.5)) {
      options.dtype_gradients = p.dtype_gradients;
    }
  }
  options.fp8_recipe = p.fp8_recipe;
  options.scale_layout = scale_layout_of(p.features);
  options.allow_future_scales = p.features.has(Feature::kFutureScales);
  options.quantize_probs = p.features.has(Feature::kQuantizedProbs);
  options.rotary_interleaved = p.features.has(Feature::kRotaryInterleaved);
  options.hadamard = p.features.has(Feature::kHadamard);
  options.score_function = p.score_function;
  options.mask_function = p.mask_function;
  options.block_size_q = p.block_size_q;
  options.block_size_kv = p.block_size_kv;
  // ... and windows and a softcap that are written as functions; not with seed 0, so that planted
  // faults meet each feature itself.
  Rng spelling(c.data.seed, kSpellingStream);
  if (c.data.seed != 0 && spelling.chance(0.3)) spell_as_functions(c, &spelling, &options);
  return options;
}

constexpr const char* kCapturedNames[oracle::kCapturedCount] = {
    "captured0", "captured1", "captured2", "captured3",
    "captured4", "captured5", "captured6", "captured7"};
constexpr const char* kGradientNames[oracle::kCapturedCount] = {
    "d_captured0", "d_captured1", "d_captured2", "d_captured3",
    "d_captured4", "d_captured5", "d_captured6", "d_captured7"};
constexpr TensorView GradBuffers::*kGradients[oracle::kCapturedCount] = {
    &GradBuffers::d_captured0, &GradBuffers::d_captured1, &GradBuffers::d_captured2,
    &GradBuffers::d_captured3, &GradBuffers::d_captured4, &GradBuffers::d_captured5,
    &GradBuffers::d_captured6, &GradBuffers::d_captured7};

/// The callback of a case with score_callback: a factor of the head and a term of the place, and
/// -inf for some keys.
bool callback_hides(std::int64_t q, std::int64_t key) { return (q + 2 * key) % 11 == 3; }
float callback_factor(std::int64_t h) { return 0.75f + 0.125f * static_cast<float>(h % 3); }

void edit_scores(void*, float* scores, std::int64_t count, std::int64_t b, std::int64_t h,
                 std::int64_t q, std::int64_t kv_begin) {
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t key = kv_begin + n;
    const float term = 0.25f * static_cast<float>((3 * q + key + b) % 5);
    scores[n] = callback_hides(q, key) ? -std::numeric_limits<float>::infinity()
                                       : scores[n] * callback_factor(h) + term;
  }
}

void edit_gradients(void*, const float*, float* d_scores, std::int64_t count, std::int64_t,
                    std::int64_t h, std::int64_t q, std::int64_t kv_begin) {
  for (std::int64_t n = 0; n < count; ++n) {
    d_scores[n] *= callback_hides(q, kv_begin + n) ? 0.0f : callback_factor(h);
  }
}

}  // namespace

/// Gives each tensor its memory.
class ProblemBuilder {
 public:
  ProblemBuilder(const Case& c, const ProblemOptions& options)
      : options_(options), rng_(c.data.seed, kSideStream) {
    problem_.case_ = c;
  }

  Problem build() {
    AttentionGradRequest& r = problem_.request_;
    r.options = options_of(problem_.case_, &rng_);
    add_main_tensors(&r);
    add_masks(&r);
    add_vectors(&r);
    add_functions(&r);
    add_outputs(&r);
    if (has(Feature::kNeedsGrad)) add_gradients(&r);
    fill_inputs(problem_.case_, &r);
    if (problem_.case_.data.poison) poison(problem_.case_, &r);
    for (const Block& block : problem_.blocks_) {
      problem_.before_.emplace_back(block.data(), block.data() + block.size());
    }
    return std::move(problem_);
  }

 private:
  bool has(Feature feature) const { return problem_.case_.params.features.has(feature); }
  Strides loose(Strides max) const { return options_.dense ? Strides::kDense : max; }

  std::size_t add_block(std::int64_t elements, Dtype dtype, int align_log2) {
    const auto bytes = static_cast<std::size_t>(bytes_of(dtype, elements));
    problem_.blocks_.emplace_back(bytes, align_log2, options_.guard);
    return problem_.blocks_.size() - 1;
  }

  TensorView place(const char* name, TensorView view, std::size_t block, bool is_output = false,
                   std::int64_t offset = 0) {
    view.data = problem_.blocks_[block].data() + bytes_of(view.dtype, offset);
    problem_.tensors_.push_back({name, view, block, is_output, is_output && of_backward_});
    return view;
  }

  TensorView place_alone(const char* name, const TensorView& view, int align_log2,
                         bool is_output = false) {
    return place(name, view, add_block(footprint(view), view.dtype, align_log2), is_output);
  }

  /// Gradients may have larger elements than their tensors.
  static std::int32_t aligned(std::int32_t align_log2, Dtype dtype) {
    return std::max(align_log2, static_cast<std::int32_t>(
                                    __builtin_ctz(static_cast<unsigned>(size_of(dtype)))));
  }

  void add_main_tensors(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const Arrangement a = arrange(problem_.case_, options_.dense);
    if (a.packed_qkv) {
      const std::int64_t elements = memory_extents(p).batch * a.q.strides[0];
      const std::int32_t align_log2 = std::max({p.align_q_log2, p.align_k_log2, p.align_v_log2});
      const std::size_t block = add_block(elements, p.dtype_q, align_log2);
      r->q = place("q", a.q, block);
      r->k = place("k", a.k, block, false, a.offset_k);
      r->v = place("v", a.v, block, false, a.offset_v);
    } else {
      r->q = place_alone("q", a.q, p.align_q_log2);
      r->k = place_alone("k", a.k, p.align_k_log2);
      r->v = place_alone("v", a.v, p.align_v_log2);
    }
    r->out = place_alone("out", a.out, p.align_out_log2, true);
  }

  TensorView score_shaped(Dtype dtype, BroadcastDims dims) const {
    const AttentionParams& p = problem_.case_.params;
    return shaped(dtype, {(dims & 1) != 0 ? p.batch : 1, (dims & 2) != 0 ? p.num_heads_q : 1,
                          (dims & 4) != 0 ? p.seqlen_q : 1, (dims & 8) != 0 ? p.seqlen_kv : 1});
  }

  TensorView add_loose(const char* name, const TensorView& view, Strides strides,
                       bool is_output = false) {
    const int align_log2 = __builtin_ctz(static_cast<unsigned>(size_of(view.dtype)));
    return place_alone(name, arrange_loosely(view, loose(strides), &rng_), align_log2, is_output);
  }

  void add_masks(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const Dtype mask_dtype = rng_.chance(0.3) ? Dtype::kU8 : Dtype::kBool;
    if (has(Feature::kAttnMask)) {
      r->attn_mask =
          add_loose("attn_mask", score_shaped(mask_dtype, p.mask_dims), Strides::kExpanded);
    }
    if (has(Feature::kAttnBias)) {
      r->attn_bias =
          add_loose("attn_bias", score_shaped(p.dtype_bias, p.bias_dims), Strides::kExpanded);
    }
  }

  void add_vectors(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const bool slopes_per_batch = rng_.chance(0.5);
    const auto add = [&](Feature feature, const char* name, TensorView* field,
                         const TensorView& view) {
      if (has(feature)) *field = add_loose(name, view, Strides::kSpread);
    };
    add(Feature::kAlibi, "alibi_slopes", &r->alibi_slopes,
        slopes_per_batch ? shaped(Dtype::kF32, {p.batch, p.num_heads_q})
                         : shaped(Dtype::kF32, {p.num_heads_q}));
    add(Feature::kSinks, "sinks", &r->sinks, shaped(Dtype::kF32, {p.num_heads_q}));
    const bool packed = has(Feature::kPacked);
    const auto positions = [&](bool in_one, std::int64_t seqlen, std::int64_t total) {
      return in_one ? shaped(Dtype::kI32, {total}) : shaped(Dtype::kI32, {p.batch, seqlen});
    };
    add(Feature::kSegmentIds, "segment_ids_q", &r->segment_ids_q,
        positions(packed, p.seqlen_q, p.total_q));
    add(Feature::kSegmentIds, "segment_ids_kv", &r->segment_ids_kv,
        positions(packed && !has(Feature::kPaged), p.seqlen_kv, p.total_kv));
    if (packed) add_starts(r);
    if (has(Feature::kPaged)) {
      r->page_table =
          add_loose("page_table", shaped(Dtype::kI32, {p.batch, p.seqlen_kv / p.page_size}),
                    Strides::kSpread);
    }
    add_scales(r);
    if (has(Feature::kAppendKv)) add_new_rows(r);
    if (has(Feature::kTreeMask)) add_tree(r);
    if (has(Feature::kRotary)) add_angles(r);
    add(Feature::kPositions, "positions", &r->positions, positions(packed, p.seqlen_q, p.total_q));
    add(Feature::kCacheBatchIdx, "cache_batch_idx", &r->cache_batch_idx,
        shaped(Dtype::kI32, {p.batch}));
    add(Feature::kSeqlensQ, "seqlens_q", &r->seqlens_q, shaped(Dtype::kI32, {p.batch}));
    add(Feature::kSeqlensKv, "seqlens_kv", &r->seqlens_kv, shaped(Dtype::kI32, {p.batch}));
    add(Feature::kCacheLeftpad, "cache_leftpad", &r->cache_leftpad, shaped(Dtype::kI32, {p.batch}));
    add(Feature::kDiagonalPerSequence, "diagonal_offsets", &r->diagonal_offsets,
        shaped(Dtype::kI64, {p.batch}));
    if (has(Feature::kDescales)) add_descales(r);
  }

  /// Of u4 a scale and a minimum beside one another for each group of a row; else of blocks.
  TensorView scales_of_blocks(std::int64_t batch, std::int64_t heads, std::int64_t rows,
                              std::int64_t head_dim, bool of_groups) {
    const ScaleLayout layout = scale_layout_of(problem_.case_.params.features);
    const ScaleBlock block = of_groups ? ScaleBlock{1, 32} : block_of(layout);
    const std::int64_t blocks = (head_dim + block.columns - 1) / block.columns;
    TensorView view = shaped(Dtype::kF32, {batch, heads, (rows + block.rows - 1) / block.rows,
                                           of_groups ? 2 * blocks : blocks});
    view.strides[3] = 1;
    view.strides[2] = view.shape[3] + (options_.dense || rng_.chance(0.6) ? 0 : 3);
    view.strides[1] = view.strides[2] * std::max<std::int64_t>(view.shape[2], 1);
    view.strides[0] = view.strides[1] * std::max<std::int64_t>(heads, 1);
    return view;
  }

  /// Of q, and of k and v where they have 8 bits, or 4; k of i8 may have those of its columns
  /// alone.
  void add_scales(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const MemoryExtents of = memory_extents(p);
    const std::int64_t rows = has(Feature::kScalesPerToken) ? of.rows_kv : 1;
    const bool has_blocks = scale_layout_of(p.features) != ScaleLayout::kRows;
    const auto add = [&](const char* name, TensorView* field, Dtype dtype, std::int64_t head_dim) {
      if (!has(Feature::kScales) || !is_quantised(dtype)) return;
      if (dtype == Dtype::kU4 || has_blocks) {
        const TensorView numbers = scales_of_blocks(of.batch_kv, p.num_heads_kv, of.rows_kv,
                                                    head_dim, dtype == Dtype::kU4);
        *field = place_alone(name, numbers, kFloatAlign);
        return;
      }
      const TensorView view = shaped(Dtype::kF32, {of.batch_kv, p.num_heads_kv, rows});
      *field = add_loose(name, view, Strides::kSpread);
    };
    if (has(Feature::kScalesQ)) r->scales_q = add_query_scales("scales_q", p.head_dim_qk);
    add("scales_k", &r->scales_k, p.dtype_k, p.head_dim_qk);
    add("scales_v", &r->scales_v, p.dtype_v, p.head_dim_v);
    if (!has(Feature::kChannelScales)) return;
    const TensorView view = shaped(Dtype::kF32, {p.num_heads_kv, p.head_dim_qk});
    r->channel_scales_k = add_loose("channel_scales_k", view, Strides::kSpread);
  }

  /// Of rows of q or d_out, or of their blocks.
  TensorView add_query_scales(const char* name, std::int64_t head_dim) {
    const AttentionParams& p = problem_.case_.params;
    const MemoryExtents of = memory_extents(p);
    if (scale_layout_of(p.features) != ScaleLayout::kRows) {
      const TensorView numbers =
          scales_of_blocks(of.batch, p.num_heads_q, of.rows_q, head_dim, false);
      return place_alone(name, numbers, kFloatAlign);
    }
    return add_loose(name, shaped(Dtype::kF32, {of.batch, p.num_heads_q, of.rows_q}),
                     Strides::kSpread);
  }

  void add_new_rows(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const std::int64_t rows = problem_.case_.data.new_rows;
    const auto add = [&](const char* name, Dtype dtype, std::int64_t head_dim) {
      TensorView view = shaped(dtype, {p.batch, p.num_heads_kv, rows, head_dim});
      std::int64_t stride = 1;
      for (int dim = 3; dim >= 0; --dim) {
        view.strides[dim] = stride;
        stride *= std::max<std::int64_t>(view.shape[dim], 1);
        if (dim == 3 && !options_.dense) stride += 3;  // rows that are not dense
      }
      return place_alone(name, view, __builtin_ctz(static_cast<unsigned>(size_of(dtype))));
    };
    const bool quantises_k = r->scales_k.present() || r->channel_scales_k.present();
    r->k_new = add("k_new", quantises_k ? p.dtype_q : p.dtype_k, p.head_dim_qk);
    r->v_new = add("v_new", r->scales_v.present() ? p.dtype_q : p.dtype_v, p.head_dim_v);
  }

  /// One for all sequences, or one each.
  void add_tree(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    Rng rng(problem_.case_.data.seed, kTreeProblemStream);
    const Dtype dtype = rng.chance(0.3) ? Dtype::kU8 : Dtype::kBool;
    const TensorView view =
        shaped(dtype, {rng.chance(0.5) ? p.batch : 1, p.seqlen_q, problem_.case_.data.tree_keys});
    r->tree_mask = add_loose("tree_mask", view, Strides::kExpanded);
  }

  /// Rows for every position that lengths, or positions, state; f32 or q's type.
  void add_angles(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    Rng rng(problem_.case_.data.seed, kAnglesStream);
    const bool is_f32 = is_f8(p.dtype_q) || !is_float(p.dtype_q) || rng.chance(0.6);
    const std::int64_t rows = p.seqlen_kv + p.seqlen_q + 1;
    const TensorView view = shaped(is_f32 ? Dtype::kF32 : p.dtype_q, {rows, p.rotary_dim / 2});
    r->rotary_cos = add_loose("rotary_cos", view, Strides::kSpread);
    r->rotary_sin = add_loose("rotary_sin", view, Strides::kSpread);
  }

  /// What functions read, and a mask of blocks, of each sequence and head or of all.
  void add_functions(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    Rng rng(problem_.case_.data.seed, kCapturedStream);
    constexpr Dtype kReals[] = {Dtype::kF32, Dtype::kF32, Dtype::kBf16, Dtype::kF16, Dtype::kF64};
    constexpr Dtype kInts[] = {Dtype::kI32, Dtype::kI32, Dtype::kI64, Dtype::kU8, Dtype::kBool};
    const auto specs = captured_of(problem_.case_);
    for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
      const CapturedSpec& spec = specs[static_cast<std::size_t>(slot)];
      TensorView view;
      view.dtype = spec.is_int ? rng.pick(kInts) : rng.pick(kReals);
      view.rank = spec.rank;
      std::copy_n(spec.extent, spec.rank, view.shape);
      if (spec.is_read) {
        r->*oracle::kCaptured[slot] = add_loose(kCapturedNames[slot], view, Strides::kExpanded);
      }
    }
    if (has(Feature::kScoreCallback)) r->score_callback = {edit_scores, edit_gradients, nullptr};
    if (!has(Feature::kBlockMask)) return;
    const auto blocks = [](std::int64_t extent, std::int64_t size) {
      return (extent + size - 1) / size;
    };
    const std::int64_t batch = rng.chance(0.5) ? p.batch : 1;
    const std::int64_t heads = rng.chance(0.5) ? p.num_heads_q : 1;
    const TensorView view = shaped(Dtype::kU8, {batch, heads, blocks(p.seqlen_q, p.block_size_q),
                                                blocks(p.seqlen_kv, p.block_size_kv)});
    r->block_mask = add_loose("block_mask", view, Strides::kSpread);
  }

  /// i32 or i64, and often the longest lengths as the case states them.
  void add_starts(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    Rng rng(problem_.case_.data.seed, kStartsStream);
    const auto add = [&](const char* name) {
      const Dtype dtype = rng.chance(0.5) ? Dtype::kI64 : Dtype::kI32;
      TensorView view = shaped(dtype, {p.batch + 1});
      view.strides[0] = 1;
      return place_alone(name, view, __builtin_ctz(static_cast<unsigned>(size_of(dtype))));
    };
    r->cu_seqlens_q = add("cu_seqlens_q");
    r->max_seqlen_q = p.seqlen_q;
    if (has(Feature::kPaged)) return;  // the table says where keys lie
    r->cu_seqlens_kv = add("cu_seqlens_kv");
    r->max_seqlen_kv = p.seqlen_kv;
  }

  /// Some of the three; where a case has them by head, one of them is, and the others may be.
  void add_descales(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const std::pair<const char*, TensorView*> scales[] = {
        {"descale_q", &r->descale_q}, {"descale_k", &r->descale_k}, {"descale_v", &r->descale_v}};
    const std::int64_t certain = rng_.between(0, 2);
    for (std::int64_t n = 0; n < 3; ++n) {
      const auto& [name, field] = scales[n];
      const bool is_certain = n == certain;
      const bool present = rng_.chance(0.8) || is_certain || options_.dense;
      const bool per_head = rng_.chance(0.6) || is_certain;
      if (!present) continue;
      const TensorView view = per_head && has(Feature::kDescalesPerHead)
                                  ? shaped(Dtype::kF32, {p.batch, p.num_heads_kv})
                                  : shaped(Dtype::kF32, {1});
      *field = add_loose(name, view, Strides::kSpread);
    }
  }

  void add_outputs(AttentionRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const Dtype wide = p.dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
    const MemoryExtents of = memory_extents(p);
    const auto add = [&](Feature feature, const char* name, TensorView* field,
                         const TensorView& view) {
      if (has(feature)) *field = add_loose(name, view, Strides::kSpread, true);
    };
    add(Feature::kLse, "lse", &r->lse, per_row(wide));
    add(Feature::kSavedStats, "saved_stats", &r->saved_stats,
        shaped(wide, {of.batch, p.num_heads_q, of.rows_q, 2}));
    add(Feature::kOutAmax, "out_amax", &r->out_amax, shaped(Dtype::kF32, {1}));
    add(Feature::kScoresOut, "scores_out", &r->scores_out,
        shaped(wide, {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv}));
  }

  /// A number for each row: [B,Hq,Sq], or packed [Hq,total_q].
  TensorView per_row(Dtype dtype) const {
    const AttentionParams& p = problem_.case_.params;
    return has(Feature::kPacked) ? shaped(dtype, {p.num_heads_q, p.total_q})
                                 : shaped(dtype, {p.batch, p.num_heads_q, p.seqlen_q});
  }

  /// What a backward reads and writes. Each gradient may be left out; a dense problem has them all.
  void add_gradients(AttentionGradRequest* r) {
    const AttentionParams& p = problem_.case_.params;
    const GradArrangement a = arrange_gradients(problem_.case_, options_.dense);
    rng_ = Rng(problem_.case_.data.seed, kGradStream);
    of_backward_ = true;
    const Dtype wide = p.dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
    r->d_out = place_alone("d_out", a.d_out, aligned(p.align_out_log2, a.d_out.dtype));
    if (has(Feature::kDescales)) {
      const TensorView view = has(Feature::kDescalesPerHead)
                                  ? shaped(Dtype::kF32, {p.batch, p.num_heads_kv})
                                  : shaped(Dtype::kF32, {1});
      r->descale_d_out = add_loose("descale_d_out", view, Strides::kSpread);
      r->gradient_scales = add_loose("gradient_scales", shaped(Dtype::kF32, {3}), Strides::kSpread);
      r->gradient_amax =
          add_loose("gradient_amax", shaped(Dtype::kF32, {3}), Strides::kSpread, true);
    }
    if (has(Feature::kScalesQ) && is_f8(a.d_out.dtype)) {
      r->scales_d_out = add_query_scales("scales_d_out", p.head_dim_v);
    }
    if (has(Feature::kDLse)) r->d_lse = add_loose("d_lse", per_row(wide), Strides::kSpread);
    if (has(Feature::kDelta)) r->delta = add_loose("delta", per_row(wide), Strides::kSpread);
    const auto wanted = [&] { return rng_.chance(0.9) || options_.dense; };
    if (wanted()) r->d_q = place_alone("d_q", a.d_q, aligned(p.align_q_log2, a.d_q.dtype), true);
    if (wanted()) r->d_k = place_alone("d_k", a.d_k, aligned(p.align_k_log2, a.d_k.dtype), true);
    if (wanted()) r->d_v = place_alone("d_v", a.d_v, aligned(p.align_v_log2, a.d_v.dtype), true);
    if (has(Feature::kAttnBias) && wanted()) {
      r->d_bias =
          add_loose("d_bias", score_shaped(p.dtype_bias, p.bias_dims), Strides::kSpread, true);
    }
    if (has(Feature::kSinks) && wanted()) {
      r->d_sinks =
          add_loose("d_sinks", shaped(Dtype::kF32, {p.num_heads_q}), Strides::kSpread, true);
    }
    const auto specs = captured_of(problem_.case_);
    for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
      if (!specs[static_cast<std::size_t>(slot)].has_gradient || !wanted()) continue;
      TensorView view;
      const TensorView& like = r->*oracle::kCaptured[slot];
      view.dtype = like.dtype;
      view.rank = like.rank;
      std::copy_n(like.shape, like.rank, view.shape);
      r->*kGradients[slot] = add_loose(kGradientNames[slot], view, Strides::kSpread, true);
    }
    if (r->saved_stats.present()) {
      r->saved.stats = r->saved_stats;
      r->saved.kind = SavedContext::Kind::kStats;
    } else if (r->lse.present()) {
      r->saved.stats = r->lse;
      r->saved.kind = SavedContext::Kind::kLse;
    }
  }

  ProblemOptions options_;
  Rng rng_;
  bool of_backward_ = false;
  Problem problem_;
};

Problem make_problem(const Case& c, const ProblemOptions& options) {
  return ProblemBuilder(c, options).build();
}

void Problem::reset_outputs() {
  backward_begun_ = false;
  for (const Tensor& tensor : tensors_) {
    if (tensor.is_output) blocks_[tensor.block].fill(0xff);
  }
}

void Problem::begin_backward() {
  backward_begun_ = true;
  if (request_.delta.present()) write_delta(request_);
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    before_[n].assign(blocks_[n].data(), blocks_[n].data() + blocks_[n].size());
  }
}

std::vector<MemoryRange> Problem::memory() const {
  std::vector<MemoryRange> ranges;
  for (const Block& block : blocks_) ranges.push_back(block.range());
  return ranges;
}

void Problem::append_rows(const Tensor& cache, std::vector<unsigned char>* bytes) const {
  const AttentionGradRequest& r = request_;
  if (!r.k_new.present()) return;
  const oracle::Padded padded = oracle::Padded::make(r).value();
  const AttentionRequest& after = padded.request();  // rotated and quantised, too
  struct Written {
    const TensorView& cache;
    const TensorView& rows;
  };
  const Written all[] = {
      {r.k, after.k}, {r.v, after.v}, {r.scales_k, after.scales_k}, {r.scales_v, after.scales_v}};
  for (const auto& [codes, codes_written] : all) {
    const TensorView view = as_bytes(codes), written = as_bytes(codes_written);
    if (!view.present() || cache.view.data != view.data) continue;
    const bool has_columns = view.rank == kMaxRank;
    if (!has_columns && view.shape[2] != r.k.shape[2]) continue;  // scales that are given
    const std::int64_t size = size_of(view.dtype);
    TensorView places = r.k_new;  // [B,Hkv,Snew,.]
    places.shape[3] = has_columns ? view.shape[3] : 1;
    for_each_element(places, [&](const std::int64_t(&at)[kMaxRank], unsigned char*) {
      const double leftpad =
          r.cache_leftpad.present() ? oracle::element(r.cache_leftpad, at[0]) : 0.0;
      const double keys = oracle::element(r.seqlens_kv, at[0]) - leftpad;
      const auto key = static_cast<std::int64_t>(keys) + at[2];
      const oracle::KeyPlace place = padded.place_of_key(at[0], key);
      const std::int64_t to = place.entry * view.strides[0] + at[1] * view.strides[1] +
                              place.row * view.strides[2] + (has_columns ? at[3] : 0);
      const std::int64_t from = at[0] * written.strides[0] + at[1] * written.strides[1] +
                                key * written.strides[2] + (has_columns ? at[3] : 0);
      std::memcpy(bytes->data() + to * size, static_cast<const char*>(written.data) + from * size,
                  static_cast<std::size_t>(size));
    });
  }
}

std::string Problem::check_memory() const {
  for (const Tensor& tensor : tensors_) {
    const Block& block = blocks_[tensor.block];
    if (!block.intact()) return std::string("bytes outside of ") + tensor.name + " were written";
    std::vector<unsigned char> expected = before_[tensor.block];
    append_rows(tensor, &expected);
    if (is_output(tensor)) {  // the elements may be anything
      for_each_element(tensor.view, [&](const std::int64_t(&)[kMaxRank], unsigned char* element) {
        std::memcpy(expected.data() + (element - block.data()), element,
                    static_cast<std::size_t>(size_of(tensor.view.dtype)));
      });
    }
    if (!expected.empty() && std::memcmp(expected.data(), block.data(), block.size()) != 0) {
      return std::string(is_output(tensor) ? "bytes between the rows of " : "bytes of the input ") +
             tensor.name + " were written";
    }
  }
  return "";
}

std::vector<unsigned char> Problem::output_bytes() const {
  std::vector<unsigned char> bytes;
  for (const Tensor& tensor : tensors_) {
    if (!tensor.is_output) continue;
    for_each_element(tensor.view, [&](const std::int64_t(&)[kMaxRank], unsigned char* element) {
      bytes.insert(bytes.end(), element, element + size_of(tensor.view.dtype));
    });
  }
  return bytes;
}

}  // namespace regard::conformance
