#pragma once

#include <cstdint>

namespace regard::cpu {

/// Rounds of multiply-adds on registers, in as many independent chains as hide their latency.
/// Returns a value that depends on all of them.
struct ArithmeticLoop {
  double (*run)(std::int64_t rounds) = nullptr;
  std::int64_t operations = 0;  // of a round; a multiply-add counts as two
};

/// One thread's loops of one instruction set, whose rates are the machine's limits.
struct RateLoops {
  ArithmeticLoop f32, f64;
  /// Reads kReadFloats * `turns` floats; returns a value that depends on them.
  double (*read)(const float* data, std::int64_t turns) = nullptr;
};

/// A multiple of what a loop reads in one turn with any instruction set.
constexpr std::int64_t kReadFloats = 24 * 16;

extern const RateLoops kScalarRates;
// x86-64:
extern const RateLoops kAvx2Rates;
extern const RateLoops kAvx512Rates;
extern const ArithmeticLoop kAvx512Bf16Pairs;  // dot products of bf16 pairs
extern const ArithmeticLoop kAmxBf16Products;  // products of matrices
// AArch64:
extern const RateLoops kNeonRates;
extern const ArithmeticLoop kNeonBf16Pairs;

}  // namespace regard::cpu
