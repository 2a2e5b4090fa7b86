#include "base/aligned_buffer.h"

#include <new>
#include <utility>

namespace regard {

AlignedBuffer::~AlignedBuffer() { reset(); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

bool AlignedBuffer::reserve(std::size_t bytes) noexcept {
  if (bytes <= bytes_) return true;
  reset();
  data_ = ::operator new(bytes, std::align_val_t{kWorkspaceAlignment}, std::nothrow);
  bytes_ = data_ != nullptr ? bytes : 0;
  return data_ != nullptr;
}

void AlignedBuffer::reset() noexcept {
  ::operator delete(data_, std::align_val_t{kWorkspaceAlignment});
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace regard
