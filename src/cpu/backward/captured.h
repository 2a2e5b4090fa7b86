#pragma once

#include <cstdint>

#include "cpu/backward/args.h"
#include "regard/params.h"

// Gradients of captured tensors: how the work is divided, and the sum over the parts.

namespace regard::cpu {

/// Bytes of the sums. What captured tensors hold is no part of the params: larger ones are summed a
/// range of their elements after the other.
std::int64_t captured_bytes(const AttentionParams& params) noexcept;

/// Sets where each tensor's elements stand, of those whose gradients are wanted, the slices of the
/// work and the elements of a range.
void lay_out_captured(BackwardArgs* args) noexcept;

/// Tasks of sum_captured.
std::int64_t count_captured_sums(const BackwardArgs& args) noexcept;

/// Adds up the slices of some elements of a range and writes the gradients.
void sum_captured(const void* args, std::int64_t task, char* scratch);

}  // namespace regard::cpu
