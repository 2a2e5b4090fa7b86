#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// A score or mask function as kernels evaluate it: steps over registers, plain data.

namespace regard::semantics {

enum class FunctionOp : std::uint8_t {
  // leaves
  kConstant = 0,
  kScore,
  kBatch,
  kHead,
  kQuery,     // q_idx
  kKey,       // kv_idx
  kPosition,  // q_pos
  kLenQ,
  kLenKv,
  // numbers, int or real as the step's `on` says
  kAdd,
  kSubtract,
  kMultiply,
  kMin,
  kMax,
  kNegate,
  kAbs,
  // int
  kFloorDiv,
  kRemainder,
  // real
  kDivide,
  kExp,
  kLog,
  kSqrt,
  kTanh,
  kSigmoid,
  kToReal,  // of an int
  kToInt,   // of a real
  // bools of numbers
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  // bools
  kAnd,
  kOr,
  kNot,
  kWhere,   // args: condition, value where true, value where false
  kGather,  // args: 1 to 4 indices
};

enum class FunctionType : std::uint8_t { kBool = 0, kInt, kReal };

/// What a value depends on: nothing of a place, its query (and head and sequence), its key, both.
enum class FunctionRank : std::uint8_t { kConstant = 0, kRow, kKey, kFull };
inline constexpr int kFunctionRanks = 4;

struct FunctionStep {
  FunctionOp op = FunctionOp::kConstant;
  FunctionType type = FunctionType::kReal;  // of the result
  FunctionType on = FunctionType::kReal;    // of the operands that op computes on
  FunctionRank rank = FunctionRank::kConstant;
  std::int8_t count = 0;      // of args
  std::int8_t slot = 0;       // of a gather: which captured tensor
  std::int16_t to = 0;        // the register of its rank, those of kFull used again; -1: the
                              // tile's score
  std::int16_t args[4] = {};  // steps
  double value = 0.0;         // of a constant; bools are 0 or 1
};

/// The derivative of the score by one gathered element: what a captured tensor's gradient adds up.
struct FunctionScatter {
  std::int16_t gather = 0;      // the step; its args are the indices
  std::int16_t derivative = 0;  // the step
};

inline constexpr int kMaxFunctionSteps = 512;

/// Steps stand after their args, in the order of ranks.
struct FunctionProgram {
  const FunctionStep* steps = nullptr;  // null: no function
  std::int32_t count = 0;
  std::int32_t rank_begin[kFunctionRanks + 1] = {};  // steps of rank r: [rank_begin[r], [r + 1])
  std::int32_t registers[kFunctionRanks] = {};       // that ranks need
  std::int32_t result = 0;                           // the step of the value
  bool uses_score = false;
  // Of a derivative alone: `result` is that by the score.
  const FunctionScatter* scatters = nullptr;
  std::int32_t scatter_count = 0;
};

}  // namespace regard::semantics
