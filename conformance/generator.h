#pragma once

#include <cstdint>

#include "regard/case.h"

namespace regard::conformance {

/// Case `index` of the random cases of `seed`: small, of any dtype, with odd sizes preferred, each
/// feature of the forward with p >= 0.12, the layout, broadcast and alignment of every tensor drawn
/// on its own, and one size 0 in a few of a hundred. Valid and canonical.
Case random_case(std::uint64_t seed, std::uint64_t index);

/// The same of the gradient cases: every one with `grad` and with saved_stats or lse for the
/// backward, head_dims up to 512, smaller otherwise.
Case random_grad_case(std::uint64_t seed, std::uint64_t index);

}  // namespace regard::conformance
