#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "regard/status.h"
#include "regard/tensor.h"

namespace regard::cli {

/// Memory aligned to 64 bytes, or an error where there is none. Filled with 0xff, which is NaN in
/// every float type: what a kernel forgets to write shows.
class OwnedBytes {
 public:
  static Expected<OwnedBytes> make(std::int64_t bytes, const char* what);
  void* data() const noexcept { return data_.get(); }
  std::int64_t size() const noexcept { return size_; }

 private:
  struct Free {
    void operator()(void* pointer) const noexcept { std::free(pointer); }
  };
  std::unique_ptr<void, Free> data_;
  std::int64_t size_ = 0;
};

/// A dense row-major tensor of our own.
struct OwnedTensor {
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  OwnedBytes bytes;

  static Expected<OwnedTensor> make(Dtype dtype, std::vector<std::int64_t> shape, const char* what);
  TensorView view() const noexcept;
};

/// The same elements with dimensions 1 and 2 exchanged: [B,S,H,D] in memory seen as [B,H,S,D].
TensorView exchange_heads_and_rows(TensorView view) noexcept;

}  // namespace regard::cli
