#include "conformance/generator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "conformance/captured.h"
#include "conformance/layout.h"
#include "conformance/random_function.h"
#include "conformance/rng.h"

namespace regard::conformance {
namespace {

// Streams that leave the other draws alone.
constexpr std::uint64_t kF8 = 0xf8f8f8f800000000;
constexpr std::uint64_t kPacked = 0x7061636b00000000;
constexpr std::uint64_t kCache = 0x6361636865000000;
constexpr std::uint64_t kScalesStream = 0x7363616c6573;
constexpr std::uint64_t kAmaxStream = 0x616d6178;
constexpr std::uint64_t kHadamardStream = 0x686164616d617264;
constexpr std::uint64_t kRotaryStream = 0x726f746172790000;
constexpr std::uint64_t kLeftpadStream = 0x6c65667470616400;
constexpr std::uint64_t kTreeStream = 0x7472656500000000;
constexpr std::uint64_t kFunctionStream = 0x66756e6374696f6e;
constexpr std::uint64_t kOriginStream = 0x6f726967696e0000;

constexpr std::int64_t kOddLengths[] = {1, 3, 63, 65, 127, 257};
constexpr std::int64_t kHeadDims[] = {1, 3, 8, 16, 32, 63, 64, 65, 127, 128, 257};
constexpr std::int64_t kGradHeadDims[] = {1, 3, 8, 16, 33, 64, 65, 128, 192, 256, 512};

class Generator {
 public:
  Generator(std::uint64_t seed, std::uint64_t index, bool gradients = false)
      : gradients_(gradients),
        rng_(gradients ? ~seed : seed, ~index),
        f8_rng_(seed, index ^ kF8),
        packed_rng_(seed, index ^ kPacked),
        cache_rng_(seed, index ^ kCache),
        scales_rng_(seed, index ^ kScalesStream),
        amax_rng_(seed, index ^ kAmaxStream),
        hadamard_rng_(seed, index ^ kHadamardStream),
        rotary_rng_(seed, index ^ kRotaryStream),
        leftpad_rng_(seed, index ^ kLeftpadStream),
        tree_rng_(seed, index ^ kTreeStream),
        function_rng_(seed, index ^ kFunctionStream),
        origin_rng_(seed, index ^ kOriginStream) {}

  Case run() {
    c_.data.seed = rng_.bits() >> 40;  // short in a repro line
    draw_dtypes();
    draw_descaled();
    if (!gradients_) draw_scales();
    p().features.set(Feature::kHadamard, !gradients_ && hadamard_rng_.chance(0.15));
    draw_extents();
    draw_edits();
    draw_dropout_origin();
    draw_functions();
    draw_diagonal();
    draw_tensors();
    draw_packed();
    if (!gradients_) draw_cache();
    if (!gradients_) draw_rotary();
    if (!gradients_) draw_leftpad();
    if (!gradients_) draw_tree();
    draw_scale_layout();
    if (gradients_) draw_gradients();
    draw_memory();
    canonicalize(c_.params);
    normalize_layout(&c_);
    draw_data();
    canonicalize(c_);
    settle_functions();
    return c_;
  }

 private:
  AttentionParams& p() { return c_.params; }
  bool has(Feature f) const { return c_.params.features.has(f); }
  void maybe(Feature f, double probability) { p().features.set(f, rng_.chance(probability)); }

  void draw_dtypes() {
    const double draw = rng_.uniform();
    const Dtype dtype = draw < 0.35   ? Dtype::kF32
                        : draw < 0.6  ? Dtype::kBf16
                        : draw < 0.87 ? Dtype::kF16
                                      : Dtype::kF64;
    p().dtype_q = p().dtype_k = p().dtype_v = p().dtype_out = dtype;
    const bool narrow = dtype == Dtype::kBf16 || dtype == Dtype::kF16;
    if (narrow && rng_.chance(0.15)) p().dtype_out = Dtype::kF32;
    // Mixtures that few backends claim: their refusals must be right too.
    if (rng_.chance(0.01)) p().dtype_out = dtype == Dtype::kF32 ? Dtype::kBf16 : Dtype::kF32;
    if (rng_.chance(0.02))
      p().dtype_k = p().dtype_v = dtype == Dtype::kF64 ? Dtype::kF32 : Dtype::kI32;
  }

