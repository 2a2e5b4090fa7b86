#pragma once

#include <cstdint>

#include "semantics/row_bounds.h"

// How the keys of rows over many keys are divided into splits that are computed side by side: a
// rule of the sequence's own rows and length, so that it has the same bits alone and in any batch.

namespace regard::semantics {

inline constexpr std::int64_t kKeysPerSplit = 512;
inline constexpr std::int64_t kMaxSplits = 16;
/// Up to so many keys kMaxSplits holds, and more rows than a few are not split.
inline constexpr std::int64_t kLongKeys = 8192;

/// Where the index-th of some shares begins whose sizes differ by one at most.
REGARD_KERNEL_FN constexpr std::int64_t share_begin(std::int64_t size, std::int64_t shares,
                                                    std::int64_t index) {
  const std::int64_t larger = size % shares;
  return size / shares * index + (index < larger ? index : larger);
}

/// Splits that the keys of a sequence of decode rows come in.
REGARD_KERNEL_FN constexpr std::int64_t split_count(std::int64_t len_kv) {
  return clamp((len_kv + kKeysPerSplit - 1) / kKeysPerSplit, 1, kMaxSplits);
}

/// The keys of split `index` of `count`: whole tiles but for the last, as many as the others' or
/// one more.
REGARD_KERNEL_FN constexpr KeyRange split_keys(std::int64_t len_kv, std::int64_t tile_kv,
                                               std::int64_t count, std::int64_t index) {
  const std::int64_t tiles = (len_kv + tile_kv - 1) / tile_kv;
  const std::int64_t begin = share_begin(tiles, count, index) * tile_kv;
  const std::int64_t end = share_begin(tiles, count, index + 1) * tile_kv;
  return {clamp(begin, 0, len_kv), clamp(end, 0, len_kv)};
}

/// The same of as many as split_count gives.
REGARD_KERNEL_FN constexpr KeyRange split_keys(std::int64_t len_kv, std::int64_t tile_kv,
                                               std::int64_t index) {
  return split_keys(len_kv, tile_kv, split_count(len_kv), index);
}

REGARD_KERNEL_FN constexpr KeyRange common_keys(KeyRange a, KeyRange b) {
  return {a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
}

}  // namespace regard::semantics
