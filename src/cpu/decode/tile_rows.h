#pragma once

#include <cstdint>

#include "cpu/decode/tile_ahead.h"
#include "cpu/forward/row_block.h"
#include "cpu/kv_tiles.h"

// A tile of K or V as decode rows read it: where it lies, or a copy.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// One number for each row, not those of the groups of u4, which loops read beside the codes.
REGARD_KERNEL_FN bool has_row_scales(const KvOperand& x) {
  return x.scales.first != nullptr && x.type != Element::kU4;
}

/// Calls f(row, scale, keys) for the keys of a tile that follow one another in memory, in turn;
/// `scale` is null where there are none.
template <class F>
REGARD_KERNEL_FN void for_runs(const KvOperand& x, Tile tile, const PageRuns& pages, F f) {
  const bool has_scales = x.scales.first != nullptr;
  const std::int64_t run_keys = pages.run_keys();
  if (run_keys == 0) {
    const float* const scale = has_scales ? scale_at(x, tile.begin) : nullptr;
    return f(row_of(x, tile.begin), reinterpret_cast<const char*>(scale), tile.size);
  }
  const PageRun* run = pages.of_tile(tile.begin);
  for (std::int64_t j = 0; j < tile.size; j += run_keys, ++run) {
    const std::int64_t left = tile.size - j;
    f(row_of(x, *run), has_scales ? scale_at(x, *run) : nullptr, left < run_keys ? left : run_keys);
  }
}

template <class T>
static void read_row_scales(const KvOperand& x, Tile tile, const PageRuns& pages, T* scales) {
  for_runs(
      x, tile,
      pages, [&](const char*, const char* scale, std::int64_t keys) __attribute__((always_inline)) {
        for (std::int64_t j = 0; j < keys; ++j, scale += x.scales.stride) {
          *scales++ = static_cast<T>(*reinterpret_cast<const float*>(scale));
        }
      });
}

/// Bytes in blocks of a line and of a word: a call of memcpy takes longer than a short row does.
REGARD_KERNEL_FN void copy_bytes(char* to, const char* from, std::int64_t bytes) {
  constexpr std::int64_t kWordBytes = 8;
  std::int64_t x = 0;
  for (; x + kLineBytes <= bytes; x += kLineBytes) __builtin_memcpy(to + x, from + x, kLineBytes);
  for (; x + kWordBytes <= bytes; x += kWordBytes) __builtin_memcpy(to + x, from + x, kWordBytes);
  for (; x < bytes; ++x) to[x] = from[x];
}

/// The rows of a tile one behind the other, and behind them the scales and minima of u4.
[[maybe_unused]] static KvOperand copy_rows(const KvOperand& x, Tile tile, const PageRuns& pages,
                                            void* buffer) {
  const std::int64_t row_bytes = bytes_of(x.type, x.dim);
  const std::int64_t group_bytes =
      x.type == Element::kU4 ? x.dim / kGroup * 2 * std::int64_t{sizeof(float)} : 0;
  char* to = static_cast<char*>(buffer);
  char* groups_to = to + row_bytes * tile.size;
  KvOperand copy = copied_operand(buffer, x.type, x.dim, tile.size);
  copy.scales = x.scales;
  if (x.type == Element::kU4) copy.scales = {groups_to, group_bytes, 0};
  for_runs(
      x, tile, pages,
      [&](const char* row, const char* scale, std::int64_t keys) __attribute__((always_inline)) {
        for (std::int64_t j = 0; j < keys; ++j, row += x.stride, to += row_bytes) {
          copy_bytes(to, row, row_bytes);
          if (group_bytes == 0) continue;
          copy_bytes(groups_to, scale, group_bytes);
          scale += x.scales.stride;
          groups_to += group_bytes;
        }
      });
  return copy;
}

/// Whether tiles of 8-bit floats become bf16, which is exact, to be multiplied as pairs are or with
/// one instruction a vector where f32 would take eight.
template <class V>
inline constexpr bool kHasBf16OfF8 = requires(typename V::Vec x) {
  V::f8_table(false);
};
/// Whether they become f16: e5m2 itself and a 256th of e4m3, exact both.
template <class V>
inline constexpr bool kHasF16OfF8 = !kHasBf16OfF8<V> && requires(const char* p, std::uint16_t* to) {
  V::f16_of_f8e5m2(p, to);
};
template <class V>
inline constexpr bool kConvertsF8 = kHasBf16OfF8<V> || kHasF16OfF8<V>;

