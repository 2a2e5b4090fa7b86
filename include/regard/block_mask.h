#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "regard/export.h"
#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"
#include "regard/tensor.h"

namespace regard {

/// What is known of a mask function in blocks of queries and keys: of each whether it is false
/// everywhere (such a block is never computed), true everywhere, or neither. Immutable; copies
/// share the numbers. Calls find out by themselves what the bounds of indices tell; a mask of
/// blocks is worth its memory where they tell little, and many calls have the same mask. A request
/// takes its view() as block_mask, and its block_size_q() and block_size_kv() as those of options.
class REGARD_EXPORT BlockMask {
 public:
  static constexpr std::int64_t kUsualSize = 128;

  /// Of params.mask_function over params' batch, num_heads_q, seqlen_q and seqlen_kv; a dimension
  /// that the function does not read is 1. Of `buffers` the captured tensors that it reads are
  /// used, in host memory. Where bounds decide, no element is looked at. The function may read
  /// q_len, kv_len and q_pos where no lengths are data.
  static Expected<BlockMask> make(const AttentionParams& params, const Buffers& buffers,
                                  std::int64_t block_size_q = kUsualSize,
                                  std::int64_t block_size_kv = kUsualSize);

  std::int64_t block_size_q() const noexcept;
  std::int64_t block_size_kv() const noexcept;
  std::int64_t seqlen_q() const noexcept;
  std::int64_t seqlen_kv() const noexcept;
  /// u8 [1|B,1|Hq,blocks_q,blocks_kv] for Buffers::block_mask, for as long as a copy of this lives.
  TensorView view() const noexcept;
  /// The same for shorter lengths, as a growing cache has them: kInvalidArgument where the lengths
  /// are longer than those it was made for, or the function reads q_len, kv_len or q_pos.
  Expected<TensorView> view(std::int64_t seqlen_q, std::int64_t seqlen_kv) const;

  double empty() const noexcept;    // the share of blocks that hide all their keys, 0 to 1
  double partial() const noexcept;  // the share of which elements decide

 private:
  struct Blocks;
  explicit BlockMask(std::shared_ptr<const Blocks> blocks) noexcept;

  std::shared_ptr<const Blocks> blocks_;
  friend REGARD_EXPORT std::string to_text(const BlockMask& mask, std::int64_t b, std::int64_t h);
};

/// "<block mask of 128 x 128, [1,1,32,32], 48.4 % empty, 3.1 % partial>"
REGARD_EXPORT std::string to_string(const BlockMask& mask);

/// A drawing of one head's blocks, a row of them a line: ' ' empty, '+' partial, '#' full. At most
/// 64 columns and rows: several blocks are then one character.
REGARD_EXPORT std::string to_text(const BlockMask& mask, std::int64_t b = 0, std::int64_t h = 0);

}  // namespace regard
