#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace regard::cuda {

/// Columns of a row that the Hadamard matrix multiplies: a row lies in shared memory.
inline constexpr std::int64_t kMaxHadamardColumns = 2048;

/// What is written before a call's attention: new rows of k and v, and queries that are rotated or
/// mixed.
struct AppendArgs {
  problem::Problem problem{};
  std::int64_t kv_entries = 0;  // extent 0 of k and v
  problem::View rotated{};      // where such queries go; present where there are some
  std::int64_t angles = 0;      // positions of the tables
  float mix_unit = 1.0f;        // factor of the Hadamard matrix
};

}  // namespace regard::cuda
