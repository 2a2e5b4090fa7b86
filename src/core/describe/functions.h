#pragma once

#include "function/uses.h"
#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

// Score and mask functions of a request: their types, and the tensors that they read.

namespace regard {

/// What both functions read.
function::Uses uses_of_functions(const AttentionParams& params) noexcept;

/// A score function is a number, a mask function a bool without the score; a captured tensor has
/// one type and one rank in both. Messages show the function.
Status check_functions(const AttentionParams& params, const char* where);

/// Exactly the tensors that the functions read are given, of their ranks and types.
Status check_captured(const Buffers& buffers, const AttentionParams& params, const char* where);

/// A mask of blocks needs its function and block sizes, and covers Sq and Skv.
Status check_block_mask(const Buffers& buffers, const AttentionParams& params, const char* where);

/// Integers of 64 bits fit 32, and every index lies in its tensor wherever a query and a key are.
Status check_captured_data(const Buffers& buffers, const AttentionParams& params,
                           const char* where);

/// Each is 0, 1 or 2.
Status check_blocks(const TensorView& blocks, const char* where);

}  // namespace regard
