#pragma once

#include <cstdint>

#include "cpu/problem.h"

// Tiled forward with online softmax, shared by EFFICIENT and FLASH: what a task needs, and where in
// a slot's scratch. tiled_forward.inl is the algorithm.

namespace regard::cpu {

struct TiledArgs {
  Problem problem{};
  TaskGrid grid{};
  std::int64_t tile_kv = 0;  // a multiple of 8: dropout draws by 8 keys
  // Offsets into the scratch; nothing in it grows with a length.
  std::int64_t at_strips = 0;
  std::int64_t at_q = 0;       // [strips][head_dim_qk][W]
  std::int64_t at_out = 0;     // [strips][padded head_dim_v][W]
  std::int64_t at_scores = 0;  // [tile_kv][W]
  std::int64_t at_keys = 0;    // [tile_kv][padded head_dim_qk], where tiles are copied
  std::int64_t at_values = 0;  // [tile_kv][padded head_dim_v], where tiles are copied
  std::int64_t at_row = 0;     // [tile_kv]
};

/// One instruction set's kernel for f32 arithmetic (f32, bf16, f16 inputs).
struct TiledKernel {
  void (*forward)(const void* args, std::int64_t task, char* scratch);
  std::int64_t width;        // rows of a strip
  std::int64_t strip_bytes;  // of a strip's state
};

/// Tiles of K and V are padded to a multiple of this in head_dim.
inline constexpr std::int64_t kHeadDimUnit = 8;

}  // namespace regard::cpu
