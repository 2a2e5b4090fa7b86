#pragma once

#include <cstdint>

#include "cpu/problem.h"

namespace regard::efficient {

/// Offsets into a slot's scratch, and the tiles. Nothing in it grows with a length.
struct ForwardArgs {
  cpu::Problem problem{};
  cpu::TaskGrid grid{};
  std::int64_t strips = 1;   // per task
  std::int64_t tile_kv = 0;  // a multiple of 8
  std::int64_t at_strips = 0;
  std::int64_t at_q = 0;       // [strips][head_dim_qk][W]
  std::int64_t at_out = 0;     // [strips][head_dim_v][W]
  std::int64_t at_scores = 0;  // [tile_kv][W]
  std::int64_t at_keys = 0;    // [tile_kv][head_dim_qk], 16-bit inputs
  std::int64_t at_values = 0;  // [tile_kv][head_dim_v], 16-bit inputs
  std::int64_t at_row = 0;     // max(head_dim_qk, tile_kv)
};

/// One instruction set's kernel for f32 arithmetic (f32, bf16, f16 inputs).
struct Kernel {
  void (*forward)(const void* args, std::int64_t task, char* scratch);
  std::int64_t width;        // rows of a strip
  std::int64_t strip_bytes;  // of a strip's state
};

extern const Kernel kScalarKernel;
extern const Kernel kAvx2Kernel;  // x86-64 builds only

}  // namespace regard::efficient
