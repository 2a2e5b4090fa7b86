#pragma once

#include "semantics/kernel_fn.h"

// What probabilities and dS are rounded to where a call wants them in 8 bits (docs/semantics.md,
// "Probabilities of 8 bits").

namespace regard::semantics {

/// A floating-point format of 8 bits.
struct NarrowFormat {
  int fraction_bits;
  int min_exponent;  // of its smallest normal number
  int max_exponent;  // of its largest number
  double largest;
};
inline constexpr NarrowFormat kE4M3{3, -6, 8, 448.0};
inline constexpr NarrowFormat kE5M2{2, -14, 15, 57344.0};

/// 2^n.
REGARD_KERNEL_FN constexpr double power_of_two(int n) {
  double power = 1.0;
  for (; n > 0; --n) power *= 2.0;
  for (; n < 0; ++n) power /= 2.0;
  return power;
}

/// Probabilities stand for p * 2^offset, which is at most 2^offset where p is at most 1.
REGARD_KERNEL_FN constexpr int probs_offset(NarrowFormat format) { return format.max_exponent; }

/// log2 of how far a probability may exceed 1 until its row's maximum is raised: kernels raise it
/// before they take a power of a larger score.
inline constexpr int kLazyRescale = 0;
static_assert(power_of_two(probs_offset(kE4M3) + kLazyRescale) <= kE4M3.largest);
static_assert(power_of_two(probs_offset(kE5M2) + kLazyRescale) <= kE5M2.largest);

/// dS of a row and a tile of keys stand for dS * 2^offset, where the largest has this exponent: one
/// below the format's, for the largest may be nearly twice its power of two.
REGARD_KERNEL_FN constexpr int d_scores_exponent(NarrowFormat format) {
  return format.max_exponent - 1;
}
static_assert(power_of_two(d_scores_exponent(kE4M3) + 1) <= kE4M3.largest);
static_assert(power_of_two(d_scores_exponent(kE5M2) + 1) <= kE5M2.largest);

}  // namespace regard::semantics
