#pragma once

#include <cstdint>

#include "semantics/row_bounds.h"

namespace regard::semantics {

/// Keys [begin, begin + size), on the absolute grid of tiles, within the sequence.
struct Tile {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

REGARD_KERNEL_FN constexpr Tile tile_at(std::int64_t index, std::int64_t tile_kv,
                                        std::int64_t len_kv) {
  const std::int64_t begin = index * tile_kv;
  return {begin, begin + tile_kv < len_kv ? tile_kv : len_kv - begin};
}

/// Tiles [begin, end) that hold every key of `keys`.
struct TileSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

REGARD_KERNEL_FN constexpr TileSpan tiles_of(KeyRange keys, std::int64_t tile_kv) {
  if (is_empty(keys)) return {0, 0};
  if (keys.hi <= tile_kv) return {0, 1};  // without divisions
  return {keys.lo / tile_kv, (keys.hi - 1) / tile_kv + 1};
}

enum class TileClass : std::uint8_t {
  kEmpty = 0,  // no row sees any key: skip
  kFull,       // every row sees every key: no mask code
  kPartial     // look at each element
};

/// The class of rows x keys [j_begin, j_end), both not empty, where `first` and `last` are what the
/// first and the last row see by arithmetic. `opaque`: a mask, a bias (which may hold -inf) or
/// segment ids hide keys that arithmetic cannot see, so nothing is FULL. A rectangle without a
/// visible element may be called PARTIAL; kernels give the same bits for both.
REGARD_KERNEL_FN constexpr TileClass classify_tile(const KeyRange& first, const KeyRange& last,
                                                   std::int64_t j_begin, std::int64_t j_end,
                                                   bool opaque) {
  // Ends grow with the row: the union is [first.lo, last.hi), the intersection [last.lo, first.hi).
  if (last.hi <= j_begin || first.lo >= j_end) return TileClass::kEmpty;
  if (!opaque && last.lo <= j_begin && first.hi >= j_end) return TileClass::kFull;
  return TileClass::kPartial;
}

/// The same of queries [i_begin, i_end).
REGARD_KERNEL_FN constexpr TileClass classify_tile(const Band& band, std::int64_t i_begin,
                                                   std::int64_t i_end, std::int64_t j_begin,
                                                   std::int64_t j_end, bool opaque) {
  return classify_tile(visible_keys(band, i_begin), visible_keys(band, i_end - 1), j_begin, j_end,
                       opaque);
}

}  // namespace regard::semantics
