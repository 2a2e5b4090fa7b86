#pragma once

#include <cstdint>

// Nothing but <cstdint> here: a unit compiled for one instruction set must not instantiate what the
// rest of the program shares with it.

namespace regard::peak {

/// One thread's share of a measurement: `rounds` of multiply-adds on registers alone, in as many
/// independent chains as hide their latency. Returns a value that depends on all of them.
struct Loop {
  float (*run)(std::int64_t rounds);  // null where this build has none
  std::int64_t flops_per_round;       // a multiply-add counts as two
};

// kScalar is what a compiler may make of portable code: vectors of four floats, multiply and add
// apart.
Loop scalar_loop();
Loop avx2_loop();
Loop avx512_loop();
Loop avx512_bf16_loop();  // dot products of bf16 pairs into f32

}  // namespace regard::peak
