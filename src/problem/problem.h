#pragma once

#include <cstdint>

#include "problem/element.h"
#include "semantics/function_program.h"
#include "semantics/philox.h"
#include "semantics/row_bounds.h"
#include "semantics/score_edits.h"

namespace regard::problem {

/// cu_seqlens of packed sequences: the first row of each, and past the last one their end.
struct RowStarts {
  const char* data = nullptr;  // i32 or i64; null: sequences are not packed
  bool is_i64 = false;
};

/// The first row of sequence b.
REGARD_KERNEL_FN std::int64_t row_start(const RowStarts& starts, std::int64_t b) {
  return starts.is_i64 ? reinterpret_cast<const std::int64_t*>(starts.data)[b]
                       : reinterpret_cast<const std::int32_t*>(starts.data)[b];
}

/// Which pages of k and v the rows of each sequence lie in: i32 [B,pages].
struct PageTable {
  const std::int32_t* ids = nullptr;  // null: rows do not lie in pages
  std::int64_t stride[2] = {};        // elements
  std::int64_t page_size = 0;         // rows
};

/// A tensor as kernels see it; strides in elements, 0 where it is broadcast.
struct View {
  char* data = nullptr;
  std::int64_t stride[4] = {};
  RowStarts starts{};  // of packed rows, which are dimension 2
  Element type = Element::kF32;
  bool present = false;
};

/// Where row i of sequence b stands, in elements, for head 0.
REGARD_KERNEL_FN std::int64_t sequence_row(const View& view, std::int64_t b, std::int64_t i) {
  if (view.starts.data != nullptr) return (row_start(view.starts, b) + i) * view.stride[2];
  return b * view.stride[0] + i * view.stride[2];
}

/// The address of element `index` of a view whose elements are T.
template <class T>
REGARD_KERNEL_FN T* element_at(const View& view, std::int64_t index) {
  return reinterpret_cast<T*>(view.data) + index;
}

/// Address of row (b, h, i) of a tensor whose rows lie in its last dimension.
REGARD_KERNEL_FN char* row_address(const View& view, std::int64_t b, std::int64_t h,
                                   std::int64_t i) {
  const std::int64_t at = sequence_row(view, b, i) + h * view.stride[1];
  return view.data + at * element_bytes(view.type);
}

/// Where row (b, h, i) stands in a tensor [B,Hq,Sq], [B,Hq,Sq,2] or, h being 0, [B,S].
REGARD_KERNEL_FN std::int64_t row_index(const View& view, std::int64_t b, std::int64_t h,
                                        std::int64_t i) {
  return sequence_row(view, b, i) + h * view.stride[1];
}

/// Descale of (b, kv head); 1 without one.
REGARD_KERNEL_FN double descale_of(const View& view, std::int64_t b, std::int64_t head_kv) {
  if (!view.present) return 1.0;
  return *element_at<float>(view, b * view.stride[0] + head_kv * view.stride[1]);
}

/// A magnitude's bits grow with it, and those of NaN are the largest.
REGARD_KERNEL_FN std::uint32_t magnitude_bits(float x) { return bits_of(x) & 0x7fffffffu; }

/// The bits of the larger magnitude, x or what `bits` are of.
REGARD_KERNEL_FN std::uint32_t larger_magnitude(std::uint32_t bits, float x) {
  const std::uint32_t other = magnitude_bits(x);
  return other > bits ? other : bits;
}

#if !defined(__CUDACC__)
/// Raises element `index` of out_amax or gradient_amax, as other workers do at the same time.
REGARD_KERNEL_FN void raise_amax(const View& view, std::int64_t index, float magnitude) {
  auto* const amax = element_at<std::uint32_t>(view, index * view.stride[0]);
  const std::uint32_t bits = magnitude_bits(magnitude);
  std::uint32_t found = __atomic_load_n(amax, __ATOMIC_RELAXED);
  while (found < bits && !__atomic_compare_exchange_n(amax, &found, bits, true, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
  }
}
#endif

enum class CapturedType : std::uint8_t { kF32 = 0, kF64, kBf16, kF16, kI32, kI64, kBytes };

/// A tensor that functions read; strides in elements. Past its rank extents are 1.
struct CapturedView {
  char* data = nullptr;
  std::int64_t stride[4] = {};
  std::int64_t extent[4] = {};
  CapturedType type = CapturedType::kF32;
};
inline constexpr int kMaxCapturedViews = 8;

/// What edits and hides scores by a function of their places: for CPU backends alone.
struct Functions {
  semantics::FunctionProgram score{};     // after softcap
  semantics::FunctionProgram mask{};      //
  semantics::FunctionProgram gradient{};  // of score, by the score and by captured elements
  CapturedView captured[kMaxCapturedViews];
  void (*edit)(void*, float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
               std::int64_t) = nullptr;  // of the host language, after score
  void (*edit_gradient)(void*, const float*, float*, std::int64_t, std::int64_t, std::int64_t,
                        std::int64_t, std::int64_t) = nullptr;
  void* user_data = nullptr;
  View blocks{};  // [B,Hq,blocks_q,blocks_kv]: 0 mask is false, 1 it may be either, 2 it is true
  std::int64_t block_size_q = 0;
  std::int64_t block_size_kv = 0;
  CapturedView d_captured[kMaxCapturedViews];  // of a backward: as captured
};

enum class DiagonalKind : std::uint8_t { kTopLeft = 0, kBottomRight, kOffset };
enum class ScoresStage : std::uint8_t { kNone = 0, kScaled, kEdited, kProbs };

/// A forward call as plain data: everything that kernels read, ready to index. make_problem.h makes
/// it. Logical shapes: q, out [B,Hq,Sq,.], k, v [B,Hkv,Skv,.]. Packed sequences are logically the
/// same, as long as the longest of them; where their rows lie is known to the views. So are keys in
/// pages.
struct Problem {
  std::int64_t batch = 0;
  std::int64_t num_heads_q = 0;
  std::int64_t num_heads_kv = 0;
  std::int64_t group_size = 1;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_kv = 0;
  std::int64_t total_q = 0;   // rows of packed tensors; 0 where sequences are not packed
  std::int64_t total_kv = 0;  //
  std::int64_t head_dim_qk = 0;
  std::int64_t head_dim_v = 0;

  View q, k, v, out;
  PageTable pages;                       // k and v are [pages,Hkv,page_size,.]
  View k_new, v_new;                     // [B,Hkv,Snew,.]: rows that follow those of a sequence
  std::int64_t seqlen_new = 0;           // Snew
  View rotary_cos, rotary_sin;           // [positions,rotary_half]
  View positions;                        // [B,Sq], at stride[2]
  std::int64_t rotary_half = 0;          // pairs of a row that are rotated
  bool rotary_interleaved = false;       // pairs are neighbours
  bool hadamard = false;                 // q and k_new are multiplied by the matrix
  View cache_entries;                    // [B]: where a sequence lies in the batch of k and v
  View lse;                              // [B,Hq,Sq]
  View stats;                            // [B,Hq,Sq,2]: row maximum and row sum
  View scores;                           // [B,Hq,Sq,Skv]
  View out_amax;                         // [1], f32: out's largest magnitude; 0 at first
  View mask, bias;                       // [B,Hq,Sq,Skv], broadcast by strides
  View tree;                             // [B,Sq,tree_keys], of the last keys of each sequence
  std::int64_t tree_keys = 0;            //
  View slopes;                           // [B,Hq]
  View sinks;                            // [Hq]
  View segments_q, segments_kv;          // [B,Sq], [B,Skv], positions at stride[2]
  View lens_q, lens_kv;                  // [B]
  View leftpads;                         // [B]: rows of k and v before key 0
  View offsets;                          // [B]
  View descale_q, descale_k, descale_v;  // [B,Hkv], broadcast by strides
  View scales_k, scales_v;               // [entries,Hkv,rows], broadcast by strides; of u4
                                         // [entries,Hkv,rows,2*groups], see element.h
  bool scales_k_of_rows = false;         // one for each row, which comes with a new row
  bool scales_v_of_rows = false;         //
  View channel_scales_k;                 // [Hkv,Dqk]
  View scales_q;                         // [B,Hq,Sq], or of blocks of rows and columns
  // Of blocks: columns of one, 0 where scales are of rows; and log2 of its rows. Not of u4.
  std::int64_t scale_columns = 0;
  std::int64_t scale_rows_log2 = 0;

  DiagonalKind diagonal = DiagonalKind::kTopLeft;
  ScoresStage scores_stage = ScoresStage::kNone;
  std::int64_t diagonal_offset = 0;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softmax_scale = 1.0;
  double softcap = 0.0;
  bool prescale_scores = false;  // scores are scaled before the softmax, not by it
  double exp2_scale = 1.0;       // of score differences in the base-2 exponent; > 0
  double score_unit = 1.0;       // a score of the softmax, in natural units; > 0
  // What kernels need of these for each score: a double costs a device 32 to 64 times as much.
  bool caps_scores = false;     // softcap > 0
  bool negates_scores = false;  // softmax_scale < 0 and not prescale_scores
  float softmax_scale_f32 = 1.0f;
  float softcap_f32 = 0.0f;
  Element probs_type = Element::kF32;  // probabilities have the numbers of it where it has 8 bits
  semantics::Dropout dropout{};
  // Kept apart: arguments of a CUDA kernel have 4 KB.
  const Functions* functions = nullptr;  // there where one of the next is true
  bool edits_by_function = false;        // a score may become -inf anywhere
  bool masks_by_function = false;
};

/// Probabilities are rounded to 8 bits.
REGARD_KERNEL_FN bool rounds_probs(const Problem& p) { return is_8_bit_float(p.probs_type); }

/// Keys are hidden by data, not by arithmetic alone.
REGARD_KERNEL_FN bool has_data_mask(const Problem& p) {
  return p.mask.present || p.bias.present || p.segments_q.present || p.edits_by_function ||
         p.masks_by_function;
}

/// What the scores of a kv head are multiplied by, for q and k are. In double: the factors may lie
/// far apart.
REGARD_KERNEL_FN double score_descale(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  return descale_of(p.descale_q, b, head_kv) * descale_of(p.descale_k, b, head_kv);
}

/// What kept probabilities are multiplied by.
template <class T>
REGARD_KERNEL_FN T keep_scale(const Problem& p) {
  return p.dropout.threshold == 0 ? T(1) : T(65536) / static_cast<T>(p.dropout.threshold);
}

/// What a row is for its lse and saved_stats, in natural units.
template <class T>
REGARD_KERNEL_FN void write_row_stats(const Problem& p, std::int64_t b, std::int64_t h,
                                      std::int64_t i, double max, T sum) {
  const bool sees = sum != T(0);
  if (p.lse.present) {
    // In double: log(sum) rounded to f32 would add an error of its own to a small lse.
    const double lse = sees ? max + __builtin_log(sum) : -__builtin_inf();
    *element_at<T>(p.lse, row_index(p.lse, b, h, i)) = static_cast<T>(lse);
  }
  if (p.stats.present) {
    T* const stats = element_at<T>(p.stats, row_index(p.stats, b, h, i));
    stats[0] = static_cast<T>(sees ? max : -__builtin_inf());
    stats[p.stats.stride[3]] = sum;
  }
}

/// The rows of sequence b in k and v before its key 0.
REGARD_KERNEL_FN std::int64_t leftpad_of(const Problem& p, std::int64_t b) {
  if (!p.leftpads.present) return 0;
  return *element_at<std::int32_t>(p.leftpads, b * p.leftpads.stride[0]);
}

/// One entry of the batch: its lengths and what its rows see.
struct Sequence {
  std::int64_t b = 0;
  std::int64_t leftpad = 0;
  std::int64_t rows_q = 0;   // that it has in memory: rows past its length are padding
  std::int64_t rows_kv = 0;  //
  std::int64_t len_q = 0;
  semantics::Band band{};
};

/// Rows of sequence b in a tensor of `seqlen` or packed rows.
REGARD_KERNEL_FN std::int64_t sequence_rows(const RowStarts& starts, std::int64_t seqlen,
                                            std::int64_t b) {
  if (starts.data != nullptr) return row_start(starts, b + 1) - row_start(starts, b);
  return seqlen;
}

/// The same where cu_seqlens have not been checked: a sequence has at most `seqlen` rows, and none
/// where they do not lie within the `total` rows of the tensor.
REGARD_KERNEL_FN std::int64_t held_rows(const RowStarts& starts, std::int64_t seqlen,
                                        std::int64_t total, std::int64_t b) {
  const std::int64_t rows = sequence_rows(starts, seqlen, b);
  if (starts.data == nullptr) return rows;
  const std::int64_t first = row_start(starts, b);
  return first < 0 || rows < 0 || rows > total - first ? 0 : (rows < seqlen ? rows : seqlen);
}

/// Lengths are held to the extents: on a device they have not been checked.
REGARD_KERNEL_FN Sequence sequence_of(const Problem& p, std::int64_t b) {
  Sequence s{};
  s.b = b;
  s.rows_q = s.len_q = held_rows(p.q.starts, p.seqlen_q, p.total_q, b);
  s.rows_kv = s.band.len_kv = held_rows(p.k.starts, p.seqlen_kv, p.total_kv, b);
  s.band.window_left = p.window_left;
  s.band.window_right = p.window_right;
  if (p.lens_q.present) {
    const std::int64_t len = *element_at<std::int32_t>(p.lens_q, b * p.lens_q.stride[0]);
    s.len_q = semantics::clamp(len, 0, s.rows_q);
  }
  if (p.lens_kv.present) {
    const std::int64_t len = *element_at<std::int32_t>(p.lens_kv, b * p.lens_kv.stride[0]);
    s.band.len_kv = semantics::clamp(len + p.seqlen_new, 0, s.rows_kv);
  }
  if (p.leftpads.present) {
    s.leftpad = semantics::clamp(leftpad_of(p, b), 0, s.rows_kv);
    s.rows_kv = semantics::clamp(s.rows_kv - s.leftpad, 0, s.rows_kv);
    s.band.len_kv = semantics::clamp(s.band.len_kv - s.leftpad, 0, s.rows_kv);
  }
  if (p.diagonal == DiagonalKind::kBottomRight) {
    s.band.shift = semantics::bottom_right_shift(s.len_q, s.band.len_kv);
  } else if (p.diagonal == DiagonalKind::kOffset) {
    s.band.shift = p.offsets.present ? *element_at<std::int64_t>(p.offsets, b * p.offsets.stride[0])
                                     : p.diagonal_offset;
  }
  return s;
}

}  // namespace regard::problem
