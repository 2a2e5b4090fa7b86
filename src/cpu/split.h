#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "semantics/splits.h"

// Which kernel serves a sequence, and how rows over many keys are divided among workers:
// functions of the sequence's own rows and length, so that a sequence has the same bits alone, in
// any batch and on any number of threads.

namespace regard::cpu {

using semantics::common_keys;
using semantics::split_keys;

/// Up to so many rows (queries times the heads of a group) lanes may lie along head_dim where a
/// row block has `width` rows: they are one row block. From there on rows in lanes are faster.
REGARD_KERNEL_FN constexpr std::int64_t max_decode_rows(std::int64_t width) {
  return width < 12 ? width : 12;
}

/// Rows of a call's sequences that lanes lie along head_dim for, at most: row blocks of decode rows
/// lie that far apart.
REGARD_KERNEL_FN std::int64_t decode_rows_of(const Problem& p, std::int64_t width) {
  const std::int64_t rows = p.seqlen_q * p.group_size, max = max_decode_rows(width);
  return rows < max ? rows : max;
}

/// Keys of a tile there, at least and at most. Tiles of a backend are whole multiples: splits of
/// decode rows end where tiles of either kind do.
inline constexpr std::int64_t kDecodeTileKv = 16;
inline constexpr std::int64_t kMaxDecodeTileKv = 128;

/// Keys of a tile there, which `tile_kv`, a backend's own, is a multiple of. Head dims of 128 and
/// more: `column_bytes` of each column of K and V, 128 of 8 bits or less; of fewer head dims as
/// many bytes. What a tile costs outside of its loops is that of the products of 8 keys with
/// AVX-512 (docs/dev/decisions/cpu.md).
REGARD_KERNEL_FN constexpr std::int64_t decode_tile_kv(std::int64_t element_bytes,
                                                       std::int64_t head_dim, std::int64_t tile_kv,
                                                       std::int64_t column_bytes) {
  constexpr std::int64_t kHeadDim = 128;
  const std::int64_t columns = head_dim < 1 ? 1 : head_dim < kHeadDim ? head_dim : kHeadDim;
  const std::int64_t max_keys = tile_kv < kMaxDecodeTileKv ? tile_kv : kMaxDecodeTileKv;
  const std::int64_t wanted =
      (element_bytes > 1 ? column_bytes / element_bytes : 128) * kHeadDim / columns;
  std::int64_t keys = (wanted < max_keys ? wanted : max_keys) / kDecodeTileKv * kDecodeTileKv;
  while (keys > kDecodeTileKv && tile_kv % keys != 0) keys -= kDecodeTileKv;
  return keys > kDecodeTileKv ? keys : kDecodeTileKv;
}

/// Of the system's memory.
inline constexpr std::int64_t kMemoryPage = 4096;

/// Up to so many rows count as few: their keys are split from 513 on.
inline constexpr std::int64_t kSplitRows = 64;

/// Splits at most.
inline constexpr std::int64_t kMaxSplits = 64;

/// Splits that the keys of a sequence come in. Few rows: one for 512 keys up to 16, and beyond
/// 16,384 keys one for 1,024. More rows are split beyond 8,192 keys: one for 2,048 while rows times
/// splits are no more than 4,096, with which a head has as many row blocks as 64 workers take.
REGARD_KERNEL_FN constexpr std::int64_t num_splits(std::int64_t rows, std::int64_t len_kv) {
  constexpr std::int64_t kKeys = 1024, kRowsTimesSplits = 4096;
  if (rows <= kSplitRows) {
    const std::int64_t fewest = semantics::split_count(len_kv);
    return semantics::clamp(len_kv / kKeys, fewest, kMaxSplits);
  }
  if (len_kv <= semantics::kLongKeys) return 1;
  return semantics::clamp(len_kv / (2 * kKeys), 1,
                          semantics::clamp(kRowsTimesSplits / rows, 1, kMaxSplits));
}

/// Row blocks that splits of a head with more than decode rows take together, at most, whatever its
/// lengths within these: each split of a block of up to `row_blocks` row blocks of `width` rows.
REGARD_KERNEL_FN constexpr std::int64_t max_split_row_blocks(std::int64_t rows, std::int64_t len_kv,
                                                             std::int64_t width) {
  std::int64_t max = 0;
  for (std::int64_t n = kSplitRows + 1; n <= rows && n <= 4096; n += width) {
    const std::int64_t splits = num_splits(n, len_kv), last = n + width - 1;
    const std::int64_t row_blocks = (last < rows ? last : rows) / width + 1;
    if (splits > 1 && splits * row_blocks > max) max = splits * row_blocks;
  }
  return max;
}

/// Steps that the splits are taken in where they are `runs` runs of neighbours, one split of each
/// run in turn: so many workers side by side go on where they were, which they have prefetched.
REGARD_KERNEL_FN constexpr std::int64_t split_steps(std::int64_t splits, std::int64_t runs) {
  return (splits + runs - 1) / runs * runs;
}

/// The split of a step; past the last one where runs are uneven.
REGARD_KERNEL_FN constexpr std::int64_t split_of_step(std::int64_t splits, std::int64_t runs,
                                                      std::int64_t step) {
  return step % runs * (split_steps(splits, runs) / runs) + step / runs;
}

}  // namespace regard::cpu
