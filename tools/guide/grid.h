#pragma once

#include <string>
#include <vector>

#include "regard/case.h"
#include "tools/guide/report.h"

// What is measured by default.

namespace regard::guide {

/// The sweeps with their points, without rows. `problems` are the cases that the user names.
std::vector<Sweep> make_grid(bool quick, const std::vector<Case>& problems,
                             const MachineRates& rates);

/// The formats of a cache: the name of each line, and the words that make a case of it.
struct CacheFormat {
  const char* name;
  const char* words;
};
const std::vector<CacheFormat>& cache_formats();

/// Numbers of threads to measure: powers of two up to `all`, and `all`.
std::vector<std::int32_t> thread_counts(std::int32_t all);

/// The problems whose errors are computed.
struct ErrorCase {
  const char* types;
  const char* words;
};
const std::vector<ErrorCase>& error_cases();

}  // namespace regard::guide
