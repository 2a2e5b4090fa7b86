#include "tools/llm/few_rows.h"

#include <omp.h>

#include <cstring>

#include "tools/llm/clones.h"

#define LLM_INLINE inline __attribute__((always_inline))

namespace llm {
namespace {

constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(64)));
using Bits = std::uint32_t __attribute__((vector_size(64)));
using HalfBits = std::uint16_t __attribute__((vector_size(32)));

LLM_INLINE void load(const float* from, Lanes* to) { std::memcpy(to, from, sizeof(*to)); }
LLM_INLINE void load(const std::uint16_t* from, Lanes* to) {
  HalfBits half;
  std::memcpy(&half, from, sizeof(half));
  const Bits bits = __builtin_convertvector(half, Bits) << 16;
  std::memcpy(to, &bits, sizeof(*to));
}
LLM_INLINE float value_of(float weight) { return weight; }
LLM_INLINE float value_of(std::uint16_t weight) { return regard::f32_from_bf16(weight); }

LLM_INLINE float sum_of(const Lanes& lanes) {
  float sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

struct Product {
  std::int64_t outputs, inputs;
  const float* x;
  float* y;
};

/// Outputs [begin, end). Two sums for each row: one would wait for its own last step.
template <int kRows, class Weight>
LLM_INLINE void multiply(const Weight* weights, const Product& p, std::int64_t begin,
                         std::int64_t end) {
  const std::int64_t whole = p.inputs / (2 * kLanes) * (2 * kLanes);
  for (std::int64_t n = begin; n < end; ++n) {
    const Weight* const row = weights + n * p.inputs;
    Lanes even[kRows] = {}, odd[kRows] = {};
    for (std::int64_t i = 0; i < whole; i += 2 * kLanes) {
      Lanes w0, w1;
      load(row + i, &w0);
      load(row + i + kLanes, &w1);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        Lanes x0, x1;
        load(p.x + m * p.inputs + i, &x0);
        load(p.x + m * p.inputs + i + kLanes, &x1);
        even[m] += w0 * x0;
        odd[m] += w1 * x1;
      }
    }
    for (int m = 0; m < kRows; ++m) {
      float sum = sum_of(even[m] + odd[m]);
      for (std::int64_t i = whole; i < p.inputs; ++i) {
        sum += value_of(row[i]) * p.x[m * p.inputs + i];
      }
      p.y[m * p.outputs + n] = sum;
    }
  }
}

/// All numbers of rows; a row has the same bits in each.
template <class Weight>
LLM_INLINE void multiply_rows(const Weight* weights, const Product& p, std::int64_t rows,
                              std::int64_t begin, std::int64_t end) {
  switch (rows) {
    case 1: return multiply<1>(weights, p, begin, end);
    case 2: return multiply<2>(weights, p, begin, end);
    case 3: return multiply<3>(weights, p, begin, end);
    case 4: return multiply<4>(weights, p, begin, end);
    case 5: return multiply<5>(weights, p, begin, end);
    case 6: return multiply<6>(weights, p, begin, end);
    case 7: return multiply<7>(weights, p, begin, end);
    default: return multiply<8>(weights, p, begin, end);
  }
}

LLM_CLONES void multiply_f32(const float* weights, const Product& p, std::int64_t rows,
                             std::int64_t begin, std::int64_t end) {
  multiply_rows(weights, p, rows, begin, end);
}
LLM_CLONES void multiply_bf16(const std::uint16_t* weights, const Product& p, std::int64_t rows,
                              std::int64_t begin, std::int64_t end) {
  multiply_rows(weights, p, rows, begin, end);
}

}  // namespace

void multiply_few_rows(const void* weights, regard::Dtype dtype, std::int64_t outputs,
                       std::int64_t inputs, const float* x, std::int64_t rows, float* y) {
  const Product product{outputs, inputs, x, y};
#pragma omp parallel
  {
    const std::int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const std::int64_t begin = outputs * thread / threads, end = outputs * (thread + 1) / threads;
    if (dtype == regard::Dtype::kBf16) {
      multiply_bf16(static_cast<const std::uint16_t*>(weights), product, rows, begin, end);
    } else {
      multiply_f32(static_cast<const float*>(weights), product, rows, begin, end);
    }
  }
}

}  // namespace llm
