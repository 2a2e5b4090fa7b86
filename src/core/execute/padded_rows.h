#pragma once

#include <cstdint>
#include <vector>

#include "regard/lengths.h"
#include "regard/padding.h"
#include "regard/request.h"

// Padded tensors with lengths or a mask, and what becomes of positions without a row.

namespace regard {

/// The seqlens of a call's sequences, whose rows come first.
class SeqlensOf {
 public:
  explicit SeqlensOf(const PaddedSequences& sequences);
  /// The request reads them for as long as this lives.
  void set(AttentionRequest* request) const;

 private:
  const PaddedSequences& sequences_;
  std::vector<std::int32_t> q_, kv_;
};

/// The attn_mask [B,1,1,Skv] that hides positions of k and v without a row.
class MaskOf {
 public:
  explicit MaskOf(const Lengths& kv);
  TensorView view() const;

 private:
  const Lengths& kv_;
  std::vector<std::uint8_t> keys_;
};

/// Writes zeros to every position of [B,H,S,D] without a row; `view` may be absent.
void clear_rows(const Lengths& lengths, const TensorView& view);

/// Writes what a row that sees nothing has to every position of an lse [B,H,S], -inf, or of
/// saved_stats [B,H,S,2], (-inf, 0), without a row; `view` may be absent.
void clear_statistics(const Lengths& lengths, const TensorView& view);

}  // namespace regard
