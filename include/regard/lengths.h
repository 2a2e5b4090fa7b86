#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "regard/export.h"
#include "regard/status.h"
#include "regard/tensor.h"

namespace regard {

/// Which positions of a padded tensor [batch, seqlen, ...] hold rows, and where the sequences begin
/// once these rows are packed one after the other: [total, ...]. Immutable; copies share the
/// numbers. Make it once for a batch and pass it to every layer:
///
///   const Expected<Lengths> lengths = Lengths::from_mask(mask);
///   request.cu_seqlens_q = request.cu_seqlens_kv = lengths->cu_seqlens_view();
///   request.max_seqlen_q = request.max_seqlen_kv = lengths->max_seqlen();
///
/// It is made from host memory of any strides. A batch has at most 2^31 - 1 rows.
class REGARD_EXPORT Lengths {
 public:
  /// No sequences of an empty tensor.
  Lengths();

  /// bool, u8, i32 or i64 [batch, seqlen]: nonzero where a position holds a row. Padding may be on
  /// either side and within a sequence.
  static Expected<Lengths> from_mask(const TensorView& mask);
  /// i32 or i64 [batch]: sequence b has the first seqlens[b] positions of its row of the tensor.
  static Expected<Lengths> from_seqlens(const TensorView& seqlens, std::int64_t seqlen);
  /// i32 or i64 [batch, seqlen]: rows of packed sequences. A sequence begins where the position is
  /// 0, as each row of the tensor must; within it each position is one more than the last.
  static Expected<Lengths> from_position_ids(const TensorView& position_ids);

  std::int64_t batch() const noexcept;          // of the padded tensor
  std::int64_t seqlen() const noexcept;         // of the padded tensor
  std::int64_t num_sequences() const noexcept;  // `batch`; with position ids there may be more
  std::int64_t total() const noexcept;          // rows
  std::int64_t max_seqlen() const noexcept;     // rows of the longest sequence
  /// [total]: where each row lies in the padded tensor, b * seqlen + s; ascending.
  std::span<const std::int64_t> indices() const noexcept;
  /// [num_sequences + 1]: the row with which each sequence begins, then `total`.
  std::span<const std::int32_t> cu_seqlens() const noexcept;
  /// The same as a tensor of a request, for as long as a copy of this lives.
  TensorView cu_seqlens_view() const noexcept;

  friend REGARD_EXPORT bool operator==(const Lengths& a, const Lengths& b) noexcept;

 private:
  struct Rows;
  explicit Lengths(std::shared_ptr<const Rows> rows) noexcept;

  std::shared_ptr<const Rows> rows_;
};

/// "<3 sequences of at most 7 rows, 15 of 3 x 8 positions>"
REGARD_EXPORT std::string to_string(const Lengths& lengths);

/// Copies the rows of `padded` [batch, seqlen, ...] to `packed` [total, ...]. Both are host memory
/// of one type, of any strides; padded has 2 to 4 dimensions.
REGARD_EXPORT Status unpad(const Lengths& lengths, const TensorView& padded,
                           const TensorView& packed);

/// Copies the rows of `packed` [total, ...] to `padded` [batch, seqlen, ...] and writes zeros to
/// every other position.
REGARD_EXPORT Status pad(const Lengths& lengths, const TensorView& packed,
                         const TensorView& padded);

/// The longest of the sequences that cu_seqlens (i32 or i64 [B+1], not checked) delimit; 0 where
/// cu_seqlens do not lie in host memory.
REGARD_EXPORT std::int64_t longest_sequence(const TensorView& cu_seqlens) noexcept;

}  // namespace regard
