#pragma once

#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// Lengths are data: each of seqlens_q and seqlens_kv must lie in [0, the extent], or rows past the
/// tensors would be read. On another device than the CPU they are not read here
/// (check_device_data).
Status check_lengths(const Buffers& buffers, const AttentionParams& params, const char* where);

}  // namespace regard
