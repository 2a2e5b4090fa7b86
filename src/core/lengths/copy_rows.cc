#include <array>
#include <cstdint>
#include <cstring>

#include "base/message.h"
#include "core/describe/overlap.h"
#include "core/describe/view_checks.h"
#include "core/text/thrown_by.h"
#include "regard/lengths.h"

// unpad and pad: copies of rows between [batch, seqlen, ...] and [total, ...].

namespace regard {
namespace {

/// The dimensions of a row, outer and inner, and how far apart their elements lie in a tensor.
struct RowStrides {
  std::int64_t outer = 0, inner = 0;  // bytes
};

class RowCopier {
 public:
  RowCopier(const TensorView& padded, const TensorView& packed) noexcept
      : element_(size_of(packed.dtype)),
        padded_(strides_of(padded, 2)),
        packed_(strides_of(packed, 1)) {
    if (packed.rank == 3) outer_ = packed.shape[1];
    if (packed.rank >= 2) inner_ = packed.shape[packed.rank - 1];
    const bool dense = inner_ <= 1 || (padded_.inner == element_ && packed_.inner == element_);
    if (!dense) return;
    element_ *= inner_;  // one copy takes the inner dimension whole
    inner_ = 1;
    if (outer_ <= 1 || (padded_.outer == element_ && packed_.outer == element_)) {
      element_ *= outer_;
      outer_ = 1;
    }
  }

  void to_packed(char* packed, const char* padded) const noexcept {
    copy(packed, packed_, padded, padded_);
  }
  void to_padded(char* padded, const char* packed) const noexcept {
    copy(padded, padded_, packed, packed_);
  }
  void clear_padded(char* padded) const noexcept {
    for (std::int64_t o = 0; o < outer_; ++o) {
      for (std::int64_t i = 0; i < inner_; ++i) {
        std::memset(padded + o * padded_.outer + i * padded_.inner, 0, bytes());
      }
    }
  }

 private:
  /// `first`: the dimension of the tensor with which a row begins.
  static RowStrides strides_of(const TensorView& view, int first) noexcept {
    const std::int64_t size = size_of(view.dtype);
    RowStrides strides;
    if (view.rank > first) strides.inner = view.strides[view.rank - 1] * size;
    if (view.rank > first + 1) strides.outer = view.strides[first] * size;
    return strides;
  }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(element_); }
  void copy(char* to, const RowStrides& by, const char* from,
            const RowStrides& from_by) const noexcept {
    if (element_ == 0) return;
    for (std::int64_t o = 0; o < outer_; ++o) {
      for (std::int64_t i = 0; i < inner_; ++i) {
        std::memcpy(to + o * by.outer + i * by.inner, from + o * from_by.outer + i * from_by.inner,
                    bytes());
      }
    }
  }

  std::int64_t element_;  // bytes of one copy
  RowStrides padded_, packed_;
  std::int64_t outer_ = 1, inner_ = 1;
};

Status check_copy(const char* where, const Lengths& lengths, const NamedView& from,
                  const NamedView& to, const TensorView& padded, const TensorView& packed) {
  ByteSpan from_span, to_span;
  if (Status s = check_view(where, from, Device{}, &from_span); !s.ok()) return s;
  if (Status s = check_view(where, to, Device{}, &to_span); !s.ok()) return s;
  if (Status s = expect_dtype(where, to, {from.view.dtype}); !s.ok()) return s;
  if (padded.rank < 2 || packed.rank != padded.rank - 1) {
    return invalid(where, "ranks of padded and packed (", padded.rank, ", ", packed.rank,
                   ") must be 2 to 4 and one less: [batch,seqlen,...] and [total,...]");
  }
  const std::int64_t leading[] = {lengths.batch(), lengths.seqlen()};
  if (padded.shape[0] != leading[0] || padded.shape[1] != leading[1]) {
    return invalid(where, "shape of padded (", to_string(padded), ") must begin with ", leading[0],
                   ",", leading[1], ", the batch and seqlen of the lengths");
  }
  if (packed.shape[0] != lengths.total()) {
    return invalid(where, "shape of packed (", to_string(packed), ") must begin with ",
                   lengths.total(), ", the rows of the lengths");
  }
  for (int i = 1; i < packed.rank; ++i) {
    if (packed.shape[i] == padded.shape[i + 1]) continue;
    return invalid(where, "shape of packed (", to_string(packed),
                   ") must have the rows of padded (", to_string(padded), ")");
  }
  const std::array<UsedTensor, 2> used = {
      {{from.name, &from.view, from_span, false}, {to.name, &to.view, to_span, true}}};
  return check_overlaps(where, used);
}

template <class Char>
class Positions {
 public:
  explicit Positions(const TensorView& view, std::int64_t seqlen) noexcept
      : data_(static_cast<Char*>(view.data)),
        size_(size_of(view.dtype)),
        view_(view),
        seqlen_(seqlen) {}
  Char* at(std::int64_t b, std::int64_t s) const noexcept {
    return data_ + (b * view_.strides[0] + s * view_.strides[1]) * size_;
  }
  Char* at(std::int64_t index) const noexcept { return at(index / seqlen_, index % seqlen_); }

 private:
  Char* data_;
  std::int64_t size_;
  const TensorView& view_;
  std::int64_t seqlen_;
};

}  // namespace

Status unpad(const Lengths& lengths, const TensorView& padded, const TensorView& packed) {
  constexpr const char* kWhere = "unpad";
  try {
    Status status =
        check_copy(kWhere, lengths, {"padded", padded}, {"packed", packed}, padded, packed);
    if (!status.ok() || packed.num_elements() == 0) return status;
    const RowCopier copier(padded, packed);
    const Positions<const char> positions(padded, lengths.seqlen());
    const std::int64_t step = packed.strides[0] * size_of(packed.dtype);
    char* row = static_cast<char*>(packed.data);
    for (const std::int64_t index : lengths.indices()) {
      copier.to_packed(row, positions.at(index));
      row += step;
    }
    return {};
  } catch (...) {
    return status_of_exception(kWhere);
  }
}

Status pad(const Lengths& lengths, const TensorView& packed, const TensorView& padded) {
  constexpr const char* kWhere = "pad";
  try {
    Status status =
        check_copy(kWhere, lengths, {"packed", packed}, {"padded", padded}, padded, packed);
    if (!status.ok() || padded.num_elements() == 0) return status;
    const RowCopier copier(padded, packed);
    const Positions<char> positions(padded, lengths.seqlen());
    const std::int64_t step = packed.strides[0] * size_of(packed.dtype);
    const char* row = static_cast<const char*>(packed.data);
    auto next = lengths.indices().begin();
    for (std::int64_t b = 0; b < lengths.batch(); ++b) {
      for (std::int64_t s = 0; s < lengths.seqlen(); ++s) {
        char* const position = positions.at(b, s);
        if (next != lengths.indices().end() && *next == b * lengths.seqlen() + s) {
          copier.to_padded(position, row);
          row += step;
          ++next;
        } else {
          copier.clear_padded(position);
        }
      }
    }
    return {};
  } catch (...) {
    return status_of_exception(kWhere);
  }
}

}  // namespace regard
