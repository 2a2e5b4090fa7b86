#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/functions/function_kernel.h"
#include "function_programs.h"

// A tile that score and mask functions are tested on.

namespace regard::test {

using cpu::FunctionKernel;

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
}

/// A row block's tile: rows of many heads and queries, scores of many sizes, and memory of exactly
/// what the program takes.
template <class T>
class TestTile {
 public:
  static constexpr unsigned char kGuard = 0xa5;

  TestTile(const FunctionKernel& kernel, std::int64_t rows, std::int64_t size, unsigned seed = 1)
      : kernel_(kernel), width_(kernel.lanes * kernel.vectors), rng_(seed) {
    const std::int64_t lanes = kernel.lanes;
    tile.rows = rows;
    tile.vectors = static_cast<int>((rows + lanes - 1) / lanes);
    tile.key = 61;
    tile.size = size;
    tile.b = 3;
    tile.shift = -5;
    tile.len_q = 77;
    tile.len_kv = 300;
    for (std::int64_t w = 0; w < width_; ++w) {
      const std::int64_t row = w < rows ? w : rows - 1;
      query_.push_back(row / 3);
      head_.push_back(4 + row % 3);
    }
    tile.query = query_.data();
    tile.head = head_.data();
    for (std::int64_t x = 0; x < size * width_; ++x) scores.push_back(number());
  }

  /// Of every sign and size; few are 0.
  T number() {
    const int exponent = static_cast<int>(rng_() % 12) - 6;
    const double mantissa = static_cast<double>(rng_() % 8192) / 4096.0 - 1.0;
    return static_cast<T>(std::ldexp(mantissa, exponent));
  }
  TestPlace place(std::int64_t j, std::int64_t w) const {
    const auto at = static_cast<std::size_t>(w);
    return {tile.b,
            static_cast<std::int32_t>(head_[at]),
            static_cast<std::int32_t>(query_[at]),
            static_cast<std::int32_t>(tile.key + j),
            tile.shift,
            tile.len_q,
            tile.len_kv};
  }
  std::size_t at(std::int64_t j, std::int64_t w) const {
    return static_cast<std::size_t>(j * width_ + w);
  }

  /// Calls run(memory) and holds that it wrote within the memory.
  template <class Run>
  void with_memory(const FunctionProgram& program, Run run) const {
    const std::int64_t vector_bytes = kernel_.lanes * kernel_.scalar_bytes;
    const auto layout = cpu::function_layout(program, tile.vectors, vector_bytes);
    const auto bytes = static_cast<std::size_t>(layout.total * vector_bytes);
    std::vector<unsigned char> memory(bytes + 128, kGuard);
    run(reinterpret_cast<char*>(memory.data()) + 64);
    for (std::size_t x = 0; x < 64; ++x) {
      ASSERT_EQ(memory[x], kGuard);
      ASSERT_EQ(memory[64 + bytes + x], kGuard);
    }
  }
  /// Lanes of vectors that hold no rows keep what they held.
  void expect_other_lanes(const std::vector<T>& before, const std::vector<T>& after) const {
    ASSERT_EQ(before.size(), after.size());
    for (std::int64_t j = 0; j < tile.size; ++j) {
      for (std::int64_t w = tile.vectors * kernel_.lanes; w < width_; ++w) {
        ASSERT_TRUE(same_bits(before[at(j, w)], after[at(j, w)])) << j << " " << w;
      }
    }
  }

  cpu::FunctionTile tile;
  std::vector<T> scores;

 private:
  const FunctionKernel& kernel_;
  std::int64_t width_;
  std::mt19937 rng_;
  std::vector<std::int64_t> query_, head_;
};

}  // namespace regard::test
