#pragma once

#include <cstdint>

#include "problem/problem.h"
#include "semantics/function_program.h"

// Score and mask functions over a tile of a row block's scores^T [keys][W]. They are compiled in
// units of their own, one for each instruction set and arithmetic, which the kernels of the forward
// and the backward call: interpreters inlined into those would cost the products registers.

namespace regard::cpu {

/// The places of a tile's scores. Numbers are modulo 2^32, as functions compute with them.
struct FunctionTile {
  const std::int64_t* query = nullptr;  // [W], of the row in each lane
  const std::int64_t* head = nullptr;   // [W]
  std::int32_t b = 0;
  std::int32_t shift = 0;  // of the diagonal
  std::int32_t len_q = 0;
  std::int32_t len_kv = 0;
  std::int64_t rows = 0;  // lanes in use
  int vectors = 0;        // that hold them
  std::int64_t key = 0;   // the first
  std::int64_t size = 0;  // keys
};

/// Where gradients of captured tensors are summed: a range of the elements of those wanted, dense,
/// one tensor behind the other.
struct CapturedSums {
  double* sums = nullptr;
  std::int64_t size = 0;
  bool is_wanted[problem::kMaxCapturedViews] = {};
  std::int64_t first[problem::kMaxCapturedViews] =
      {};  // a tensor's first element, from the range's
};

/// One instruction set's functions for one arithmetic T. scores and d_scores are T [keys][W];
/// `memory` is FunctionLayout::bytes of the program that runs.
struct FunctionKernel {
  /// scores = score_function(scores)
  void (*edit)(const problem::Functions& f, const FunctionTile& tile, void* scores, char* memory);
  /// Scores become -inf where mask_function is false.
  void (*mask)(const problem::Functions& f, const FunctionTile& tile, void* scores, char* memory);
  /// d_scores *= the derivative at `scores`; -0 in d_scores is hidden and stays.
  void (*differentiate)(const problem::Functions& f, const FunctionTile& tile, const void* scores,
                        void* d_scores, char* memory);
  /// Adds what the tile gives to gradients of captured tensors. d_scores: of the function's result.
  void (*scatter)(const problem::Functions& f, const FunctionTile& tile, const void* scores,
                  const void* d_scores, const CapturedSums& to, char* memory);
  int lanes;                  // of a vector
  int vectors;                // of W
  std::int64_t scalar_bytes;  // of T
};

/// Where the registers of a program lie in its memory. Keys are taken in chunks, whose registers
/// stay in the L1.
struct FunctionLayout {
  std::int64_t keys = 0;                                       // of a chunk
  std::int64_t at[semantics::kFunctionRanks] = {};             // vectors
  std::int64_t register_size[semantics::kFunctionRanks] = {};  // likewise
  std::int64_t total = 0;                                      // likewise
};

/// For row blocks of `vectors` vectors of `vector_bytes`.
REGARD_KERNEL_FN constexpr FunctionLayout function_layout(const semantics::FunctionProgram& program,
                                                          int vectors, std::int64_t vector_bytes) {
  constexpr std::int64_t kL1Bytes = 48 << 10, kMaxVectors = 384, kMinKeys = 8;
  // The tile's scores are one more.
  const std::int64_t full = program.registers[static_cast<int>(semantics::FunctionRank::kFull)] + 1;
  const std::int64_t fitting = kL1Bytes / vector_bytes / full;
  const std::int64_t keys = (fitting < kMaxVectors ? fitting : kMaxVectors) / vectors;
  FunctionLayout layout{};
  layout.keys = keys < kMinKeys ? kMinKeys : keys;
  const std::int64_t sizes[] = {1, vectors, layout.keys, layout.keys * vectors};
  for (int rank = 0; rank < semantics::kFunctionRanks; ++rank) {
    layout.register_size[rank] = sizes[rank];
    layout.at[rank] = layout.total;
    layout.total += program.registers[rank] * sizes[rank];
  }
  return layout;
}

// f32 and f64 of each instruction set.
extern const FunctionKernel kScalarFunctionsF32;
extern const FunctionKernel kScalarFunctionsF64;
// x86-64:
extern const FunctionKernel kAvx2FunctionsF32;
extern const FunctionKernel kAvx2FunctionsF64;
extern const FunctionKernel kAvx512FunctionsF32;
extern const FunctionKernel kAvx512FunctionsF64;
// AArch64:
extern const FunctionKernel kNeonFunctionsF32;
extern const FunctionKernel kNeonFunctionsF64;

}  // namespace regard::cpu
