#include "tools/regard/owned_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

namespace regard::cli {

Expected<OwnedBytes> OwnedBytes::make(std::int64_t bytes, const char* what) {
  constexpr std::size_t kAlign = 64;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max() - 64;
  OwnedBytes out;
  void* data = nullptr;
  if (bytes <= kMax) {
    const std::size_t rounded = (static_cast<std::size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
    data = std::aligned_alloc(kAlign, std::max(rounded, kAlign));
  }
  if (data == nullptr) {
    return Status(StatusCode::kWorkspace,
                  fmt::format("[regard] {} needs {} bytes, which could not be had", what, bytes));
  }
  std::memset(data, 0xff, static_cast<std::size_t>(bytes));
  out.data_.reset(data);
  out.size_ = bytes;
  return out;
}

Expected<OwnedTensor> OwnedTensor::make(Dtype dtype, std::vector<std::int64_t> shape,
                                        const char* what) {
  std::int64_t bytes = size_of(dtype);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
      return Status(StatusCode::kOverflow,
                    fmt::format("[regard] {} would have more than 2^63 - 1 bytes", what));
    }
  }
  Expected<OwnedBytes> memory = OwnedBytes::make(empty ? 0 : bytes, what);
  if (!memory) return memory.status();
  OwnedTensor out;
  out.dtype = dtype;
  out.shape = std::move(shape);
  out.bytes = *std::move(memory);
  return out;
}

TensorView OwnedTensor::view() const noexcept {
  TensorView view;
  view.data = bytes.data();
  view.dtype = dtype;
  view.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return view;
}

TensorView exchange_heads_and_rows(TensorView view) noexcept {
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.strides[1], view.strides[2]);
  return view;
}

}  // namespace regard::cli
