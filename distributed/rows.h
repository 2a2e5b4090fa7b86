#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "regard/context.h"
#include "regard/request.h"

// Tensors [B,H,S,D] and [B,H,S] of a call's own memory, parts of views, and their bytes in
// messages.

namespace regard::distributed {

/// Dense memory and its view; 64-byte aligned.
class Tensor {
 public:
  Tensor() = default;
  /// Zeros. Three extents: [B,H,S].
  Tensor(Dtype dtype, std::vector<std::int64_t> shape);
  /// Of any contents, for what writes every element: zeros first are a pass over memory more.
  static Tensor uninitialized(Dtype dtype, const std::vector<std::int64_t>& shape);
  Tensor(Tensor&&) = default;  // the view points into memory that moves along
  Tensor& operator=(Tensor&&) = default;
  const TensorView& view() const noexcept { return view_; }
  /// Of the memory: for messages.
  const std::shared_ptr<std::byte[]>& owner() const noexcept { return memory_; }

 private:
  std::shared_ptr<std::byte[]> memory_;
  TensorView view_;
};

/// Part of a [B,H,S,D] or [B,H,S] view.
TensorView heads_of(TensorView view, std::int64_t begin, std::int64_t count) noexcept;
TensorView rows_of(TensorView view, std::int64_t begin, std::int64_t count) noexcept;

/// The view's elements in logical order, and back. They return the byte behind.
std::byte* pack(const TensorView& view, std::byte* to) noexcept;
const std::byte* unpack(const TensorView& view, const std::byte* from) noexcept;
/// Between views of one shape and type.
void copy_elements(const TensorView& from, const TensorView& to) noexcept;
/// Adds f32 or f64 elements, of the view's type.
const std::byte* add(const TensorView& view, const std::byte* from) noexcept;
std::int64_t bytes_of(const TensorView& view) noexcept;

/// What the parts of a call run on.
struct Execution {
  Execution(Context& c, const Launch& l = {}) : context(c), launch(l) {}
  Context& context;
  Launch launch;
};

/// Copies between types, each element rounded once; not from 8-bit floats to others.
Status convert(const Execution& execution, const TensorView& from, const TensorView& to);
/// The numbers that `from` stands for, 8-bit floats too, as dense f32 or f64: its elements times
/// `descale`, f32 [1], where that is present.
Status dequantize(const Execution& execution, const TensorView& from, const TensorView& descale,
                  const TensorView& to);

}  // namespace regard::distributed
