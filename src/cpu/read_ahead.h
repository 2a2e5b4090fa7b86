#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "semantics/tiles.h"

// Asks memory for the next tile of K and V while one is computed, where lanes lie along head_dim
// (asks.h is for strips). A core keeps few requests open (24 on a Zen 3) and stops at the next one
// until memory has answered, so they are spread over the arithmetic. Where lines follow one another
// the hardware asks by itself, far ahead; so heads that are neighbours in memory ask for whole
// keys, each for some of them. docs/decisions.md has the figures.

namespace regard::cpu {

/// Rows that are `gap` bytes apart, from somewhere in the first one on.
struct RowsAhead {
  const char* at;
  const char* end;  // of the first row
  std::int64_t row_bytes;
  std::int64_t gap;
  std::int64_t rows;  // after the first
};

struct ReadAhead {
  RowsAhead keys;
  RowsAhead values;             // once there are no keys left
  std::int64_t asks_each_step;  // of the arithmetic, see spread
};

/// Asked for at once. Pieces of 128 bytes take 3 % more time where everything is in the caches.
inline constexpr std::int64_t kAskedBytes = 256;

REGARD_KERNEL_FN RowsAhead rows_ahead(const char* first, std::int64_t rows, std::int64_t row_bytes,
                                      std::int64_t stride) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t gap = stride - row_bytes;
  if (gap >= 0 && gap < kLine) return {first, first + rows * stride, 0, 0, 0};
  return {first, first + row_bytes, row_bytes, gap, rows - 1};
}

/// The share of a head in `keys` of k or v, which has `dim` elements in a row.
REGARD_KERNEL_FN RowsAhead share_ahead(const View& view, std::int64_t b, HeadTurn turn,
                                       semantics::KeyRange keys, std::int64_t dim) {
  const std::int64_t element = element_bytes(view.type);
  const std::int64_t stride = view.stride[2] * element;
  const std::int64_t head = view.stride[1] * element;
  const bool neighbours = turn.count > 1 && head >= dim * element && turn.count * head <= stride;
  const std::int64_t index = neighbours ? turn.index : 0, count = neighbours ? turn.count : 1;
  const std::int64_t size = keys.hi - keys.lo;
  const std::int64_t begin = keys.lo + size * index / count;
  const std::int64_t end = keys.lo + size * (index + 1) / count;
  if (begin == end) return {};
  return rows_ahead(row_address(view, b, turn.head_kv - index, begin), end - begin,
                    (count - 1) * head + dim * element, stride);
}

/// The tile after `tile`.
REGARD_KERNEL_FN ReadAhead read_ahead(const Problem& p, std::int64_t b, HeadTurn turn,
                                      semantics::Tile tile) {
  const std::int64_t begin = tile.begin + tile.size;
  if (begin >= p.seqlen_kv) return {};
  const semantics::KeyRange keys{begin, semantics::clamp(begin + tile.size, 0, p.seqlen_kv)};
  return {share_ahead(p.k, b, turn, keys, p.head_dim_qk),
          share_ahead(p.v, b, turn, keys, p.head_dim_v), 0};
}

REGARD_KERNEL_FN std::int64_t asks_left(const RowsAhead& r) {
  const auto asks = [](std::int64_t bytes) __attribute__((always_inline)) {
    return (bytes + kAskedBytes - 1) / kAskedBytes;
  };
  return asks(r.end - r.at) + r.rows * asks(r.row_bytes);
}

/// Spreads what is left over the next `steps` steps of the arithmetic.
REGARD_KERNEL_FN void spread(ReadAhead* r, std::int64_t steps) {
  r->asks_each_step = (asks_left(r->keys) + asks_left(r->values) + steps - 1) / steps;
}

/// Asks for what is due in `steps` steps, into the L1 or the L2. A line past the end of a row does
/// no harm; two of four did, where rows are 128 bytes long (2 % on a Zen 5).
template <bool kIntoL1 = false>
REGARD_KERNEL_FN void ask(ReadAhead* r, std::int64_t steps) {
  constexpr int kLocality = kIntoL1 ? 3 : 2;
  RowsAhead from = r->keys;
  for (std::int64_t x = steps * r->asks_each_step; x > 0 && from.at < from.end; --x) {
    __builtin_prefetch(from.at, 0, kLocality);
    __builtin_prefetch(from.at + 64, 0, kLocality);
    if (from.end - from.at > 128) {
      __builtin_prefetch(from.at + 128, 0, kLocality);
      __builtin_prefetch(from.at + 192, 0, kLocality);
    }
    from.at += kAskedBytes;
    if (from.at < from.end) continue;
    if (from.rows > 0) {
      --from.rows;
      from.at = from.end + from.gap;
      from.end = from.at + from.row_bytes;
    } else {
      from = r->values;
      r->values = {};
    }
  }
  r->keys = from;
}

}  // namespace regard::cpu
