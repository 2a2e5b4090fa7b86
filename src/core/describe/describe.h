#pragma once

#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// A tensor of Buffers by name.
struct BufferTensor {
  const char* name;
  TensorView Buffers::*view;
  bool output;
};
inline constexpr BufferTensor kBufferTensors[] = {
    {"q", &Buffers::q, false},
    {"k", &Buffers::k, false},
    {"v", &Buffers::v, false},
    {"out", &Buffers::out, true},
    {"lse", &Buffers::lse, true},
    {"saved_stats", &Buffers::saved_stats, true},
    {"scores_out", &Buffers::scores_out, true},
    {"attn_mask", &Buffers::attn_mask, false},
    {"attn_bias", &Buffers::attn_bias, false},
    {"alibi_slopes", &Buffers::alibi_slopes, false},
    {"sinks", &Buffers::sinks, false},
    {"segment_ids_q", &Buffers::segment_ids_q, false},
    {"segment_ids_kv", &Buffers::segment_ids_kv, false},
    {"seqlens_q", &Buffers::seqlens_q, false},
    {"seqlens_kv", &Buffers::seqlens_kv, false},
    {"diagonal_offsets", &Buffers::diagonal_offsets, false},
    {"descale_q", &Buffers::descale_q, false},
    {"descale_k", &Buffers::descale_k, false},
    {"descale_v", &Buffers::descale_v, false},
    {"cu_seqlens_q", &Buffers::cu_seqlens_q, false},
    {"cu_seqlens_kv", &Buffers::cu_seqlens_kv, false},
    {"page_table", &Buffers::page_table, false},
    {"block_mask", &Buffers::block_mask, false},
    {"k_new", &Buffers::k_new, false},
    {"v_new", &Buffers::v_new, false},
    {"rotary_cos", &Buffers::rotary_cos, false},
    {"rotary_sin", &Buffers::rotary_sin, false},
    {"cache_batch_idx", &Buffers::cache_batch_idx, false},
};

/// describe for a caller of any name: all that can be said about the buffers without reading them.
/// Messages name `where`. Allocates only to report an error.
Expected<AttentionParams> describe_buffers(const Buffers& buffers, const AttentionOptions& options,
                                           const char* where);

/// The options that describe the same params: describe_buffers(b, options_of(*describe_buffers(b,
/// o))) is *describe_buffers(b, o).
AttentionOptions options_of(const AttentionParams& params) noexcept;

/// Whether a [B,H,S,D] view keeps what `layout` promises to a kernel (kStrided promises nothing).
bool layout_matches(const TensorView& view, Layout layout) noexcept;

/// log2 of the bytes that data and every row start are aligned to, at most kMaxAlignLog2.
std::int32_t align_log2_of(const TensorView& view) noexcept;

}  // namespace regard
