#pragma once

#include <cstdint>
#include <string>

#include "regard/env.h"

namespace regard {

/// What the CPU under this process is; cache sizes are per core (l3: per complex), in bytes.
struct CpuInfo {
  Isa isa = Isa::kScalar;
  Isa default_isa = Isa::kScalar;  // without what makes this CPU slower
  std::string model;
  std::int64_t l1d_bytes = 32768;
  std::int64_t l2_bytes = 1048576;
  std::int64_t l3_bytes = 33554432;
  std::int32_t num_cpus = 1;  // that the process may use: see cpu_count.h
};

CpuInfo read_cpu_info();

}  // namespace regard
