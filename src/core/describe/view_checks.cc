#include "core/describe/view_checks.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/message.h"

namespace regard {
namespace {

std::string list_text(const std::int64_t* values, std::size_t count) {
  std::string out = "[";
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) out += ',';
    append(out, values[i]);
  }
  return out + "]";
}

std::string shape_text(const TensorView& view) {
  return list_text(view.shape, static_cast<std::size_t>(view.rank));
}

// make_view leaves -n for a list of n extents that no view can hold.
std::int64_t shown_rank(const TensorView& view) {
  const std::int64_t rank = view.rank;
  return rank < -kMaxRank ? -rank : rank;
}

std::string device_text(const Device& device) {
  return concat(to_string(device.type), ":", device.index);
}

// Whether a row of u4 begins or ends within a byte.
bool splits_bytes(const TensorView& view) noexcept {
  if (view.dtype != Dtype::kU4) return false;
  const int last = view.rank - 1;
  std::int64_t bits = view.shape[last];
  for (int i = 0; i < last; ++i) bits |= view.shape[i] > 1 ? view.strides[i] : 0;
  return bits % 2 != 0 || (view.strides[last] != 1 && view.shape[last] > 0);
}

// The words for what a quick look found wrong; never called on a good view.
Status explain_view(const char* where, const NamedView& tensor, const Device& device) {
  const TensorView& view = tensor.view;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] < 0) {
      return invalid(where, "extent ", i, " of ", tensor.name, " (", view.shape[i],
                     ") must be >= 0");
    }
    if (view.strides[i] < 0) {
      return invalid(where, "stride ", i, " of ", tensor.name, " (", view.strides[i],
                     ") must be >= 0");
    }
  }
  if (splits_bytes(view)) {
    return invalid(where, tensor.name, " ", to_string(view),
                   " must have an even last extent with a stride of 1 and other strides that are "
                   "even: two elements of u4 share a byte");
  }
  if (view.device != device) {
    return invalid(where, "device of ", tensor.name, " (", device_text(view.device),
                   ") must be q's, ", device_text(device));
  }
  ByteSpan span;
  if (!byte_span(view, &span)) {
    return failure(StatusCode::kOverflow, where, tensor.name, " ", to_string(view),
                   ": its sizes, strides and addresses in bytes must fit 64 bits");
  }
  if (view.data == nullptr) {
    return invalid(where, "data of ", tensor.name, " (null) must hold its ", shape_text(view),
                   " elements");
  }
  char address[24];
  std::snprintf(address, sizeof(address), "%p", view.data);
  return invalid(where, "data of ", tensor.name, " (", address, ") must be aligned to ",
                 size_of(view.dtype), " bytes, for its elements are ", to_string(view.dtype));
}

}  // namespace

Status check_view(const char* where, const NamedView& tensor, const Device& device,
                  ByteSpan* span) {
  const TensorView& view = tensor.view;
  if (view.rank < 1 || view.rank > kMaxRank) {
    return invalid(where, "rank of ", tensor.name, " (", shown_rank(view), ") must be 1..",
                   kMaxRank);
  }
  if (!is_known(view.dtype)) {
    return invalid(where, "dtype of ", tensor.name, " (", static_cast<int>(view.dtype),
                   ") must be a known dtype, 0..", kDtypeCount - 1);
  }
  std::int64_t signs = 0;
  for (int i = 0; i < view.rank; ++i) signs |= view.shape[i] | view.strides[i];
  if (signs < 0 || view.device != device || splits_bytes(view) || !byte_span(view, span)) {
    return explain_view(where, tensor, device);
  }
  const bool holds = span->begin != span->end;
  const std::uintptr_t mask = static_cast<std::uintptr_t>(size_of(view.dtype)) - 1;
  if (holds && (view.data == nullptr || (span->begin & mask) != 0)) {
    return explain_view(where, tensor, device);
  }
  return {};
}

Status check_writable(const char* where, const NamedView& tensor) {
  if (!tensor.view.read_only) return {};
  return invalid(where, tensor.name, " (", to_string(tensor.view),
                 ") is read-only; the call writes it and expects writable memory");
}

Status expect_rank(const char* where, const NamedView& tensor, int rank, const char* letters) {
  if (tensor.view.rank == rank) return {};
  if (!tensor.view.present()) {
    return invalid(where, tensor.name, " (absent) must have rank ", rank, ", ", letters);
  }
  return invalid(where, "rank of ", tensor.name, " (", shown_rank(tensor.view), ") must be ", rank,
                 ", ", letters);
}

Status expect_shape(const char* where, const NamedView& tensor,
                    std::initializer_list<std::int64_t> shape, const char* letters) {
  const TensorView& view = tensor.view;
  if (view.rank != static_cast<std::int32_t>(shape.size())) {
    return expect_rank(where, tensor, static_cast<int>(shape.size()), letters);
  }
  if (std::equal(shape.begin(), shape.end(), view.shape)) return {};
  return unexpected_shape(where, tensor, shape.begin(), view.rank, letters, false);
}

Status unexpected_shape(const char* where, const NamedView& tensor, const std::int64_t* expected,
                        int rank, const char* letters, bool broadcasts) {
  return invalid(where, "shape of ", tensor.name, " (", shape_text(tensor.view),
                 broadcasts ? ") must broadcast to " : ") must be ",
                 list_text(expected, static_cast<std::size_t>(rank)), ", ", letters);
}

Status expect_dtype(const char* where, const NamedView& tensor,
                    std::initializer_list<Dtype> accepted) {
  return expect_dtype(where, tensor, accepted.begin(), accepted.size());
}

Status expect_dtype(const char* where, const NamedView& tensor, const Dtype* accepted,
                    std::size_t count) {
  if (std::find(accepted, accepted + count, tensor.view.dtype) != accepted + count) return {};
  std::string names;
  for (std::size_t i = 0; i < count; ++i) {
    names += (i == 0 ? "" : " or ") + std::string(to_string(accepted[i]));
  }
  return invalid(where, "dtype of ", tensor.name, " (", to_string(tensor.view.dtype), ") must be ",
                 names);
}

std::int64_t read_integer(const TensorView& view, std::int64_t offset) noexcept {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, static_cast<const char*>(view.data) + offset * std::int64_t{sizeof(T)},
                sizeof(T));
    return std::int64_t{value};
  };
  if (view.dtype == Dtype::kI64) return read(std::int64_t{});
  if (view.dtype == Dtype::kI32) return read(std::int32_t{});
  return read(std::uint8_t{});
}

}  // namespace regard
