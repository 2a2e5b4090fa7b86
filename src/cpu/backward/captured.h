#pragma once

#include <cstdint>

#include "cpu/backward/args.h"
#include "regard/params.h"

// Gradients of captured tensors: how the work is divided, and the sum over the parts.

namespace regard::cpu {

/// Bytes of all slices' sums, whichever captured tensors' gradients a call of the plan wants.
std::int64_t captured_bytes(const AttentionParams& params) noexcept;

/// Sets the slices and where each tensor's elements lie, for those whose gradients are wanted.
void lay_out_captured(BackwardArgs* args) noexcept;

/// Tasks of sum_captured.
std::int64_t count_captured_sums(const BackwardArgs& args) noexcept;

/// Adds up the slices of some elements and writes the gradients.
void sum_captured(const void* args, std::int64_t task, char* scratch);

}  // namespace regard::cpu
