#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/kv_tiles.h"
#include "cpu/prefetch.h"

// A tile of K or V as decode rows read it: where it lies, or a copy.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// One number for each row, not those of the groups of u4, which loops read beside the codes.
REGARD_KERNEL_FN bool has_row_scales(const KvOperand& x) {
  return x.scales.first != nullptr && x.type != Element::kU4;
}

/// By runs of rows: finding each in its page takes a division a key.
template <class T>
static void read_row_scales(const KvOperand& x, Tile tile, T* scales) {
  const std::int64_t end = tile.begin + tile.size;
  for (std::int64_t j = tile.begin; j < end;) {
    const std::int64_t run_end = j + run_of(x, j, end);
    const char* from = reinterpret_cast<const char*>(scale_at(x, j));
    for (; j < run_end; ++j, from += x.scales.stride) {
      scales[j - tile.begin] = static_cast<T>(*reinterpret_cast<const float*>(from));
    }
  }
}

/// Scales and minima of a tile's rows, behind their codes in the buffer.
[[maybe_unused]] static KvScales copy_groups(const KvOperand& x, Tile tile, void* buffer) {
  const std::int64_t bytes = x.dim / kGroup * 2 * std::int64_t{sizeof(float)};
  char* const first = static_cast<char*>(buffer) + bytes_of(x.type, x.dim) * tile.size;
  for (std::int64_t j = 0; j < tile.size; ++j) {
    __builtin_memcpy(first + j * bytes, scale_at(x, tile.begin + j),
                     static_cast<std::size_t>(bytes));
  }
  return {first, bytes, 0};
}

/// Where a tile's rows begin in pages of whole runs.
REGARD_KERNEL_FN bool has_whole_runs(const KvOperand& x, Tile tile) {
  return x.pages.ids != nullptr && x.pages.size % kRunKeys == 0 &&
         (x.pages.skipped + tile.begin) % kRunKeys == 0;
}

/// Calls f(row) with the keys of pages smaller than a tile. Those of a later tile are prefetched
/// beside them: no cursor goes from page to page.
template <class F>
static void for_keys_in_pages(const KvOperand& x, Tile tile, F f) {
  const semantics::KeyRange ahead = keys_ahead_in_pages(x, tile);
  for (std::int64_t j = 0; j < tile.size; ++j) {
    if (ahead.lo + j < ahead.hi) prefetch_key(x, ahead.lo + j);
    f(row_of(x, tile.begin + j));
  }
}

[[maybe_unused]] static void copy_keys(const KvOperand& x, Tile tile, void* buffer) {
  const std::int64_t row_bytes = bytes_of(x.type, x.dim);
  char* to = static_cast<char*>(buffer);
  for_keys_in_pages(
      x, tile, [&](const char* row) __attribute__((always_inline)) {
        __builtin_memcpy(to, row, static_cast<std::size_t>(row_bytes));
        to += row_bytes;
      });
}

/// Whether tiles of 8-bit floats become bf16, which is exact, to be multiplied as pairs are or with
/// one instruction a vector where f32 would take eight.
template <class V>
inline constexpr bool kHasBf16OfF8 = requires(typename V::Vec x) {
  V::f8_table(false);
};

/// One row of 8-bit floats as bf16.
template <class V, class Table>
REGARD_KERNEL_FN void convert_f8_row(const Table& table, const char* row, std::int64_t dim,
                                     std::uint16_t* to) {
  constexpr std::int64_t kCodes = V::kF8Codes;
  std::int64_t d = 0;
  for (; d + kCodes <= dim; d += kCodes) V::bf16_of_f8(table, row + d, to + d);
  if (d == dim) return;
  char codes[kCodes] = {};
  std::uint16_t words[kCodes];
  __builtin_memcpy(codes, row + d, static_cast<std::size_t>(dim - d));
  V::bf16_of_f8(table, codes, words);
  __builtin_memcpy(to + d, words, static_cast<std::size_t>(2 * (dim - d)));
}

