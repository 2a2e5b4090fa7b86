#pragma once

#include <cstdint>
#include <span>

#include "regard/status.h"
#include "regard/tensor.h"

// Which bytes views touch. Every function needs views that byte_span accepts.

namespace regard {

/// The addresses [begin, end) between a view's first and last byte; begin == end when it is empty.
struct ByteSpan {
  std::uintptr_t begin;
  std::uintptr_t end;
};

/// False when a size, an offset or an address does not fit 64 bits. Needs a rank of 1 to kMaxRank
/// and extents and strides >= 0.
bool byte_span(const TensorView& view, ByteSpan* span) noexcept;

inline bool intersects(const ByteSpan& a, const ByteSpan& b) noexcept {
  return a.begin < b.end && b.begin < a.end;
}

/// True when no two different elements share bytes. Exact, except that a search that would take
/// long answers false.
bool proves_injective(const TensorView& view) noexcept;

/// True when no element of `a` shares bytes with one of `b`, interleaved slots of one buffer
/// included. Exact, except that a search that would take long answers false.
bool proves_disjoint(const TensorView& a, const TensorView& b) noexcept;

/// A tensor of a call and the bytes of its view.
struct UsedTensor {
  const char* name;
  const TensorView* view;
  ByteSpan span;
  bool is_written;
};

/// No element of a tensor that is written shares bytes with another tensor, or with another element
/// of its own.
Status check_overlaps(const char* where, std::span<const UsedTensor> tensors);

}  // namespace regard
