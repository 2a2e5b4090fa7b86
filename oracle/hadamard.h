#pragma once

#include <cstdint>

#include "regard/tensor.h"

namespace regard::oracle {

/// Row (b, h, i) of [B,H,S,D] times the orthonormal Walsh-Hadamard matrix, D a power of two. Each
/// sum, the product with 1/sqrt(D) and the result are rounded as docs/semantics.md states.
void mix_row(const TensorView& rows, std::int64_t b, std::int64_t h, std::int64_t i);

}  // namespace regard::oracle
