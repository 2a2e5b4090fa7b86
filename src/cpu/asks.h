#pragma once

#include <cstdint>

#include "cpu/cache_lines.h"
#include "cpu/problem.h"
#include "cpu/simd_vector.h"
#include "semantics/tiles.h"

// What strips of rows ask memory for while their products of queries and keys run. Requests are
// spread finely: a core keeps few open and stops at the next one until memory has answered
// (docs/decisions.md has the figures).

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// Elements of a product's matrix in a line.
inline constexpr int kLineSteps = 16;

/// Rows of `bytes` bytes, `stride` bytes apart.
struct AskedRows {
  const char* first;
  std::int64_t stride;
  std::int64_t bytes;
};

/// Rows of some matrices: of each as many as the product takes from its own.
template <int kMatrices>
struct Asks {
  AskedRows rows[kMatrices > 0 ? kMatrices : 1];

  /// Lines of a row, as far as there is a line of the product's k elements for each.
  REGARD_KERNEL_FN std::int64_t lines(const Asks& asks, std::int64_t k) {
    std::int64_t most = 0;
    for (int m = 0; m < kMatrices; ++m) {
      const std::int64_t of = lines_of(asks.rows[m].bytes);
      most = of > most ? of : most;
    }
    return most < k / kLineSteps ? most : k / kLineSteps;
  }

  /// A line of each of the next kRows rows.
  template <int kRows>
  REGARD_KERNEL_FN void ask(Asks* asks) {
    REGARD_UNROLL for (int m = 0; m < kMatrices; ++m) {
      REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
        __builtin_prefetch(asks->rows[m].first, 0, 2);
        asks->rows[m].first += asks->rows[m].stride;
      }
    }
  }

  REGARD_KERNEL_FN void next_line(Asks* asks) {
    for (int m = 0; m < kMatrices; ++m) asks->rows[m].first += kLineBytes;
  }
  REGARD_KERNEL_FN void next_rows(Asks* asks, std::int64_t count) {
    for (int m = 0; m < kMatrices; ++m) asks->rows[m].first += count * asks->rows[m].stride;
  }
};

/// The strips at a tile of K and V: the first one that meets it asks for the tile's values, the
/// second one, or the first where it is alone, for the next tile's keys.
struct TileAsks {
  HeadTurn turn;
  std::int64_t b;
  semantics::Tile tile;
  std::int64_t met;  // strips that did

  REGARD_KERNEL_FN AskedRows rows(const TileAsks& at, const View& view, std::int64_t j,
                                  std::int64_t dim) {
    const std::int64_t element = element_bytes(view.type);
    return {row_address(view, at.b, at.turn.head_kv, j), view.stride[2] * element, dim * element};
  }

  /// Calls f(asks) for the next strip.
  template <class F>
  REGARD_KERNEL_FN void with_next(TileAsks* at, const Problem& p, F f) {
    const std::int64_t strip = at->met++;
    const std::int64_t next = at->tile.begin + at->tile.size;
    const bool asks_keys = next < p.seqlen_kv && strip == (at->turn.strips > 1 ? 1 : 0);
    const auto values = [&]() __attribute__((always_inline)) {
      return rows(*at, p.v, at->tile.begin, p.head_dim_v);
    };
    const auto keys = [&]() __attribute__((always_inline)) {
      return rows(*at, p.k, next, p.head_dim_qk);
    };
    if (strip == 0 && asks_keys) {
      f(Asks<2>{{values(), keys()}});
    } else if (strip == 0) {
      f(Asks<1>{{values()}});
    } else if (asks_keys) {
      f(Asks<1>{{keys()}});
    } else {
      f(Asks<0>{});
    }
  }
};

}  // namespace
}  // namespace regard::cpu
