#pragma once

#include <cstdint>

#include "cuda/backward_args.h"
#include "cuda/forward_args.h"

namespace regard::cuda_flash {

using cuda::BackwardArgs;
using cuda::ForwardArgs;

/// Columns that kernels are compiled for; other head dims are padded with zeros to the next.
inline constexpr std::int64_t kDims[] = {64, 96, 128, 192, 256};

constexpr std::int64_t padded_dims(std::int64_t columns) {
  for (const std::int64_t dims : kDims) {
    if (columns <= dims) return dims;
  }
  return 0;
}

/// Keys of a tile. With 32 and 256 columns, sums and what scales multiply in f32 took 50 registers
/// more than there are, of f16, which each tile of codes stored and loaded (CUDA 13.0, sm_80).
constexpr int tile_keys(bool has_codes, std::int64_t dims) {
  return has_codes && dims == 256 ? 16 : 32;
}

/// What a kernel's code can do with scores.
enum class Kind : std::uint8_t {
  kPlain = 0,   // scale them, and hide some by arithmetic: causal masks, windows, lengths
  kEdited,      // every edit, masks by data, dropout; reads keys in pages, too
  kSplit,       // the same; a block has at most kSplitRows rows, and a split of the keys
  kCodes,       // kEdited and
  kSplitCodes,  // kSplit of keys and values of 8 bits, with scales of rows or without
  kGroups,      // kEdited and
  kSplitGroups  // kSplit of those of u4, with a scale and a minimum for each group
};
constexpr bool has_groups(Kind kind) { return kind == Kind::kGroups || kind == Kind::kSplitGroups; }
constexpr bool has_codes(Kind kind) {
  return kind == Kind::kCodes || kind == Kind::kSplitCodes || has_groups(kind);
}
constexpr bool is_split(Kind kind) {
  return kind == Kind::kSplit || kind == Kind::kSplitCodes || kind == Kind::kSplitGroups;
}

}  // namespace regard::cuda_flash
