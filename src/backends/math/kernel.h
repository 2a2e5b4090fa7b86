#pragma once

#include <cstdint>

#include "cpu/functions/function_kernel.h"
#include "cpu/problem.h"

namespace regard::math {

/// Offsets into a worker's scratch, and the tiles.
struct ForwardArgs {
  cpu::Problem problem{};
  cpu::TaskGrid grid{};
  std::int64_t row_blocks = 1;  // per task
  std::int64_t tile_kv = 64;    // a multiple of 8
  std::int64_t at_row_blocks = 0;
  std::int64_t at_q = 0;          // [head_dim_qk][W]
  std::int64_t at_out = 0;        // [row blocks][head_dim_v][W]
  std::int64_t at_block = 0;      // [row blocks][head_dim_v][W], of a block of keys
  std::int64_t at_scores = 0;     // [row blocks][seqlen_kv][W]: complete rows
  std::int64_t at_tile = 0;       // [tile_kv][max(head_dim_qk, head_dim_v)], where keys are copied
  std::int64_t at_row = 0;        // [tile_kv]
  std::int64_t at_registers = 0;  // of functions
  const cpu::FunctionKernel* functions = nullptr;  // set where the problem has any
};

struct Kernel {
  void (*forward)(const void* args, std::int64_t task, char* scratch);
  std::int64_t width;            // rows of a row block
  std::int64_t lanes;            // of a vector
  std::int64_t row_block_bytes;  // of a row block's state
  std::int64_t scalar_bytes;     // of the arithmetic
};

extern const Kernel kScalarF32;  // f32, bf16, f16 inputs
extern const Kernel kScalarF64;
// x86-64:
extern const Kernel kAvx2F32;
extern const Kernel kAvx2F64;
extern const Kernel kAvx512F32;
extern const Kernel kAvx512F64;
// AArch64:
extern const Kernel kNeonF32;
extern const Kernel kNeonF64;

}  // namespace regard::math
