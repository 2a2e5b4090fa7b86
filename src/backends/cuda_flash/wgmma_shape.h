#pragma once

#include <cstdint>

#include "cuda/tensor_box.h"

// What a block of FLASH's wgmma forward holds, and how its warpgroups take turns.

namespace regard::cuda_flash {

/// How consumers order their products. All give the same bits.
enum class Schedule : std::uint8_t {
  kOverlapped = 0,  // scores of the next tile are computed beside the product with values
  kTurns,           // the same, and two warpgroups take turns: one multiplies, one has its softmax
  kPlain,           // one product after the other
  kWide             // the same with three warpgroups, whose registers leave no room to overlap
};
inline constexpr int kSchedules = 4;

template <int kColumns, Schedule kSchedule>
struct WgmmaShape {
  static constexpr bool kOverlaps =
      kSchedule == Schedule::kOverlapped || kSchedule == Schedule::kTurns;
  static constexpr bool kTurns = kSchedule == Schedule::kTurns;
  static constexpr int kConsumers = kSchedule == Schedule::kWide ? 3 : 2;  // warpgroups
  static constexpr int kGroupThreads = 128, kGroupRows = 64;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kRows = kConsumers * kGroupRows;
  static constexpr int kDims = kColumns;
  // Of a tile: with 256 dims a lane's sums take 128 registers, and scores of 80 keys 40.
  static constexpr int kKeys = kColumns <= 128 ? 128 : 80;
  static constexpr int kStages = 2;
  // Of a lane. A multiprocessor has 65536; the launch gives each thread an equal share first.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  static_assert((kProducerRegisters + kConsumers * kConsumerRegisters) * kGroupThreads <= 65536);

  // Shared memory: barriers, queries, and stages of a tile of keys and a tile of values.
  static constexpr int kBoxes = kDims / cuda::kBoxColumns;  // of a row
  static constexpr int kQueryBytes = kRows * kDims * 2;
  static constexpr int kPartBytes = kKeys * kDims * 2;
  static constexpr int kAtQueries = cuda::kBoxAlign;
  static constexpr int kAtStages = kAtQueries + kQueryBytes;
  static constexpr int kBytes = kAtStages + 2 * kStages * kPartBytes;
  // The first byte is moved to a multiple of kBoxAlign; a block has 227 KB.
  static constexpr int kSharedBytes = kBytes + cuda::kBoxAlign;
  static_assert(kSharedBytes <= 227 * 1024);

  // Barriers: a tile is there (`full`), or nobody reads it any more (`empty`).
  static constexpr int kQueriesFull = 0, kQueriesEmpty = 8;
  REGARD_KERNEL_FN constexpr int full(int part, int stage) {
    return 16 + (part * kStages + stage) * 16;
  }
  REGARD_KERNEL_FN constexpr int empty(int part, int stage) { return full(part, stage) + 8; }
  static constexpr int kWarps = kConsumers * 4;  // each says that it has read a tile
  static_assert(16 + 2 * kStages * 16 <= kAtQueries);
};

/// The tensors of a call as copies read them.
struct WgmmaBoxes {
  cuda::TensorBox q, k, v;
};

inline WgmmaBoxes wgmma_boxes(const problem::Problem& p, int rows, int keys) {
  return {
      cuda::tensor_box(p.q, p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk, rows),
      cuda::tensor_box(p.k, p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk, keys),
      cuda::tensor_box(p.v, p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v, keys),
  };
}

/// Whether these kernels can run a call that a plan gives them: what no plan knows, strides and the
/// scale's sign.
inline bool wgmma_takes(const problem::Problem& p) {
  const WgmmaBoxes boxes = wgmma_boxes(p, 1, 1);
  return !p.prescale_scores && !p.negates_scores && is_loadable(boxes.q) && is_loadable(boxes.k) &&
         is_loadable(boxes.v);
}

}  // namespace regard::cuda_flash
