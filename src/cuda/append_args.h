#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace regard::cuda {

/// What is written before a call's attention: new rows of k and v, and rotated queries.
struct AppendArgs {
  problem::Problem problem{};
  std::int64_t kv_entries = 0;  // extent 0 of k and v
  problem::View rotated{};      // where rotated queries go; present with rotary embedding
  std::int64_t angles = 0;      // positions of the tables
};

}  // namespace regard::cuda
