#pragma once

#include <cstddef>

namespace regard {

inline constexpr std::size_t kWorkspaceAlignment = 64;  // a cache line, and an AVX-512 vector

/// Memory aligned to kWorkspaceAlignment that never throws; its contents are arbitrary.
class AlignedBuffer {
 public:
  AlignedBuffer() noexcept = default;
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  /// Holds at least `bytes` afterwards, keeping a larger block; contents are lost when it grows.
  /// False when memory cannot be had: the buffer is empty then.
  bool reserve(std::size_t bytes) noexcept;
  void reset() noexcept;

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace regard
