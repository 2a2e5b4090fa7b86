#pragma once

#include <cstdint>

#include "cpu/forward/tiled.h"
#include "regard/params.h"

// Sizes of the tasks that a tiled forward is cut into: heads, rows, and the keys that rows see.

namespace regard::cpu {

/// Heads of K and V that one task of decode rows reads together: those that are neighbours in
/// memory, as far as tasks and splits still balance; a smaller call takes no more. Changes no bits.
/// A key at a time (8 heads, d 128, 4096 keys) is 1.3 times as fast in f32 as a head at a time.
std::int64_t choose_heads(const AttentionParams& params, std::int64_t splits,
                          std::int32_t workers) noexcept;

/// Rows of blocks whose splits are shared: even ones of as many row blocks, up to `max_row_blocks`,
/// as leave each worker three tasks.
std::int64_t even_block_rows(const AttentionParams& params, const TiledKernel& kernel,
                             std::int64_t max_row_blocks, std::int64_t splits,
                             std::int32_t workers) noexcept;

/// Keys of a narrow window that `rows` rows of a sequence see together, at most, from a multiple of
/// 8 on; `in_blocks`: up to one, too.
std::int64_t window_keys(const AttentionParams& params, std::int64_t rows, bool in_blocks) noexcept;

/// Whether rows see so few keys that those of a block of them are one tile: so few that a sum of
/// that many terms is as exact as those of tiles.
bool has_narrow_window(const AttentionParams& params, const TiledKernel& kernel) noexcept;

/// Keys of a tile of decode rows; `tile_kv` is that of other rows.
std::int64_t decode_tile_kv(const AttentionParams& params, const TiledKernel& kernel,
                            std::int64_t tile_kv) noexcept;

/// Whether rows of out go past the caches, of few keys, so that memory bounds the call, and where
/// q, k, v and out together are larger than the last cache of `l3_bytes` (0: not known): lines of
/// out would be read only to be overwritten. Changes no bits.
bool streams_out(const AttentionParams& params, std::int64_t l3_bytes) noexcept;

/// Whether pages of memory are touched before rows in them are prefetched, by the size of the L1
/// cache. Changes no bits.
bool touches_pages(std::int64_t l1d_bytes) noexcept;

}  // namespace regard::cpu
