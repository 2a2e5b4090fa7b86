#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "regard/dtype.h"
#include "regard/export.h"

namespace regard {

enum class DeviceType : std::uint8_t { kCpu = 0, kCuda = 1 };

struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

REGARD_EXPORT const char* to_string(DeviceType type) noexcept;  // "cpu", "cuda"

inline constexpr int kMaxRank = 4;

/// A tensor that somebody else owns. Strides count elements and may be 0 on inputs.
/// rank 0 means "absent"; a present tensor with a zero extent may have null data.
struct TensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  Device device{};
  std::int32_t rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};

  bool present() const noexcept { return rank != 0; }
  /// Product of the extents (absent tensors have none); extents are not checked here.
  std::int64_t num_elements() const noexcept {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
};

/// A dense row-major view over `data`; at most kMaxRank extents.
REGARD_EXPORT TensorView make_view(const void* data, Dtype dtype,
                                   std::initializer_list<std::int64_t> shape) noexcept;

/// A view with strides of the caller's (elements); both lists have the same length.
REGARD_EXPORT TensorView make_view(const void* data, Dtype dtype,
                                   std::initializer_list<std::int64_t> shape,
                                   std::initializer_list<std::int64_t> strides) noexcept;

/// "f32[2,8,128,64] strides (65536,8192,64,1)"
REGARD_EXPORT std::string to_string(const TensorView& view);

}  // namespace regard
