#include "distributed/rows.h"

#include <cstring>

namespace regard::distributed {

Tensor::Tensor(Dtype dtype, std::vector<std::int64_t> shape) {
  constexpr std::size_t kAlign = 64;
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  memory_.resize(static_cast<std::size_t>(elements) * static_cast<std::size_t>(size_of(dtype)) +
                 kAlign);
  const auto misplaced = reinterpret_cast<std::uintptr_t>(memory_.data()) % kAlign;
  view_.data = memory_.data() + (kAlign - misplaced) % kAlign;
  view_.dtype = dtype;
  view_.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (int x = view_.rank - 1; x >= 0; --x) {
    view_.shape[x] = shape[static_cast<std::size_t>(x)];
    view_.strides[x] = stride;
    stride *= view_.shape[x] > 0 ? view_.shape[x] : 1;
  }
}

namespace {

TensorView part_of(TensorView view, int dim, std::int64_t begin, std::int64_t count) noexcept {
  if (count > 0 && view.data != nullptr) {
    view.data =
        static_cast<std::byte*>(view.data) + begin * view.strides[dim] * size_of(view.dtype);
  }
  view.shape[dim] = count;
  return view;
}

/// f(address of the first element, elements that lie together), in logical order.
template <class F>
void for_each_run(const TensorView& view, F&& f) {
  if (view.num_elements() == 0) return;
  const bool has_columns = view.rank == 4 && view.strides[3] == 1;
  const std::int64_t run = has_columns ? view.shape[3] : 1;
  const std::int64_t columns = view.rank == 4 ? view.shape[3] / run : 1;
  const std::int64_t column = view.rank == 4 ? view.strides[3] : 0;
  auto* const data = static_cast<std::byte*>(view.data);
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t s = 0; s < view.shape[2]; ++s) {
        for (std::int64_t d = 0; d < columns; ++d) {
          f(data + (b * view.strides[0] + h * view.strides[1] + s * view.strides[2] + d * column) *
                       size_of(view.dtype),
            run);
        }
      }
    }
  }
}

template <class T>
const std::byte* add_as(const TensorView& view, const std::byte* from) noexcept {
  for_each_run(view, [&](std::byte* at, std::int64_t run) {
    for (std::int64_t x = 0; x < run; ++x) {
      T sum, more;
      std::memcpy(&sum, at + x * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
      std::memcpy(&more, from, sizeof(T));
      sum += more;
      std::memcpy(at + x * static_cast<std::int64_t>(sizeof(T)), &sum, sizeof(T));
      from += sizeof(T);
    }
  });
  return from;
}

}  // namespace

TensorView heads_of(TensorView view, std::int64_t begin, std::int64_t count) noexcept {
  return part_of(view, 1, begin, count);
}
TensorView rows_of(TensorView view, std::int64_t begin, std::int64_t count) noexcept {
  return part_of(view, 2, begin, count);
}

std::byte* pack(const TensorView& view, std::byte* to) noexcept {
  for_each_run(view, [&](const std::byte* at, std::int64_t run) {
    const auto bytes = static_cast<std::size_t>(run * size_of(view.dtype));
    std::memcpy(to, at, bytes);
    to += bytes;
  });
  return to;
}

const std::byte* unpack(const TensorView& view, const std::byte* from) noexcept {
  for_each_run(view, [&](std::byte* at, std::int64_t run) {
    const auto bytes = static_cast<std::size_t>(run * size_of(view.dtype));
    std::memcpy(at, from, bytes);
    from += bytes;
  });
  return from;
}

const std::byte* add(const TensorView& view, const std::byte* from) noexcept {
  return view.dtype == Dtype::kF64 ? add_as<double>(view, from) : add_as<float>(view, from);
}

std::int64_t bytes_of(const TensorView& view) noexcept {
  return view.num_elements() * size_of(view.dtype);
}

Status convert(const Execution& execution, const TensorView& from, const TensorView& to) {
  if (from.num_elements() == 0) return {};
  // One partial result that sees all: its weight is exactly 1.
  static const double kZero = 0.0;
  TensorView lse = make_view(&kZero, Dtype::kF64, {1, 1, 1});
  for (int x = 0; x < 3; ++x) {
    lse.shape[x] = from.shape[x];
    lse.strides[x] = 0;
  }
  return merge_states(execution.context, {{from, lse}}, to, {}, execution.launch);
}

}  // namespace regard::distributed