  /// 8-bit floats, keys of another type than queries, and descales, which any type may have. No
  /// backward has keys of another type.
  void draw_descaled() {
    const bool f8 = f8_rng_.chance(gradients_ ? 0.35 : 0.2);
    if (f8) {
      constexpr Dtype kOut[] = {Dtype::kBf16, Dtype::kBf16, Dtype::kF16, Dtype::kF32};
      const bool narrow_out = f8_rng_.chance(0.2);
      p().dtype_q = p().dtype_k = p().dtype_v =
          f8_rng_.chance(0.6) ? Dtype::kF8E4M3 : Dtype::kF8E5M2;
      p().dtype_out = narrow_out ? p().dtype_q : f8_rng_.pick(kOut);
      draw_f8_gradients();
    } else if (!gradients_ && has_usual_dtypes() && f8_rng_.chance(0.15)) {  // as caches are kept
      constexpr Dtype kKeys[] = {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4M3, Dtype::kF8E5M2};
      p().dtype_k = p().dtype_v = f8_rng_.pick(kKeys);
    }
    p().features.set(Feature::kOutAmax, amax_rng_.chance(f8 ? 0.5 : 0.1));
    p().features.set(Feature::kDescales, f8_rng_.chance(f8 ? 0.7 : 0.2));
    p().features.set(Feature::kDescalesPerHead, has(Feature::kDescales) && f8_rng_.chance(0.6));
  }

  /// The usual types are E5M2 of d_out and bf16 of what a step of an optimiser reads.
  void draw_f8_gradients() {
    constexpr Dtype kTypes[] = {Dtype::kBf16,   Dtype::kBf16, Dtype::kF8E5M2, Dtype::kF8E5M2,
                                Dtype::kF8E4M3, Dtype::kF16,  Dtype::kF32};
    constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::kNone, Fp8Recipe::kDelayed, Fp8Recipe::kCurrent,
                                      Fp8Recipe::kMxfp8, Fp8Recipe::kBlock};
    p().dtype_d_out = f8_rng_.pick(kTypes);
    p().dtype_gradients = f8_rng_.pick(kTypes);
    p().fp8_recipe = f8_rng_.pick(kRecipes);
  }

  /// Keys and values of 8 bits with scales, of one type or of two.
  void draw_scales() {
    const bool is_f8_q = is_f8(p().dtype_q);
    if (!scales_rng_.chance(0.3) || (!is_f8_q && !has_usual_dtypes())) return;
    constexpr Dtype kTypes[] = {Dtype::kI8,     Dtype::kI8, Dtype::kF8E4M3,
                                Dtype::kF8E5M2, Dtype::kU4, Dtype::kU4};
    if (!is_f8_q) {
      p().dtype_k = scales_rng_.pick(kTypes);
      p().dtype_v = scales_rng_.chance(0.4) ? p().dtype_k : scales_rng_.pick(kTypes);
      if (scales_rng_.chance(0.1)) p().dtype_v = p().dtype_q;
    }
    p().features.set(Feature::kScales, scales_rng_.chance(0.8));
    p().features.set(Feature::kScalesPerToken, has(Feature::kScales) && scales_rng_.chance(0.7));
    p().features.set(Feature::kChannelScales, scales_rng_.chance(0.3));
  }

  bool has_usual_dtypes() {
    const bool narrows = p().dtype_q == Dtype::kF32 && p().dtype_out != Dtype::kF32;
    return p().dtype_q == p().dtype_k && p().dtype_q != Dtype::kF64 && !narrows;
  }

