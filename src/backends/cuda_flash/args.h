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

/// What a kernel's code can do with scores.
enum class Kind : std::uint8_t {
  kPlain = 0,  // scale them, and hide some by arithmetic: causal masks, windows, lengths
  kEdited,     // every edit, masks by data, dropout; reads keys in pages, too
  kSplit       // the same; a block has at most kSplitRows rows, and a split of the keys
};

}  // namespace regard::cuda_flash
