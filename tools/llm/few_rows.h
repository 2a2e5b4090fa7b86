#pragma once

#include <cstdint>

#include "regard/dtype.h"

namespace llm {

/// Up to so many rows, reading the weights takes longer than the arithmetic.
inline constexpr std::int64_t kFewRows = 8;

/// y [rows, outputs] = x [rows, inputs] times the transposed weights [outputs, inputs], f32 or
/// bf16; x and y are f32, rows at most kFewRows. Each weight is read once, at the rate of memory:
/// on a Zen 4 with two threads 35 to 46 GB/s, where oneDNN 2.6 reads 20 to 28.
void multiply_few_rows(const void* weights, regard::Dtype dtype, std::int64_t outputs,
                       std::int64_t inputs, const float* x, std::int64_t rows, float* y);

}  // namespace llm
