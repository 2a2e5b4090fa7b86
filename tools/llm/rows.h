#pragma once

#include <cstdint>

#include "regard/dtype.h"

// The arithmetic between matrix products, on rows of f32. Long inputs are divided among OpenMP's
// threads by rows.

namespace llm {

/// out [rows, width] of `dtype` (f32, bf16 or f16) = x / sqrt(mean(x^2) + epsilon) * weight.
void rms_norm(const float* x, const float* weight, double epsilon, std::int64_t rows,
              std::int64_t width, regard::Dtype dtype, void* out);

/// out [rows, width] = silu(gate) * up, of gate_up [rows, 2 * width]: gate, then up.
void swiglu(const float* gate_up, std::int64_t rows, std::int64_t width, regard::Dtype dtype,
            void* out);

/// Rows of `from`, of `from_dtype` and `from_stride` elements, as rows of `to`.
struct RowsView {
  void* data;
  regard::Dtype dtype;
  std::int64_t stride;  // elements between rows
};
void convert_rows(const RowsView& from, const RowsView& to, std::int64_t rows, std::int64_t width);

void add(const float* x, std::int64_t count, float* to);  // to += x

}  // namespace llm
