#include "tools/llm/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tools/llm/clones.h"

namespace llm {
namespace {

using regard::Dtype;

// Below it, starting threads costs more than they save: 65,536 elements take some 10 us.
constexpr std::int64_t kParallelElements = 65536;

void store(const float* from, std::int64_t count, Dtype dtype, void* to, std::int64_t at) {
  if (dtype == Dtype::kF32) {
    std::copy_n(from, count, static_cast<float*>(to) + at);
  } else if (dtype == Dtype::kBf16) {
    auto* const out = static_cast<std::uint16_t*>(to) + at;
    for (std::int64_t i = 0; i < count; ++i) out[i] = regard::bf16_from_f32(from[i]);
  } else {
    auto* const out = static_cast<std::uint16_t*>(to) + at;
    for (std::int64_t i = 0; i < count; ++i) out[i] = regard::f16_from_f32(from[i]);
  }
}

void load_row(const void* from, std::int64_t at, std::int64_t count, Dtype dtype, float* to) {
  if (dtype == Dtype::kF32) {
    std::copy_n(static_cast<const float*>(from) + at, count, to);
    return;
  }
  const auto* const bits = static_cast<const std::uint16_t*>(from) + at;
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = dtype == Dtype::kBf16 ? regard::f32_from_bf16(bits[i]) : regard::f32_from_f16(bits[i]);
  }
}

/// exp(x) within 2e-7 for x in [-87, 88], limited to it: 2^n times a polynomial of the fraction, in
/// operations that a compiler makes vectors of.
inline float exp_limited(float x) {
  const float scaled = std::clamp(x, -87.0f, 88.0f) * 1.44269504088896341f;
  // Adding 1.5 * 2^23 rounds to an integer, which stands in the low bits of the sum.
  const float shifted = scaled + 12582912.0f;
  const float fraction = (scaled - (shifted - 12582912.0f)) * 0.693147180559945309f;
  float p = 1.0f / 5040.0f;
  p = p * fraction + 1.0f / 720.0f;
  p = p * fraction + 1.0f / 120.0f;
  p = p * fraction + 1.0f / 24.0f;
  p = p * fraction + 1.0f / 6.0f;
  p = p * fraction + 0.5f;
  p = p * fraction + 1.0f;
  p = p * fraction + 1.0f;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &shifted, sizeof(bits));
  const std::uint32_t exponent = (bits - 0x4b400000u + 127u) << 23;
  float power = 0.0f;
  std::memcpy(&power, &exponent, sizeof(power));
  return p * power;
}

LLM_CLONES void swiglu_row(const float* gate, const float* up, std::int64_t width, float* out) {
  for (std::int64_t i = 0; i < width; ++i) {
    out[i] = gate[i] / (1.0f + exp_limited(-gate[i])) * up[i];
  }
}

LLM_CLONES float sum_of_squares(const float* x, std::int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace

void rms_norm(const float* x, const float* weight, double epsilon, std::int64_t rows,
              std::int64_t width, Dtype dtype, void* out) {
#pragma omp parallel if (rows * width > kParallelElements)
  {
    std::vector<float> scaled(static_cast<std::size_t>(width));
#pragma omp for
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const row = x + r * width;
      const double mean = sum_of_squares(row, width) / static_cast<double>(width);
      const auto scale = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
      for (std::int64_t i = 0; i < width; ++i) scaled[i] = row[i] * scale * weight[i];
      store(scaled.data(), width, dtype, out, r * width);
    }
  }
}

void swiglu(const float* gate_up, std::int64_t rows, std::int64_t width, Dtype dtype, void* out) {
#pragma omp parallel if (rows * width > kParallelElements)
  {
    std::vector<float> made(static_cast<std::size_t>(width));
#pragma omp for
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const gate = gate_up + 2 * r * width;
      swiglu_row(gate, gate + width, width, made.data());
      store(made.data(), width, dtype, out, r * width);
    }
  }
}

void convert_rows(const RowsView& from, const RowsView& to, std::int64_t rows, std::int64_t width) {
#pragma omp parallel if (rows * width > kParallelElements)
  {
    std::vector<float> row(static_cast<std::size_t>(width));
#pragma omp for
    for (std::int64_t r = 0; r < rows; ++r) {
      load_row(from.data, r * from.stride, width, from.dtype, row.data());
      store(row.data(), width, to.dtype, to.data, r * to.stride);
    }
  }
}

void add(const float* x, std::int64_t count, float* to) {
#pragma omp parallel for simd if (count > kParallelElements)
  for (std::int64_t i = 0; i < count; ++i) to[i] += x[i];
}

}  // namespace llm