  std::int64_t draw_length() {
    return rng_.chance(0.7) ? rng_.pick(kOddLengths) : rng_.between(1, 140);
  }

  /// Extents whose score matrices cost at most a drawn budget of multiply-adds.
  void draw_extents() {
    double budget = rng_.chance(0.01) ? 4e6 : std::exp2(12.0 + 7.5 * rng_.uniform());
    if (gradients_) budget /= 4.0;  // five products, each twice in the oracle
    p().seqlen_q = draw_length();
    p().seqlen_kv = rng_.chance(0.25) ? p().seqlen_q : draw_length();
    p().head_dim_qk = gradients_ ? rng_.pick(kGradHeadDims) : rng_.pick(kHeadDims);
    std::int64_t* extents[] = {&p().head_dim_qk, &p().seqlen_q, &p().seqlen_kv};
    const auto cost = [&] {
      return static_cast<double>(p().head_dim_qk) * static_cast<double>(p().seqlen_q) *
             static_cast<double>(p().seqlen_kv);
    };
    while (cost() > budget) {
      std::int64_t* extent = rng_.pick(extents);
      *extent =
          std::max<std::int64_t>(1, rng_.chance(0.5) ? rng_.between(1, *extent) : *extent / 2);
    }
    p().head_dim_v = p().head_dim_qk;
    if (rng_.chance(0.3)) {
      p().head_dim_v =
          std::max<std::int64_t>(1, std::min(rng_.pick(kHeadDims), 2 * p().head_dim_qk));
    }
    draw_batch_and_heads(budget / cost());
    if (rng_.chance(0.08)) draw_empty();
    hold_head_dims();
    p().softmax_scale = default_softmax_scale(p().head_dim_qk);
    if (rng_.chance(0.2)) {
      const double scales[] = {0.0, -p().softmax_scale, 0.5, 1.0, 2.0 * p().softmax_scale};
      p().softmax_scale = rng_.pick(scales);
    }
  }

