#pragma once

#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"
#include "regard/tensors.h"

namespace regard {

/// describe for a caller of any name: all that can be checked of the buffers without reading them.
/// Messages name `where`. Allocates only to report an error. `specs` begin as kTensors does.
Expected<AttentionParams> describe_buffers(const Buffers& buffers, const AttentionOptions& options,
                                           const char* where, TensorSpecs specs = kTensors);

/// The options that describe the same params: describe_buffers(b, options_of(*describe_buffers(b,
/// o))) is *describe_buffers(b, o).
AttentionOptions options_of(const AttentionParams& params) noexcept;

/// Whether a [B,H,S,D] view keeps what `layout` promises to a kernel (kStrided promises nothing).
bool layout_matches(const TensorView& view, Layout layout) noexcept;

/// log2 of the bytes that data and every row start are aligned to, at most kMaxAlignLog2.
std::int32_t align_log2_of(const TensorView& view) noexcept;

}  // namespace regard
