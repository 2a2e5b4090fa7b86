#pragma once

#include <cstdint>

namespace regard {

/// c [16][16] = a [16][32] bf16 * b [16 pairs][16] of bf16, the first of a pair in the low half.
struct AmxProduct {
  const std::uint16_t* a;
  const std::uint32_t* b;
  float* c;
};

void multiply_by_amx(const AmxProduct& product);
/// `inner`, as a library of AMX would, within what computes `outer`.
void multiply_by_amx_around(const AmxProduct& outer, const AmxProduct& inner);

}  // namespace regard
