#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

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

/// A tensor in memory that the caller owns. Strides count elements and may be 0 on inputs. Rows of
/// u4 have an even number of elements, their strides are even, and the last stride is 1. rank 0
/// means "absent"; a present tensor with a zero extent may have null data.
struct TensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  bool read_only = false;  // refused as an output: the memory is const, or its owner forbids writes
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

/// The bytes of a view: of u4 two elements of its last dimension are one of u8.
constexpr TensorView as_bytes(TensorView view) noexcept {
  if (view.dtype != Dtype::kU4 || view.rank < 1) return view;
  view.dtype = Dtype::kU8;
  view.shape[view.rank - 1] /= 2;
  for (int i = 0; i + 1 < view.rank; ++i) view.strides[i] /= 2;
  return view;
}

/// A view of memory whose C++ type does not say the element type, such as the bits of bf16 in
/// std::uint16_t. Strides count elements; without them it is dense and row-major. Both lists have
/// the same length, at most kMaxRank.
REGARD_EXPORT TensorView make_view(void* data, Dtype dtype,
                                   std::initializer_list<std::int64_t> shape,
                                   std::initializer_list<std::int64_t> strides = {}) noexcept;
REGARD_EXPORT TensorView make_view(const void* data, Dtype dtype,
                                   std::initializer_list<std::int64_t> shape,
                                   std::initializer_list<std::int64_t> strides = {}) noexcept;

/// Of a tensor without elements.
inline TensorView make_view(std::nullptr_t, Dtype dtype,
                            std::initializer_list<std::int64_t> shape) noexcept {
  return make_view(static_cast<void*>(nullptr), dtype, shape);
}

/// A C++ type that holds the elements of a Dtype, const or not.
template <class T>
concept ElementType = (dtype_of<std::remove_const_t<T>>.has_value());

namespace detail {
/// Null strides make it dense and row-major.
REGARD_EXPORT TensorView view_of(const void* data, bool read_only, Dtype dtype, std::size_t rank,
                                 const std::int64_t* shape, const std::int64_t* strides) noexcept;

template <ElementType T, std::size_t kRank>
TensorView view_of(T* data, const std::int64_t (&shape)[kRank],
                   const std::int64_t* strides) noexcept {
  constexpr Dtype kDtype = *dtype_of<std::remove_const_t<T>>;
  static_assert(sizeof(T) == size_of(kDtype), "dtype_of names a Dtype of another size");
  static_assert(kRank <= kMaxRank, "a view has at most 4 dimensions");
  return view_of(data, std::is_const_v<T>, kDtype, kRank, shape, strides);
}
}  // namespace detail

/// A dense, row-major view of typed memory: make_view(q.data(), {1, 8, 128, 64}). The compiler
/// checks type and rank, and const memory gives a read-only view.
template <ElementType T, std::size_t kRank>
TensorView make_view(T* data, const std::int64_t (&shape)[kRank]) noexcept {
  return detail::view_of(data, shape, nullptr);
}

/// The same with strides, in elements, which may be 0 on inputs.
template <ElementType T, std::size_t kRank>
TensorView make_view(T* data, const std::int64_t (&shape)[kRank],
                     const std::int64_t (&strides)[kRank]) noexcept {
  return detail::view_of(data, shape, strides);
}

/// "f32[2,8,128,64] strides (65536,8192,64,1)"
REGARD_EXPORT std::string to_string(const TensorView& view);

}  // namespace regard