/// Calls convert(codes, words) for V::kF8Codes elements of each row of a tile; rows of words follow
/// one another.
template <class V, class Convert>
REGARD_KERNEL_FN void convert_f8_rows(const KvOperand& x, Tile tile, const PageRuns& pages,
                                      std::uint16_t* to, Convert convert) {
  constexpr int kCodes = V::kF8Codes;
  const std::int64_t dim = x.dim, stride = x.stride;
  const auto convert_row = [&](const char* row) __attribute__((always_inline)) {
    std::int64_t d = 0;
    for (; d + kCodes <= dim; d += kCodes) convert(row + d, to + d);
    if (d == dim) return;
    if (dim > kCodes) {  // the last ones once more
      convert(row + dim - kCodes, to + dim - kCodes);
      return;
    }
    alignas(64) char codes[sizeof(typename V::Vec)];
    std::uint16_t words[kCodes];
    V::copy_start(codes, row, dim);
    convert(codes, words);
    copy_bytes(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(words), 2 * dim);
  };
  for_runs(
      x, tile,
      pages, [&](const char* row, const char*, std::int64_t keys) __attribute__((always_inline)) {
        for (std::int64_t j = 0; j < keys; ++j, row += stride, to += dim) convert_row(row);
      });
}

/// NaN for the codes of e4m3 that are one.
[[maybe_unused]] static void set_f8e4m3_nan(const KvOperand& x, Tile tile, const PageRuns& pages,
                                            std::uint16_t* to) {
  constexpr std::uint16_t kNan = 0x7e00;
  for_runs(x, tile, pages, [&](const char* row, const char*, std::int64_t keys) {
    for (std::int64_t j = 0; j < keys; ++j, row += x.stride, to += x.dim) {
      for (std::int64_t d = 0; d < x.dim; ++d) to[d] = (row[d] & 0x7f) == 0x7f ? kNan : to[d];
    }
  });
}

/// A tile of 8-bit floats as bf16 or f16 [size][dim].
template <class V>
static KvOperand convert_f8_tile(const KvOperand& x, Tile tile, const PageRuns& pages,
                                 void* buffer) {
  auto* const to = static_cast<std::uint16_t*>(buffer);
  if constexpr (kHasBf16OfF8<V>) {
    const auto table = V::f8_table(x.type == Element::kF8E5M2);
    const auto convert = [&](const char* codes, std::uint16_t* words)
        __attribute__((always_inline)) {
      V::bf16_of_f8(table, codes, words);
    };
    convert_f8_rows<V>(x, tile, pages, to, convert);
  } else if (x.type == Element::kF8E5M2) {
    const auto convert =
        [](const char* codes, std::uint16_t* words) __attribute__((always_inline)) {
      V::f16_of_f8e5m2(codes, words);
    };
    convert_f8_rows<V>(x, tile, pages, to, convert);
  } else {
    typename V::Int seen{};
    const auto convert = [&](const char* codes, std::uint16_t* words)
        __attribute__((always_inline)) {
      V::f16_of_f8e4m3(codes, words, &seen);
    };
    convert_f8_rows<V>(x, tile, pages, to, convert);
    if (V::has_f8e4m3_nan(seen)) set_f8e4m3_nan(x, tile, pages, to);
  }
  constexpr Element kType = kHasBf16OfF8<V> ? Element::kBf16 : Element::kF16;
  KvOperand copy = copied_operand(buffer, kType, x.dim, tile.size);
  copy.scales = x.scales;
  return copy;
}

inline constexpr int kTileLog2 = 7;
static_assert(kMaxDecodeTileKv == 1 << kTileLog2);

/// The rows of a tile: one behind the other, or kRunKeys at a time.
struct TileRows {
  Element type{};
  bool has_row_scales = false;
  float factor = 1;         // of f16: 256 where it was e4m3
  int run_log2 = 0;         // of the keys of a run: a division would take as long as 20 products
  std::int64_t stride = 0;  // bytes from one key to the next of a run
  std::int64_t groups_stride = 0;  // the same of `groups`
  std::int64_t groups_ahead = 0;   // bytes to those of the next tile; 0: not known
  const char* first[kMaxRuns];
  const char* groups[kMaxRuns];  // scales and minima of u4, else null
};

/// What the loops over `groups` blocks of rows of q prefetch while they multiply `rows` of x. f16
/// of 8-bit floats has no gain by half of the lines.
template <class V>
REGARD_KERNEL_FN RepeatedPrefetch repeated(const LinesCursor& cursor, std::int64_t groups,
                                           const KvOperand& x, const TileRows& rows) {
  const bool is_half = element_bytes(rows.type) == 2 * element_bytes(x.type);
  return {cursor, groups, kHasBf16OfF8<V> && is_half};
}

