#include "distributed/rows.h"

#include <array>
#include <cstring>

#include "distributed/buffers.h"

namespace regard::distributed {

Tensor::Tensor(Dtype dtype, std::vector<std::int64_t> shape) : Tensor(uninitialized(dtype, shape)) {
  std::memset(view_.data, 0, static_cast<std::size_t>(bytes_of(view_)));
}

Tensor Tensor::uninitialized(Dtype dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kAlign = 64;
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  Tensor made;
  made.memory_ = make_buffer(
      static_cast<std::size_t>(elements) * static_cast<std::size_t>(size_of(dtype)) + kAlign);
  const auto misplaced = reinterpret_cast<std::uintptr_t>(made.memory_.get()) % kAlign;
  TensorView& view = made.view_;
  view.data = made.memory_.get() + (kAlign - misplaced) % kAlign;
  view.dtype = dtype;
  view.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (int x = view.rank - 1; x >= 0; --x) {
    view.shape[x] = shape[static_cast<std::size_t>(x)];
    view.strides[x] = stride;
    stride *= view.shape[x] > 0 ? view.shape[x] : 1;
  }
  return made;
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

void copy_elements(const TensorView& from, const TensorView& to) noexcept {
  if (from.num_elements() == 0) return;
  const int last = from.rank - 1;
  const std::int64_t size = size_of(from.dtype), rows = from.rank == 4 ? from.shape[2] : 1;
  const bool is_dense = from.strides[last] == 1 && to.strides[last] == 1;
  const std::int64_t run = is_dense ? from.shape[last] : 1;
  const auto place = [&](const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t s) {
    const std::int64_t row = from.rank == 4 ? s * view.strides[2] : 0;
    return static_cast<std::byte*>(view.data) +
           (b * view.strides[0] + h * view.strides[1] + row) * size;
  };
  for (std::int64_t b = 0; b < from.shape[0]; ++b) {
    for (std::int64_t h = 0; h < from.shape[1]; ++h) {
      for (std::int64_t s = 0; s < rows; ++s) {
        const std::byte* const source = place(from, b, h, s);
        std::byte* const target = place(to, b, h, s);
        for (std::int64_t d = 0; d < from.shape[last]; d += run) {
          std::memcpy(target + d * to.strides[last] * size, source + d * from.strides[last] * size,
                      static_cast<std::size_t>(run * size));
        }
      }
    }
  }
}

const std::byte* add(const TensorView& view, const std::byte* from) noexcept {
  return view.dtype == Dtype::kF64 ? add_as<double>(view, from) : add_as<float>(view, from);
}

std::int64_t bytes_of(const TensorView& view) noexcept {
  return view.num_elements() * size_of(view.dtype);
}

Status convert(const Execution& execution, const TensorView& from, const TensorView& to) {
  if (from.num_elements() == 0) return {};
  if (from.dtype == to.dtype) {
    copy_elements(from, to);
    return {};
  }
  // One partial result that sees all: its weight is exactly 1.
  static const double kZero = 0.0;
  TensorView lse = make_view(&kZero, Dtype::kF64, {1, 1, 1});
  for (int x = 0; x < 3; ++x) {
    lse.shape[x] = from.shape[x];
    lse.strides[x] = 0;
  }
  return merge_states(execution.context, {{from, lse}}, to, {}, execution.launch);
}

Status dequantize(const Execution& execution, const TensorView& from, const TensorView& descale,
                  const TensorView& to) {
  const float factor = descale.present() ? *static_cast<const float*>(descale.data) : 1.0F;
  if (is_f8(from.dtype)) {
    std::array<float, 256> numbers;
    for (std::size_t x = 0; x < numbers.size(); ++x) {
      const auto code = static_cast<std::uint8_t>(x);
      numbers[x] =
          factor * (from.dtype == Dtype::kF8E4M3 ? f32_from_f8e4m3(code) : f32_from_f8e5m2(code));
    }
    auto* next = static_cast<float*>(to.data);
    for_each_run(from, [&](const std::byte* at, std::int64_t run) {
      for (std::int64_t x = 0; x < run; ++x) *next++ = numbers[std::to_integer<std::size_t>(at[x])];
    });
    return {};
  }
  if (Status s = convert(execution, from, to); !s.ok() || !descale.present()) return s;
  for (std::int64_t x = 0; x < to.num_elements(); ++x) {
    if (to.dtype == Dtype::kF64) {
      static_cast<double*>(to.data)[x] *= double{factor};
    } else {
      static_cast<float*>(to.data)[x] *= factor;
    }
  }
  return {};
}

}  // namespace regard::distributed