/// A tile of 8-bit floats as bf16 [size][dim].
template <class V>
static KvOperand convert_f8_tile(const KvOperand& x, Tile tile, void* buffer) {
  const auto table = V::f8_table(x.type == Element::kF8E5M2);
  auto* to = static_cast<std::uint16_t*>(buffer);
  const auto convert = [&](const char* row) __attribute__((always_inline)) {
    convert_f8_row<V>(table, row, x.dim, to);
    to += x.dim;
  };
  if (is_one_run(x, tile)) {
    const char* row = row_of(x, tile.begin);
    for (std::int64_t j = 0; j < tile.size; ++j, row += x.stride) convert(row);
  } else if (has_whole_runs(x, tile)) {  // prefetched from run to run
    for (std::int64_t j = 0; j < tile.size; ++j) convert(row_of(x, tile.begin + j));
  } else {
    for_keys_in_pages(x, tile, convert);
  }
  KvOperand copy = copied_operand(buffer, Element::kBf16, x.dim, tile.size);
  copy.scales = x.scales;
  return copy;
}

inline constexpr int kRunLog2 = 4, kTileLog2 = 6;
static_assert(kRunKeys == 1 << kRunLog2 && kMaxDecodeTileKv == 1 << kTileLog2);

/// The rows of a tile: one behind the other, or kRunKeys at a time.
struct TileRows {
  KvOperand x{};     // of the first ones
  int run_log2 = 0;  // of the keys of a run: a division would take as long as 20 products
  const char* first[kMaxRuns] = {};
  const char* groups[kMaxRuns] = {};  // scales and minima of u4, else null
  std::int64_t groups_stride = 0;     // from one key's to the next
};

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
  return {rows.first[run] + at * rows.x.stride, rows.groups[run] + at * rows.groups_stride};
}
REGARD_KERNEL_FN KeyRows behind(const TileRows& rows, const KeyRows& from, std::int64_t j) {
  return {from.first + j * rows.x.stride, from.groups + j * rows.groups_stride};
}

/// `x` from its row 0 on.
REGARD_KERNEL_FN TileRows one_run(const KvOperand& x) {
  TileRows rows;
  rows.x = x;
  rows.run_log2 = kTileLog2;
  rows.first[0] = row_of(x, 0);
  if (x.type != Element::kU4) return rows;
  rows.groups[0] = x.scales.first;
  rows.groups_stride = x.scales.stride;
  return rows;
}

[[maybe_unused]] static TileRows runs_of(const KvOperand& x, Tile tile) {
  TileRows rows = one_run(from_key(x, tile.begin));
  rows.run_log2 = kRunLog2;
  for (std::int64_t j = kRunKeys; j < tile.size; j += kRunKeys) {
    rows.first[j / kRunKeys] = row_of(x, tile.begin + j);
    if (x.type != Element::kU4 || x.scales.first == nullptr) continue;
    rows.groups[j / kRunKeys] = reinterpret_cast<const char*>(scale_at(x, tile.begin + j));
  }
  return rows;
}

/// A tile's rows where they are if they follow one another, or do so within runs, and their type
/// has a loop of its own; else in `buffer`: as they are, or converted to f32 or bf16.
template <class V>
static TileRows rows_of_tile(const KvOperand& x, Tile tile, bool has_loop,
                             typename V::Scalar* buffer, typename V::Scalar* scales) {
  const bool has_part_groups = x.type == Element::kU4 && x.dim % kGroup != 0;
  if constexpr (kHasBf16OfF8<V>) {
    if (is_8_bit_float(x.type) && x.scales.columns == 0) {
      if (has_row_scales(x)) read_row_scales(x, tile, scales);
      return one_run(convert_f8_tile<V>(x, tile, buffer));
    }
  }
  if (!has_loop || has_part_groups || x.scales.columns != 0) {
    convert_tile<V>(x, tile, x.dim, buffer);
    return one_run(copied_operand(buffer, Element::kF32, x.dim, tile.size));
  }
  if (has_row_scales(x)) read_row_scales(x, tile, scales);
  if (is_one_run(x, tile)) return one_run(from_key(x, tile.begin));
  if (has_whole_runs(x, tile)) return runs_of(x, tile);
  copy_keys(x, tile, buffer);
  KvOperand copy = copied_operand(buffer, x.type, x.dim, tile.size);
  copy.scales = x.scales;
  if (x.type == Element::kU4) copy.scales = copy_groups(x, tile, buffer);
  return one_run(copy);
}

}  // namespace
}  // namespace regard::cpu
