#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

// How tensor cores sum, as published for older devices.

namespace regard::cuda_test {

/// What two of a lane's sums take side by side: one after the other they are chains of additions.
using Two = double __attribute__((vector_size(16)));
using TwoBits = std::int64_t __attribute__((vector_size(16)));

/// c + left * right for two columns of `right`, eight products each. Terms are aligned with the
/// largest and cut off a bit behind f32's last, their sum towards 0 ("Numerical behavior of NVIDIA
/// tensor cores", Fasi, Higham, Mikaitis, Pranesh 2021, found that or better in three devices).
inline void add_as_tensor_cores(const double (&left)[8], const Two (&right)[8], float* c) {
  constexpr int kTerms = 9;
  constexpr std::int64_t kSign = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kExponent = 0x7ff0'0000'0000'0000;
  Two terms[kTerms], largest{}, untruncated{};
  for (int k = 0; k < 8; ++k) terms[k] = left[k] * right[k];
  terms[8] = Two{c[0], c[1]};
  for (const Two& term : terms) {
    const auto size = reinterpret_cast<Two>(reinterpret_cast<TwoBits>(term) & ~kSign);
    largest = largest < size ? size : largest;
    untruncated += term;
  }
  // Products of numbers of 16 and 32 bits are normal doubles: the sign and fraction off, and 24
  // less.
  const Two unit = reinterpret_cast<Two>(reinterpret_cast<TwoBits>(largest) & kExponent) * 0x1p-24;
  const Two per_unit = 1.0 / unit;  // exact, as its products: both are powers of two
  // A term has fewer than 2^25 units. Rounded to whole ones by the width of a double and then
  // corrected: without SSE4.1 std::trunc is a call, and a conversion takes one number at a time.
  constexpr double kNoFraction = 0x1p52;
  Two sum{};
  for (const Two& term : terms) {
    const TwoBits sign = reinterpret_cast<TwoBits>(term) & kSign;
    const Two units = reinterpret_cast<Two>(reinterpret_cast<TwoBits>(term) ^ sign) * per_unit;
    const Two nearest = (units + kNoFraction) - kNoFraction;
    const Two cut = (nearest > units ? nearest - 1.0 : nearest) * unit;
    sum += reinterpret_cast<Two>(reinterpret_cast<TwoBits>(cut) | sign);
  }
  for (int x = 0; x < 2; ++x) {
    // Infinities and NaN, which the comparison leaves out.
    const bool is_finite = std::isfinite(untruncated[x]) && largest[x] != 0.0;
    const double exact = is_finite ? sum[x] : untruncated[x];
    c[x] = static_cast<float>(exact);
    if (is_finite && std::abs(static_cast<double>(c[x])) > std::abs(exact)) {
      c[x] = std::nextafter(c[x], 0.0f);
    }
  }
}

}  // namespace regard::cuda_test
