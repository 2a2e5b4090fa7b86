#pragma once

#include "regard/export.h"
#include "regard/params.h"
#include "regard/request.h"

namespace regard {

/// The operations and bytes that a call needs, whatever the backend.
struct Work {
  /// A multiply-add counts as two. Forward: 2 (Dqk + Dv) for every query head and every pair of a
  /// query and a key that lengths, windows and the diagonal leave; backward: 2 (3 Dqk + 2 Dv).
  /// Pairs that masks and segments hide are counted.
  double operations = 0.0;
  /// Every input and output counts once: of k and v those keys that some query sees, of other
  /// tensors all elements.
  double bytes = 0.0;
};

/// `params` are those of `buffers`: describe()'s. Lengths and offsets are read from CPU tensors
/// alone; where they are absent or lie on a device, every sequence counts as of full length.
REGARD_EXPORT Work forward_work(const AttentionParams& params, const Buffers& buffers) noexcept;
REGARD_EXPORT Work backward_work(const AttentionParams& params, const Buffers& buffers,
                                 const GradBuffers& gradients) noexcept;

}  // namespace regard
