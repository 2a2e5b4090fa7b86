#pragma once

#include <cstdint>

#include "cpu/element.h"
#include "semantics/philox.h"
#include "semantics/row_bounds.h"
#include "semantics/score_edits.h"

namespace regard::cpu {

/// A tensor as kernels see it; strides in elements, 0 where it is broadcast.
struct View {
  char* data = nullptr;
  std::int64_t stride[4] = {};
  Element type = Element::kF32;
  bool present = false;
};

/// The address of element `index` of a view whose elements are T.
template <class T>
REGARD_KERNEL_FN T* element_at(const View& view, std::int64_t index) {
  return reinterpret_cast<T*>(view.data) + index;
}

enum class DiagonalKind : std::uint8_t { kTopLeft = 0, kBottomRight, kOffset };
enum class ScoresStage : std::uint8_t { kNone = 0, kScaled, kEdited, kProbs };

/// A forward call as plain data: everything that kernels read, ready to index. make_problem.h makes
/// it. Logical shapes: q, out [B,Hq,Sq,.], k, v [B,Hkv,Skv,.].
struct Problem {
  std::int64_t batch = 0;
  std::int64_t num_heads_q = 0;
  std::int64_t num_heads_kv = 0;
  std::int64_t group_size = 1;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_kv = 0;
  std::int64_t head_dim_qk = 0;
  std::int64_t head_dim_v = 0;

  View q, k, v, out;
  View lse;                      // [B,Hq,Sq]
  View stats;                    // [B,Hq,Sq,2]: row maximum and row sum
  View scores;                   // [B,Hq,Sq,Skv]
  View mask, bias;               // [B,Hq,Sq,Skv], broadcast by strides
  View slopes;                   // [B,Hq]
  View sinks;                    // [Hq]
  View segments_q, segments_kv;  // [B,Sq], [B,Skv]
  View lens_q, lens_kv;          // [B]
  View offsets;                  // [B]

  DiagonalKind diagonal = DiagonalKind::kTopLeft;
  ScoresStage scores_stage = ScoresStage::kNone;
  std::int64_t diagonal_offset = 0;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softmax_scale = 1.0;
  double softcap = 0.0;
  bool scales_first = false;  // scores are scaled before the softmax, not by it
  double factor = 1.0;        // of score differences in the base-2 exponent; > 0
  double unit = 1.0;          // a score of the softmax, in natural units; > 0
  semantics::Dropout dropout{};
};

/// Keys are hidden by data, not by arithmetic alone.
REGARD_KERNEL_FN bool is_opaque(const Problem& p) {
  return p.mask.present || p.bias.present || p.segments_q.present;
}

/// Outputs, and tiles of K and V, are padded to a multiple of this in head_dim.
inline constexpr std::int64_t kHeadDimUnit = 8;

REGARD_KERNEL_FN constexpr std::int64_t padded_head_dim(std::int64_t head_dim) {
  return (head_dim + kHeadDimUnit - 1) / kHeadDimUnit * kHeadDimUnit;
}

/// One entry of the batch: its lengths and what its rows see.
struct Sequence {
  std::int64_t b = 0;
  std::int64_t len_q = 0;
  semantics::Band band{};
};

REGARD_KERNEL_FN Sequence sequence_of(const Problem& p, std::int64_t b) {
  Sequence s{};
  s.b = b;
  s.len_q = p.seqlen_q;
  s.band.len_kv = p.seqlen_kv;
  s.band.window_left = p.window_left;
  s.band.window_right = p.window_right;
  if (p.lens_q.present) {
    s.len_q = *element_at<std::int32_t>(p.lens_q, b * p.lens_q.stride[0]);
  }
  if (p.lens_kv.present) {
    s.band.len_kv = *element_at<std::int32_t>(p.lens_kv, b * p.lens_kv.stride[0]);
  }
  if (p.diagonal == DiagonalKind::kBottomRight) {
    s.band.shift = semantics::bottom_right_shift(s.len_q, s.band.len_kv);
  } else if (p.diagonal == DiagonalKind::kOffset) {
    s.band.shift = p.offsets.present ? *element_at<std::int64_t>(p.offsets, b * p.offsets.stride[0])
                                     : p.diagonal_offset;
  }
  return s;
}

/// Where a task lies: all rows of one (b, kv head) are its queries times the heads of the group,
/// head fastest (row = i * group_size + g), so that one read of K and V serves a whole group.
struct TaskGrid {
  std::int64_t rows_per_task = 1;
  std::int64_t blocks = 0;  // tasks per (b, kv head)
};

struct TaskRows {
  std::int64_t b = 0;
  std::int64_t head_kv = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Blocks come last first: under a causal mask the longest rows start first.
REGARD_KERNEL_FN TaskRows task_rows(const Problem& p, const TaskGrid& grid, std::int64_t task) {
  const std::int64_t block = grid.blocks - 1 - task % grid.blocks;
  const std::int64_t bh = task / grid.blocks;
  const std::int64_t rows = p.seqlen_q * p.group_size;
  TaskRows t{};
  t.b = bh / p.num_heads_kv;
  t.head_kv = bh % p.num_heads_kv;
  t.begin = block * grid.rows_per_task;
  t.end = t.begin + grid.rows_per_task < rows ? t.begin + grid.rows_per_task : rows;
  return t;
}

}  // namespace regard::cpu
