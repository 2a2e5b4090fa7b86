#pragma once

#include <cstdint>

#include "cuda/rows.cuh"

// Rows of a cache that are codes: an element is its code times scales, of u4 also plus a minimum.

namespace regard::cuda {

/// The tile's rows of K or V in a cache, with scales or without.
struct ScaledRows {
  Element type;
  std::int64_t columns;
  std::int64_t count;
  CachedRows codes;
  CachedRows scales;  // f32, of a row; of u4 a scale and a minimum for each group
  bool has_scales;
  const char* channel_scales;  // f32, of column 0; null: none
  std::int64_t channel_bytes;  // from a column's to the next

  REGARD_KERNEL_FN char* row(const ScaledRows& rows, std::int64_t r) {
    return CachedRows::row(rows.codes, r);
  }
};

REGARD_KERNEL_FN ScaledRows scaled_rows(const CachedRows& codes, const CachedRows& scales,
                                        bool has_scales, const View& channel_scales,
                                        std::int64_t head_kv) {
  constexpr std::int64_t kBytes = sizeof(float);
  const char* const of_head =
      channel_scales.present ? channel_scales.data + head_kv * channel_scales.stride[0] * kBytes
                             : nullptr;
  return {codes.type, codes.columns, codes.count, codes,
          scales,     has_scales,    of_head,     channel_scales.stride[1] * kBytes};
}

/// K, or V, with the scales that it has in a cache.
struct CachedTensor {
  const View &view, &scales;
  View channel_scales;
  std::int64_t columns;
};

/// The tile's rows of it. `entries`: extent 0 of k and v.
REGARD_KERNEL_FN ScaledRows rows_in_cache(const Problem& p, const Sequence& s, std::int64_t entries,
                                          std::int64_t head_kv, semantics::Tile tile,
                                          const CachedTensor& of) {
  const KeyPlace place = place_of_keys(p, s, entries);
  const KeyPages pages = pages_of(p, place, entries);
  const auto rows_of = [&](const View& view) {
    char* const base = key_address(view, place, head_kv, 0);
    return cached_rows(view, place, base, pages, tile, of.columns);
  };
  return scaled_rows(rows_of(of.view), rows_of(of.scales), of.scales.present, of.channel_scales,
                     head_kv);
}

/// The tile's rows of K or V. kCached: of a call that is_cached().
template <bool kCached>
REGARD_KERNEL_FN auto rows_of_tile(const Problem& p, const Sequence& s, std::int64_t entries,
                                   std::int64_t head_kv, semantics::Tile tile,
                                   const CachedTensor& of) {
  if constexpr (kCached) {
    return rows_in_cache(p, s, entries, head_kv, tile, of);
  } else {
    return key_rows(of.view, s.b, head_kv, tile, of.columns);
  }
}

/// Whether a call's keys lie in pages, in an entry of a cache, or behind rows that are none, or
/// have scales.
inline bool is_cached(const Problem& p) {
  const bool has_scales = p.scales_k.present || p.scales_v.present || p.channel_scales_k.present;
  return p.pages.ids != nullptr || p.cache_entries.present || p.leftpads.present || has_scales;
}

/// What column `column` of K is multiplied by.
REGARD_DEVICE_FN float channel_scale_of(const ScaledRows& rows, std::int64_t column) {
  if (rows.channel_scales == nullptr) return 1.0f;
  return *reinterpret_cast<const float*>(rows.channel_scales + column * rows.channel_bytes);
}

/// The scales of a row that there is.
REGARD_DEVICE_FN const float* scales_of_row(const ScaledRows& rows, std::int64_t r) {
  return reinterpret_cast<const float*>(CachedRows::row(rows.scales, r));
}

/// with_reader() of element.cuh.
template <class T, class F>
REGARD_DEVICE_FN void with_reader(const ScaledRows& rows, F f) {
  if (rows.type == Element::kU4) {
    f([&](const char* from, std::int64_t r, std::int64_t column) {
      const float* const group = scales_of_row(rows, r) + column / problem::kGroup * 2;
      const float number = __builtin_fmaf(problem::from_u4(from, column), group[0], group[1]);
      return static_cast<T>(number * channel_scale_of(rows, column));
    });
    return;
  }
  const auto with_codes = [&](auto stored) {
    using Stored = decltype(stored);
    f([&](const char* from, std::int64_t r, std::int64_t column) {
      using Bits = typename Stored::Bits;
      const T code = Stored::template value<T>(reinterpret_cast<const Bits*>(from)[column]);
      const float scale = rows.has_scales ? *scales_of_row(rows, r) : 1.0f;
      return code * static_cast<T>(scale) * static_cast<T>(channel_scale_of(rows, column));
    });
  };
  rows.type == Element::kI8 ? with_codes(problem::StoredI8()) : with_stored(rows.type, with_codes);
}

}  // namespace regard::cuda
