#include "regard/tensor.h"

#include <algorithm>

#include "base/checked.h"
#include "base/message.h"

namespace regard {
namespace {

// The list's length is the rank even where a view cannot hold it: describe names it, and a
// negative rank keeps every loop over extents empty until then.
TensorView view_of(const void* data, Dtype dtype,
                   std::initializer_list<std::int64_t> shape) noexcept {
  TensorView view;
  view.data = const_cast<void*>(data);  // whether it is written is the field's business
  view.dtype = dtype;
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    view.rank = -static_cast<std::int32_t>(shape.size());
    return view;
  }
  view.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
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

TensorView make_view(const void* data, Dtype dtype,
                     std::initializer_list<std::int64_t> shape) noexcept {
  TensorView view = view_of(data, dtype, shape);
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.strides[i] = stride;
    stride = saturating_mul(stride, std::max<std::int64_t>(view.shape[i], 1));
  }
  return view;
}

TensorView make_view(const void* data, Dtype dtype, std::initializer_list<std::int64_t> shape,
                     std::initializer_list<std::int64_t> strides) noexcept {
  TensorView view = view_of(data, dtype, shape);
  if (strides.size() != shape.size()) view.rank = -kMaxRank - 1;
  if (view.rank > 0) std::copy(strides.begin(), strides.end(), view.strides);
  return view;
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
