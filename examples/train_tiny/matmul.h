#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "regard/attention.h"

// Products of dense row-major matrices on the threads of an executor. Every element is one thread's
// sum in one order, so no bit depends on how many threads there are.

namespace train {

/// Calls f(begin, end) over [0, count) in as many ranges as there are threads.
template <class F>
void for_ranges(regard::Executor& executor, int threads, std::int64_t count, const F& f) {
  struct State {
    const F& f;
    std::int64_t count;
    int threads;
  } state{f, count, threads};
  const auto task = [](void* opaque, int worker) {
    const State& s = *static_cast<const State*>(opaque);
    s.f(s.count * worker / s.threads, s.count * (worker + 1) / s.threads);
  };
  if (threads == 1) return f(std::int64_t{0}, count);
  executor.run(threads, task, &state);
}

/// Threads to compute with.
struct Threads {
  regard::Executor& executor;
  int count;
  template <class F>
  void over(std::int64_t n, const F& f) const {
    for_ranges(executor, count, n, f);
  }
};

using Lanes =
    float __attribute__((vector_size(16)));  // 4 floats on any CPU that has such registers
inline constexpr std::int64_t kColumns = 8;  // of a panel: two vectors
inline constexpr std::int64_t kRows = 4;     // 8 sums and 3 operands fit into 16 registers

inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
inline void store(Lanes lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

/// a [m][k], b [k][n], c [m][n].
struct Product {
  const float* a;
  const float* b;
  float* c;
  std::int64_t m, k, n;
  bool add = false;  // to c, not in place of it
};

/// kCount rows of c from `row` on, in the columns of a packed panel [k][kColumns] of b.
template <int kCount>
void multiply_panel(const Product& p, const float* panel, std::int64_t row, std::int64_t column) {
  Lanes sums[kCount][2] = {};
  const float* const a = p.a + row * p.k;
  for (std::int64_t x = 0; x < p.k; ++x) {
    const Lanes b0 = load(panel + x * kColumns), b1 = load(panel + x * kColumns + 4);
    for (int r = 0; r < kCount; ++r) {
      const float factor = a[r * p.k + x];
      sums[r][0] += b0 * factor;
      sums[r][1] += b1 * factor;
    }
  }
  const std::int64_t columns = std::min(kColumns, p.n - column);
  for (int r = 0; r < kCount; ++r) {
    float row_sums[kColumns];
    store(sums[r][0], row_sums);
    store(sums[r][1], row_sums + 4);
    float* const c = p.c + (row + r) * p.n + column;
    for (std::int64_t x = 0; x < columns; ++x) c[x] = p.add ? c[x] + row_sums[x] : row_sums[x];
  }
}

inline void multiply_rows(const Product& p, std::int64_t begin, std::int64_t end) {
  std::vector<float> panel(static_cast<std::size_t>(p.k * kColumns));
  for (std::int64_t column = 0; column < p.n; column += kColumns) {
    const std::int64_t columns = std::min(kColumns, p.n - column);
    for (std::int64_t x = 0; x < p.k; ++x) {  // past the last column the panel keeps its zeros
      std::copy_n(p.b + x * p.n + column, columns, panel.data() + x * kColumns);
      std::fill_n(panel.data() + x * kColumns + columns, kColumns - columns, 0.0f);
    }
    std::int64_t row = begin;
    for (; row + kRows <= end; row += kRows) {
      multiply_panel<kRows>(p, panel.data(), row, column);
    }
    for (; row < end; ++row) multiply_panel<1>(p, panel.data(), row, column);
  }
}

inline void multiply(const Threads& threads, const Product& p) {
  threads.over(p.m, [&](std::int64_t begin, std::int64_t end) { multiply_rows(p, begin, end); });
}

/// The transpose [columns][rows] of a matrix [rows][columns].
inline std::vector<float> transposed(const float* from, std::int64_t rows, std::int64_t columns) {
  std::vector<float> to(static_cast<std::size_t>(rows * columns));
  constexpr std::int64_t kBlock = 16;  // a line of the cache
  for (std::int64_t begin = 0; begin < columns; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, columns);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = begin; c < end; ++c)
        to[static_cast<std::size_t>(c * rows + r)] = from[r * columns + c];
    }
  }
  return to;
}

/// y = x w of a linear layer: x [rows][inputs], w [inputs][outputs].
struct Linear {
  const float* weight;
  std::int64_t inputs, outputs;
};

/// y = x w, or y += x w.
inline void forward(const Threads& threads, const Linear& layer, const float* x, std::int64_t rows,
                    float* y, bool add = false) {
  multiply(threads, {x, layer.weight, y, rows, layer.inputs, layer.outputs, add});
}

/// What the backward of a linear layer reads and writes.
struct LinearBackward {
  const float* x;
  const float* d_y;
  std::int64_t rows;
  float* d_x;       // = d_y w^T
  float* d_weight;  // = x^T d_y
};

inline void backward(const Threads& threads, const Linear& layer, const LinearBackward& b) {
  const std::vector<float> x = transposed(b.x, b.rows, layer.inputs);
  multiply(threads, {x.data(), b.d_y, b.d_weight, layer.inputs, b.rows, layer.outputs});
  const std::vector<float> weight = transposed(layer.weight, layer.inputs, layer.outputs);
  multiply(threads, {b.d_y, weight.data(), b.d_x, b.rows, layer.outputs, layer.inputs});
}

}  // namespace train