/// Keys from j on that follow one another, at most `count`.
REGARD_KERNEL_FN std::int64_t run_from(const TileRows& rows, std::int64_t j, std::int64_t count) {
  const std::int64_t run_keys = std::int64_t{1} << rows.run_log2;
  const std::int64_t left = run_keys - (j & (run_keys - 1));
  return left < count ? left : count;
}

/// Rows that follow one another, and the scales and minima of their groups.
struct KeyRows {
  const char* first;
  const char* groups;
};
REGARD_KERNEL_FN KeyRows rows_from(const TileRows& rows, std::int64_t j) {
  const std::int64_t run = j >> rows.run_log2, at = j - (run << rows.run_log2);
  return {rows.first[run] + at * rows.stride, rows.groups[run] + at * rows.groups_stride};
}
REGARD_KERNEL_FN KeyRows behind(const TileRows& rows, const KeyRows& from, std::int64_t j) {
  return {from.first + j * rows.stride, from.groups + j * rows.groups_stride};
}

/// What all runs share; whether rows have groups.
REGARD_KERNEL_FN bool set_shared(const KvOperand& x, TileRows* to) {
  const bool has_groups = x.type == Element::kU4;
  to->type = x.type;
  to->has_row_scales = has_row_scales(x);
  to->factor = 1;
  to->stride = x.stride;
  to->groups_stride = has_groups ? x.scales.stride : 0;
  to->groups_ahead = 0;
  return has_groups;
}

/// `x`, whose keys follow one another, from its key j on.
REGARD_KERNEL_FN void set_one_run(const KvOperand& x, std::int64_t j, TileRows* to) {
  const bool has_groups = set_shared(x, to);
  to->run_log2 = kTileLog2;
  to->first[0] = row_of(x, j);
  to->groups[0] = has_groups ? reinterpret_cast<const char*>(scale_at(x, j)) : nullptr;
}

/// The tile's runs in pages, as one where they follow one another.
[[maybe_unused]] static void set_runs(const KvOperand& x, Tile tile, const PageRuns& pages,
                                      TileRows* to) {
  const bool has_groups = set_shared(x, to);
  const PageRun* run = pages.of_tile(tile.begin);
  bool is_one = true;
  for (std::int64_t i = 0; i * kRunKeys < tile.size; ++i, ++run) {
    to->first[i] = row_of(x, *run);
    to->groups[i] = has_groups ? scale_at(x, *run) : nullptr;
    is_one &= to->first[i] == to->first[0] + i * kRunKeys * x.stride &&
              to->groups[i] == to->groups[0] + i * kRunKeys * to->groups_stride;
  }
  to->run_log2 = is_one ? kTileLog2 : kRunLog2;
}

/// Where tiles are copied and their scales read.
template <class T>
struct TileBuffers {
  T* rows;
  T* scales;
};

/// A tile's rows where they are if they follow one another, or do so within runs, and their type
/// has a loop of its own; else in a buffer: as they are, or converted to f32 or 16 bits.
template <class V>
static void set_tile_rows(const KvOperand& x, Tile tile, const PageRuns& pages, bool has_loop,
                          TileBuffers<typename V::Scalar> buffers, TileRows* to) {
  const bool has_part_groups = x.type == Element::kU4 && x.dim % kGroup != 0;
  if constexpr (kConvertsF8<V>) {
    if (is_8_bit_float(x.type) && x.scales.columns == 0) {
      if (has_row_scales(x)) read_row_scales(x, tile, pages, buffers.scales);
      set_one_run(convert_f8_tile<V>(x, tile, pages, buffers.rows), 0, to);
      if (kHasF16OfF8<V> && x.type == Element::kF8E4M3) to->factor = 256;
      return;
    }
  }
  if (!has_loop || has_part_groups || x.scales.columns != 0) {
    convert_tile<V>(x, tile, x.dim, buffers.rows);
    return set_one_run(copied_operand(buffers.rows, Element::kF32, x.dim, tile.size), 0, to);
  }
  if (has_row_scales(x)) read_row_scales(x, tile, pages, buffers.scales);
  if (pages.run_keys() == 0) {
    set_one_run(x, tile.begin, to);
    to->groups_ahead = tile.size * to->groups_stride;
    return;
  }
  if (pages.run_keys() == kRunKeys) return set_runs(x, tile, pages, to);
  set_one_run(copy_rows(x, tile, pages, buffers.rows), 0, to);
}

}  // namespace
}  // namespace regard::cpu
