#include "regard/tensor.h"

#include <algorithm>

#include "base/checked.h"
#include "base/message.h"

namespace regard {
namespace {

// The list's length is the rank even where a view cannot hold it: describe names it, and a
// negative rank keeps every loop over extents empty until then.
TensorView view_of_lists(const void* data, bool read_only, Dtype dtype,
                         std::initializer_list<std::int64_t> shape,
                         std::initializer_list<std::int64_t> strides) noexcept {
  const bool fits = shape.size() <= static_cast<std::size_t>(kMaxRank);
  const bool same = strides.size() == 0 || strides.size() == shape.size();
  TensorView view = detail::view_of(data, read_only, dtype, fits && same ? shape.size() : 0,
                                    shape.begin(), strides.size() == 0 ? nullptr : strides.begin());
  if (!fits) view.rank = -static_cast<std::int32_t>(shape.size());
  if (!same) view.rank = -kMaxRank - 1;
  return view;
}

void append_list(std::string& out, const std::int64_t* values, int count) {
  for (int i = 0; i < count; ++i) {
    if (i != 0) out += ',';
    append(out, values[i]);
  }
}

}  // namespace

const char* to_string(DeviceType type) noexcept {
  switch (type) {
    case DeviceType::kCpu: return "cpu";
    case DeviceType::kCuda: return "cuda";
  }
  return "?";
}

TensorView detail::view_of(const void* data, bool read_only, Dtype dtype, std::size_t rank,
                           const std::int64_t* shape, const std::int64_t* strides) noexcept {
  TensorView view;
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  view.read_only = read_only;
  view.rank = static_cast<std::int32_t>(rank);
  std::int64_t dense = 1;
  for (std::size_t i = rank; i-- > 0;) {
    view.shape[i] = shape[i];
    view.strides[i] = strides != nullptr ? strides[i] : dense;
    dense = saturating_mul(dense, std::max<std::int64_t>(shape[i], 1));
  }
  return view;
}

TensorView make_view(void* data, Dtype dtype, std::initializer_list<std::int64_t> shape,
                     std::initializer_list<std::int64_t> strides) noexcept {
  return view_of_lists(data, false, dtype, shape, strides);
}

TensorView make_view(const void* data, Dtype dtype, std::initializer_list<std::int64_t> shape,
                     std::initializer_list<std::int64_t> strides) noexcept {
  return view_of_lists(data, true, dtype, shape, strides);
}

std::string to_string(const TensorView& view) {
  if (!view.present()) return "absent";
  std::string out = to_string(view.dtype);
  if (view.rank < 0 || view.rank > kMaxRank) return out + concat(" of rank ", view.rank);
  out += '[';
  append_list(out, view.shape, view.rank);
  out += "] strides (";
  append_list(out, view.strides, view.rank);
  return out + ")";
}

}  // namespace regard
