#pragma once

#include <cstddef>

#include "regard/env.h"

// The machine's own limits, which every rate is held against.

namespace regard::peak {

/// GFLOP/s of multiply-adds in f32 (`isa` kAvx512Bf16 is kAvx512 here), or 0 where the build or
/// `available` lacks it: the best of three rounds of `seconds` each, all threads from a common
/// start to the last one's end, as a kernel's time is taken.
double f32_gflops(Isa isa, Isa available, int threads, double seconds);
/// The same for bf16 dot products; 0 below kAvx512Bf16.
double bf16_gflops(Isa isa, Isa available, int threads, double seconds);

/// GB/s of reading `bytes` of memory once, split over the threads: the best of `rounds`.
double read_gbps(int threads, std::size_t bytes, int rounds);

}  // namespace regard::peak
