#pragma once

#include <cstdint>

#include "cuda/edit.cuh"
#include "cuda/tensor.cuh"
#include "problem/grad_problem.h"

// Edits of a lane's scores of 16 rows and kKeys keys. `row` is the first of the lane's rows, whose
// facts lie in shared memory; `first` is the tile's first key.

namespace regard::cuda {

/// Whether a tile's scores are only scaled, and hidden by arithmetic alone.
REGARD_KERNEL_FN bool needs_scale_alone(const Problem& p, bool is_full) {
  return problem::scales_late(p) && (is_full || !problem::has_data_mask(p));
}

/// Whether that holds for all tiles, and nothing is dropped: kernels without edits have a third of
/// the instructions, and fewer registers.
inline bool is_plain(const Problem& p) {
  return needs_scale_alone(p, false) && p.dropout.threshold == 0;
}

template <int kKeys>
REGARD_DEVICE_FN void scale_by(float factor, WarpSums<kKeys>* scores) {
  if (factor == 1.0f) return;
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) scores->at[n][x] *= factor;
  }
}

/// A key in a tile, held to its ends, as the lane counts its keys: from its first column on.
template <int kKeys, class Block>
REGARD_DEVICE_FN int lane_key(const Block& block, std::int64_t key, std::int64_t first) {
  return static_cast<int>(semantics::clamp(key - first, 0, kKeys)) - lane_column(block);
}

/// Scores that arithmetic hides become -inf. `bounds` are facts, or semantics::KeyRange.
template <int kKeys, class Block, class Bounds>
REGARD_DEVICE_FN void hide_by_arithmetic(const Block& block, Bounds bounds, int row,
                                         std::int64_t first, WarpSums<kKeys>* scores) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const auto keys = load_at(bounds, row + i * 8);
    const int lo = lane_key<kKeys>(block, keys.lo, first);
    const int hi = lane_key<kKeys>(block, keys.hi, first);
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 2; ++x) {
        const bool visible = n * 8 + x >= lo && n * 8 + x < hi;
        if (!visible) scores->at[n][2 * i + x] = minus_infinity<float>();
      }
    }
  }
}

/// Edits the raw scores; what a row may not see becomes -inf.
template <int kKeys, class Block, class Facts>
REGARD_DEVICE_FN void edit_lane_scores(const Block& block, const Problem& p, std::int64_t b,
                                       Facts facts, int row, std::int64_t first, bool is_full,
                                       WarpSums<kKeys>* scores) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const RowFacts<float> own = facts[row + i * 8];
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 2; ++x) {
        const std::int64_t j = first + n * 8 + lane_column(block) + x;
        float& score = scores->at[n][2 * i + x];
        score = edit_score(p, b, own, j, is_full, score, [](float) {});
      }
    }
  }
}

/// Edited scores that tree_mask hides become -inf.
template <int kKeys, class Block, class Facts>
REGARD_DEVICE_FN void hide_by_tree(const Block& block, const Problem& p, const TreeColumns& tree,
                                   Facts facts, int row, std::int64_t first,
                                   WarpSums<kKeys>* scores) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const RowFacts<float> own = facts[row + i * 8];
    const int lo = lane_key<kKeys>(block, own.lo > tree.begin ? own.lo : tree.begin, first);
    const int hi = lane_key<kKeys>(block, own.hi, first);
    const char* const at =
        tree_row(p, tree, own.query) + (first + lane_column(block) - tree.begin) * p.tree.stride[2];
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 2; ++x) {
        const int key = n * 8 + x;
        const bool has_column = key >= lo && key < hi;
        if (has_column && at[key * p.tree.stride[2]] == 0) {
          scores->at[n][2 * i + x] = minus_infinity<float>();
        }
      }
    }
  }
}

/// Drops elements: hidden ones keep their sign.
template <int kKeys, class Block, class Facts>
REGARD_DEVICE_FN void drop_lane_tile(const Block& block, const Problem& p, Facts facts, int row,
                                     std::int64_t first, WarpSums<kKeys>* values) {
  if (p.dropout.threshold == 0) return;
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const RowFacts<float> own = facts[row + i * 8];
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      const std::int64_t j = first + n * 8 + lane_column(block);
      const semantics::PhiloxBlock draws = semantics::dropout_block(p.dropout, own.stream, j);
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 2; ++x) {
        const bool kept = semantics::dropout_draw(draws, j + x) < p.dropout.threshold;
        if (!kept) values->at[n][2 * i + x] *= 0.0f;
      }
    }
  }
}

}  // namespace regard::cuda
