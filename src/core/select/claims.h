#pragma once

#include "regard/backend.h"

namespace regard {

/// What kernels may need of a machine: its own, or less where a policy requires exacter ones.
struct KernelLevel {
  Isa isa = Isa::kScalar;
  std::int32_t sm = 0;
  friend bool operator==(const KernelLevel&, const KernelLevel&) = default;
};

/// A CPU's problem reads no device's facts: an unread sm_version counts as none.
KernelLevel level_of(const Env& env) noexcept;

/// The claim among `claims` for the types of `params` at `level`, or null.
const DtypeClaim* find_dtypes(const Claims& claims, const AttentionParams& params,
                              const KernelLevel& level) noexcept;

/// The claim's error bound for a problem of its types.
double error_bound_of(const DtypeClaim& claim, const AttentionParams& params) noexcept;

/// What the backward of a problem is given: saved_stats where the forward writes them, else lse
/// where it writes that; d_lse and delta where the problem states them.
FeatureSet backward_features(const AttentionParams& params) noexcept;

/// The same of a backward's own tensors.
FeatureSet given_to_backward(const GradBuffers& gradients) noexcept;

}  // namespace regard
