#pragma once

#include <cstdint>

#include "conformance/rng.h"
#include "regard/case.h"
#include "regard/tensor.h"

// How a case's tensors lie in memory: a function of the case alone, so that a repro line repeats
// it.

namespace regard::conformance {

/// Of q and out, and of k and v: packed sequences are one entry of the batch, pages and entries of
/// a cache one each.
struct MemoryExtents {
  std::int64_t batch, rows_q;
  std::int64_t batch_kv, rows_kv;
};
MemoryExtents memory_extents(const AttentionParams& params);

/// Views without memory: `data` holds nothing yet. Strides of q, k, v and out realise the case's
/// layout classes with padding, expanded (stride 0) heads and batches, and packed QKV drawn from
/// its seed.
struct Arrangement {
  TensorView q, k, v, out;
  bool packed_qkv = false;                  // q, k and v interleave in one block:
  std::int64_t offset_k = 0, offset_v = 0;  // elements from the start of q's
};

/// `dense`: no padding, no expansion, no packing beyond what the classes demand.
Arrangement arrange(const Case& c, bool dense = false);

/// d_out and the gradients of q, k and v of a case with `grad`: classes of their own, drawn from
/// the seed, and the alignments of out, q, k and v.
struct GradArrangement {
  TensorView d_out, d_q, d_k, d_v;
};
GradArrangement arrange_gradients(const Case& c, bool dense = false);

/// What a tensor that is none of q, k, v and out may do with its strides.
enum class Strides : std::uint8_t {
  kDense = 0,
  kSpread,   // padded and in any order of dimensions
  kExpanded  // also 0 in some dimensions: masks and biases
};
/// `view` (dtype, rank and shape set) with strides drawn from `rng`.
TensorView arrange_loosely(TensorView view, Strides strides, Rng* rng);

/// Elements from the first to one past the last that the view reaches; 0 for empty views.
std::int64_t footprint(const TensorView& view);

/// The class that strides have (describe() has its own copy of this rule).
Layout layout_of(const TensorView& view);

/// log2 of the bytes that every row start is aligned to when address 0 is `offset_elements` before
/// the first; at most kMaxAlignLog2.
std::int32_t row_align_log2(const TensorView& view, std::int64_t offset_elements = 0);

/// Sets the case's layout classes and alignments to what its arrangement can keep.
void normalize_layout(Case* c);

}  // namespace regard::conformance
