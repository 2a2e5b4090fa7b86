#pragma once

#include <cstdint>
#include <vector>

#include "regard/isa.h"
#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// What is known of a mask function in blocks: BlockMask's numbers.
struct MaskBlocks {
  enum Known : std::uint8_t { kEmpty = 0, kPartial = 1, kFull = 2 };
  std::int64_t shape[4];     // [1|B,1|Hq,blocks_q,blocks_kv]
  bool reads_lengths;        // q_len, kv_len or q_pos
  std::vector<Known> known;  // dense
  std::int64_t empty = 0, partial = 0;
};

struct MaskBlocksOptions {
  std::int64_t size_q, size_kv;
  Isa isa;  // of the kernel that evaluates elements
  std::int64_t max_blocks = std::int64_t{1} << 40;
  std::int64_t max_elements = std::int64_t{1}
                              << 62;  // that are looked at where bounds do not decide
};

/// As BlockMask::make says; kOverflow beyond the options' limits. `where` begins messages.
Expected<MaskBlocks> mask_blocks(const AttentionParams& params, const Buffers& buffers,
                                 const MaskBlocksOptions& options, const char* where);

}  // namespace regard