  /// Two elements of u4 share a byte, and a Hadamard matrix has a power of two of columns.
  void hold_head_dims() {
    const auto even = [](std::int64_t dim) { return std::max<std::int64_t>(dim / 2 * 2, 2); };
    const bool alike = p().head_dim_v == p().head_dim_qk;
    if (p().dtype_k == Dtype::kU4) p().head_dim_qk = even(p().head_dim_qk);
    if (has(Feature::kHadamard)) {
      p().head_dim_qk =
          static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(p().head_dim_qk)));
    }
    if (alike) p().head_dim_v = p().head_dim_qk;
    if (p().dtype_v == Dtype::kU4) p().head_dim_v = even(p().head_dim_v);
  }

  void draw_batch_and_heads(double room) {
    constexpr std::int64_t kBatches[] = {1, 2, 2, 3, 6};
    constexpr std::int64_t kHeads[] = {1, 2, 3, 4};
    constexpr std::int64_t kGroups[] = {2, 3, 4, 8};
    p().batch = rng_.pick(kBatches);
    p().num_heads_kv = rng_.pick(kHeads);
    const std::int64_t group = rng_.chance(0.35) ? rng_.pick(kGroups) : 1;
    while (p().batch * p().num_heads_kv * group >
               std::max(2.0 * room, 2.0 * static_cast<double>(group)) &&
           p().batch * p().num_heads_kv > 1) {
      (p().batch > p().num_heads_kv ? p().batch : p().num_heads_kv) -= 1;
    }
    p().num_heads_q = p().num_heads_kv * group;
  }

  void draw_empty() {
    switch (rng_.between(0, 4)) {
      case 0: p().batch = 0; break;
      case 1: p().num_heads_q = p().num_heads_kv = 0; break;
      case 2: p().seqlen_q = 0; break;
      default: p().seqlen_kv = 0; break;
    }
  }

  void draw_edits() {
    const double window = rng_.uniform();
    const bool left = (window >= 0.34 && window < 0.44) || window >= 0.74;
    const bool causal = window >= 0.48 && window < 0.86;
    const bool right = (window >= 0.44 && window < 0.48) || window >= 0.86;
    if (left) p().window_left = draw_window();
    if (causal) p().window_right = 0;
    if (right) p().window_right = 1 + draw_window();
    constexpr double kSoftcaps[] = {1.0, 5.0, 30.0};
    if (rng_.chance(0.2)) p().softcap = rng_.pick(kSoftcaps);
    constexpr double kDropouts[] = {0.1, 0.25, 0.5, 0.9};
    if (rng_.chance(0.2)) p().dropout_p = rng_.pick(kDropouts);
    constexpr ScoresKind kKinds[] = {ScoresKind::kScaled, ScoresKind::kEdited, ScoresKind::kProbs};
    if (rng_.chance(0.15)) p().scores_kind = rng_.pick(kKinds);
    maybe(Feature::kAlibi, 0.22);
  }

  void draw_dropout_origin() {
    if (p().dropout_p == 0.0 || !origin_rng_.chance(0.8)) return;
    p().features.set(Feature::kDropoutOrigin);
    DropoutOrigin& origin = c_.data.dropout_origin;
    origin.position = origin_rng_.between(-40, 1000);
    origin.key = 8 * origin_rng_.between(0, 200);
    origin.head = origin_rng_.between(0, 30);
    origin.heads = origin_rng_.chance(0.5) ? 0 : origin_rng_.between(1, 64);
  }

  /// Functions of any kind, a mask of blocks with some, and a callback, which is given f32.
  void draw_functions() {
    const bool has_score = function_rng_.chance(0.24), has_mask = function_rng_.chance(0.3);
    const RandomFunctions made = random_functions(p(), has_score, has_mask, &function_rng_);
    // What does not parse is the writer's fault; the case then shows its text.
    if (has_score) p().score_function = Expression::parse(made.score).value();
    if (has_mask) p().mask_function = Expression::parse(made.mask).value();
    const bool calls_back = function_rng_.chance(0.14);
    p().features.set(Feature::kScoreCallback, calls_back && p().dtype_q != Dtype::kF64);
    const bool has_blocks = function_rng_.chance(0.5);
    constexpr std::int64_t kSizes[] = {1, 3, 8, 16, 32, 64, 64, 100, 128, 128};
    const std::int64_t size_q = function_rng_.pick(kSizes), size_kv = function_rng_.pick(kSizes);
    if (!has_mask || !has_blocks) return;
    p().features.set(Feature::kBlockMask);
    p().block_size_q = size_q;
    p().block_size_kv = size_kv;
  }

  bool reads_position() const {
    const AttentionParams& p = c_.params;
    return p.score_function.text().find("q_pos") != std::string::npos ||
           p.mask_function.text().find("q_pos") != std::string::npos;
  }

  /// Windows and softcaps that are functions become fields, as parsing the case's line has them.
  /// Functions that read more elements than a small case has are left out.
  void settle_functions() {
    if (p().score_function.empty() && p().mask_function.empty()) return;
    constexpr std::int64_t kMaxElements = 1 << 17;
    bool is_small = true;
    for (const CapturedSpec& spec : captured_of(c_)) {
      std::int64_t elements = 1;
      for (int dim = 0; dim < spec.rank; ++dim) elements *= spec.extent[dim];
      is_small = is_small && elements <= kMaxElements;
    }
    if (!is_small) p().score_function = p().mask_function = {};
    canonicalize(c_);
    const Expected<Case> settled = parse_case(to_string(c_));
    if (settled) c_ = *settled;  // else whoever runs it says why not
    normalize_layout(&c_);
    canonicalize(c_);
  }

  /// Zero, short, or about as long as the keys.
  std::int64_t draw_window() {
    if (rng_.chance(0.15)) return 0;
    return rng_.between(0, rng_.chance(0.5) ? 8 : std::max<std::int64_t>(p().seqlen_kv, 1));
  }

  void draw_diagonal() {
    maybe(Feature::kSeqlensQ, 0.25);
    maybe(Feature::kSeqlensKv, 0.3);
    const bool measured = is_measured();
    const bool agree =
        p().seqlen_q == p().seqlen_kv && !has(Feature::kSeqlensQ) && !has(Feature::kSeqlensKv);
    if (!measured && p().dropout_p == 0.0) return;
    if ((agree || !measured) && rng_.chance(0.3)) return;
    const double draw = rng_.uniform();
    if (draw < 0.19) {
      p().diagonal = Diagonal::kTopLeft;
    } else if (draw < 0.48) {
      p().diagonal = Diagonal::kBottomRight;
    } else {
      p().diagonal = Diagonal::kOffset;
      p().features.set(Feature::kDiagonalPerSequence, draw < 0.74);
    }
    if (p().diagonal != Diagonal::kOffset || has(Feature::kDiagonalPerSequence)) return;
    c_.data.diagonal_offset = rng_.between(-p().seqlen_q - 1, p().seqlen_kv + 1);
    if (rng_.chance(0.04) && !has(Feature::kAlibi) && !reads_position()) {
      c_.data.diagonal_offset = rng_.chance(0.5) ? std::numeric_limits<std::int64_t>::max()
                                                 : std::numeric_limits<std::int64_t>::min();
    }
  }

  void draw_tensors() {
    maybe(Feature::kAttnMask, 0.3);
    maybe(Feature::kAttnBias, 0.3);
    maybe(Feature::kSinks, 0.22);
    maybe(Feature::kSegmentIds, 0.2);
    maybe(Feature::kLse, 0.6);
    maybe(Feature::kSavedStats, 0.2);
    maybe(Feature::kNeedsGrad, 0.02);  // the forward's refusals for want of a backward
    p().mask_dims = static_cast<BroadcastDims>(rng_.bits() & 15);
    p().bias_dims = static_cast<BroadcastDims>(rng_.bits() & 15);
    const Dtype bias_dtypes[] = {Dtype::kF32, p().dtype_q, Dtype::kF64};
    p().dtype_bias = rng_.pick(bias_dtypes);
    if (is_f8(p().dtype_bias)) p().dtype_bias = Dtype::kF32;
  }

  /// Scores are no output of packed sequences.
  void draw_packed() {
    if (!packed_rng_.chance(0.2) || p().scores_kind != ScoresKind::kNone) return;
    name_diagonal();
    p().features.set(Feature::kPacked);
    p().total_q = draw_total(p().seqlen_q);
    p().total_kv = packed_rng_.chance(0.3) && p().seqlen_q == p().seqlen_kv
                       ? p().total_q
                       : draw_total(p().seqlen_kv);
  }

  /// Rows for all sequences together: sometimes all of the longest, with room at the end.
  std::int64_t draw_total(std::int64_t longest) {
    if (longest == 0) return 0;
    const std::int64_t all = p().batch * longest;
    const std::int64_t room = packed_rng_.chance(0.3) ? packed_rng_.between(0, 9) : 0;
    return (packed_rng_.chance(0.5) ? all : packed_rng_.between(std::min(all, longest), all)) +
           room;
  }

  /// Keys in pages, or in entries of a cache. No backward has either.
  void draw_cache() {
    draw_pages();
    const bool appends = cache_rng_.chance(0.14);
    if (!appends || p().seqlen_kv == 0 || (has(Feature::kPacked) && !has(Feature::kPaged))) return;
    p().features = p().features.with({Feature::kAppendKv, Feature::kSeqlensKv});
    c_.data.new_rows = cache_rng_.between(1, std::min<std::int64_t>(p().seqlen_kv, 5));
    if (has(Feature::kPaged)) {  // nobody else has a page that is written
      p().num_pages = p().batch * (p().seqlen_kv / p().page_size) + 2;
    }
    name_diagonal();
  }

  /// Of blocks, and of q. New rows are quantised with scales of rows, and pages have no blocks of
  /// rows; rotary embedding and the Hadamard matrix mix columns of q.
  void draw_scale_layout() {
    constexpr ScaleLayout kLayouts[] = {ScaleLayout::k1x32, ScaleLayout::k1x128,
                                        ScaleLayout::k128x128, ScaleLayout::k128x128};
    // Most of these append, and so have no blocks.
    const bool is_rare = has(Feature::kRotaryInterleaved) || has(Feature::kCacheBatchIdx);
    const bool of_q = amax_rng_.chance(0.5), of_blocks = amax_rng_.chance(is_rare ? 1.0 : 0.65);
    const ScaleLayout layout = amax_rng_.pick(kLayouts);
    const bool mixes = has(Feature::kRotary) || has(Feature::kHadamard);
    if (gradients_ && is_f8(p().dtype_q)) {
      p().features.set(Feature::kScales, amax_rng_.chance(0.8));
      p().features.set(Feature::kScalesPerToken, has(Feature::kScales) && amax_rng_.chance(0.7));
    }
    p().features.set(Feature::kScalesQ, of_q && is_f8(p().dtype_q) && !mixes);
    p().features.set(Feature::kQuantizedProbs, amax_rng_.chance(0.5) && is_f8(p().dtype_q));
    if (!of_blocks || has(Feature::kAppendKv)) return;
    if (layout == ScaleLayout::k128x128 && has(Feature::kPaged)) return;
    p().features = with_scale_layout(p().features, layout);
    p().features.set(Feature::kFutureScales);
  }

  /// With new rows, or with positions.
  void draw_rotary() {
    const bool appends = has(Feature::kAppendKv);
    if (!rotary_rng_.chance(appends ? 0.5 : 0.25) || p().head_dim_qk < 2) return;
    p().features.set(Feature::kRotary);
    p().rotary_dim = rotary_rng_.chance(0.5) ? p().head_dim_qk / 2 * 2
                                             : 2 * rotary_rng_.between(1, p().head_dim_qk / 2);
    p().features.set(Feature::kRotaryInterleaved, rotary_rng_.chance(0.5));
    const bool fits = p().seqlen_q > 0 && p().seqlen_q <= p().seqlen_kv;
    if (appends && fits && rotary_rng_.chance(0.7)) c_.data.new_rows = p().seqlen_q;
    const bool may = !appends || (!has(Feature::kPacked) && c_.data.new_rows == p().seqlen_q);
    p().features.set(Feature::kPositions, !appends || (may && rotary_rng_.chance(0.8)));
  }

  /// More often where there is a cache.
  void draw_leftpad() {
    const bool packs_keys = has(Feature::kPacked) && !has(Feature::kPaged);
    const bool cached =
        has(Feature::kPaged) || has(Feature::kCacheBatchIdx) || has(Feature::kAppendKv);
    if (!leftpad_rng_.chance(cached ? 0.3 : 0.08) || packs_keys) return;
    p().features = p().features.with({Feature::kCacheLeftpad, Feature::kSeqlensKv});
    name_diagonal();
  }

  /// Mostly of few keys; as many as there are new rows.
  void draw_tree() {
    const bool cached =
        has(Feature::kPaged) || has(Feature::kCacheBatchIdx) || has(Feature::kAppendKv);
    if (!tree_rng_.chance(cached ? 0.3 : 0.08)) return;
    p().features.set(Feature::kTreeMask);
    c_.data.tree_keys = tree_rng_.between(1, tree_rng_.chance(0.7) ? 16 : 200);
  }

  void draw_pages() {
    const double draw = cache_rng_.uniform();
    if (draw < 0.08 && !has(Feature::kPacked)) p().features.set(Feature::kCacheBatchIdx);
    if (draw < 0.85) return;
    constexpr std::int64_t kSizes[] = {1, 2, 3, 8, 16, 16, 24, 32, 64, 100};
    p().features = p().features.with({Feature::kPaged, Feature::kSeqlensKv});
    p().page_size = cache_rng_.pick(kSizes);
    const std::int64_t pages = (p().seqlen_kv + p().page_size - 1) / p().page_size;
    p().seqlen_kv = pages * p().page_size;
    p().num_pages = cache_rng_.chance(0.6) ? p().batch * pages + 2
                                           : cache_rng_.between(1, p().batch * pages + 1);
    p().total_kv = 0;
    name_diagonal();
  }

  bool is_measured() const {
    return c_.params.window_left >= 0 || c_.params.window_right >= 0 || has(Feature::kAlibi) ||
           reads_position();
  }

  /// Where lengths are data.
  void name_diagonal() {
    if (is_measured() && p().diagonal == Diagonal::kUnnamed) p().diagonal = Diagonal::kBottomRight;
  }

  void draw_gradients() {
    p().features.set(Feature::kNeedsGrad);
    p().features.set(Feature::kSavedStats, rng_.chance(0.75));
    p().features.set(Feature::kLse, !has(Feature::kSavedStats) || rng_.chance(0.5));
    maybe(Feature::kDLse, 0.3);
    maybe(Feature::kDelta, 0.2);
    p().features = p().features.without({Feature::kScoresOut, Feature::kOutAmax});
    p().scores_kind = ScoresKind::kNone;
  }

  void draw_memory() {
    const bool all_bshd = rng_.chance(0.2);  // where q, k and v may be slices of one block
    for (const TensorLayout& tensor : kTensorLayouts) {
      Layout& order = p().*tensor.order;
      const double draw = rng_.uniform();
      order = draw < 0.4 ? Layout::kBhsd : draw < 0.75 ? Layout::kBshd : Layout::kStrided;
      if (all_bshd) order = Layout::kBshd;
    }
    for (const TensorLayout& tensor : kTensorLayouts) {
      p().*tensor.align_log2 = rng_.chance(0.6)
                                   ? kMaxAlignLog2
                                   : static_cast<std::int32_t>(rng_.between(0, kMaxAlignLog2));
    }
  }

  void draw_data() {
    const double draw = rng_.uniform();
    c_.data.kind = draw < 0.15   ? DataKind::kLarge
                   : draw < 0.3  ? DataKind::kOutlier
                   : draw < 0.4  ? DataKind::kConstant
                   : draw < 0.55 ? DataKind::kFinfoMin
                   : draw < 0.6  ? DataKind::kDenormal
                                 : DataKind::kNormal;
    c_.data.poison = rng_.chance(0.35) && is_float(p().dtype_k) && is_float(p().dtype_v);
    if (has(Feature::kSeqlensQ) && rng_.chance(0.4)) draw_lengths(p().seqlen_q, &c_.data.seqlens_q);
    if (has(Feature::kSeqlensKv) && rng_.chance(0.4)) {
      draw_lengths(p().seqlen_kv - (has(Feature::kAppendKv) ? c_.data.new_rows : 0),
                   &c_.data.seqlens_kv);
    }
  }

  void draw_lengths(std::int64_t extent, std::vector<std::int64_t>* lengths) {
    for (std::int64_t b = 0; b < p().batch; ++b) {
      const std::int64_t choices[] = {
          0, 1, extent, extent - 1, rng_.pick(kOddLengths), rng_.between(0, extent)};
      lengths->push_back(std::clamp<std::int64_t>(rng_.pick(choices), 0, extent));
    }
  }

  bool gradients_;
  Rng rng_, f8_rng_, packed_rng_, cache_rng_, scales_rng_, amax_rng_, hadamard_rng_, rotary_rng_,
      leftpad_rng_, tree_rng_, function_rng_, origin_rng_;
  Case c_;
};

}  // namespace

Case random_case(std::uint64_t seed, std::uint64_t index) { return Generator(seed, index).run(); }

Case random_grad_case(std::uint64_t seed, std::uint64_t index) {
  return Generator(seed, index, true).run();
}

}  // namespace regard::conformance
