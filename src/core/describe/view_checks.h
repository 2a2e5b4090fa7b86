#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/describe/overlap.h"
#include "regard/status.h"
#include "regard/tensor.h"

// What can be wrong with one view of a request, whatever it is for.

namespace regard {

struct NamedView {
  const char* name;
  const TensorView& view;
};

/// Rank 1..kMaxRank, a known dtype, extents and strides >= 0, sizes and addresses within 64 bits,
/// data present and aligned to its dtype, on `device`. On success *span holds the view's bytes.
Status check_view(const char* where, const NamedView& tensor, const Device& device, ByteSpan* span);

/// A tensor that is written may not be a view of read-only memory.
Status check_writable(const char* where, const NamedView& tensor);

/// The shape, exactly. `letters` names the dimensions: "[B,H,Sq]".
Status expect_shape(const char* where, const NamedView& tensor,
                    std::initializer_list<std::int64_t> shape, const char* letters);

/// What expect_shape answers to another shape of the same rank. `broadcasts`: extents may be 1.
Status unexpected_shape(const char* where, const NamedView& tensor, const std::int64_t* expected,
                        int rank, const char* letters, bool broadcasts);

Status expect_rank(const char* where, const NamedView& tensor, int rank, const char* letters);

Status expect_dtype(const char* where, const NamedView& tensor,
                    std::initializer_list<Dtype> accepted);
Status expect_dtype(const char* where, const NamedView& tensor, const Dtype* accepted,
                    std::size_t count);

/// The integer at `offset` elements, in memory of the host that was checked: i64, i32, or of one
/// byte.
std::int64_t read_integer(const TensorView& view, std::int64_t offset) noexcept;

}  // namespace regard
