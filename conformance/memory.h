#pragma once

#include <cstddef>
#include <cstdint>

namespace regard::conformance {

/// What lies round a block of memory.
enum class Guard : std::uint8_t {
  kNone,       // and the alignment of frameworks, 64 bytes, where a case has none below 16
  kCanaries,   // 256 bytes of a pattern on either side, checked afterwards
  kLowerPage,  // an unreadable page ends where the block begins
  kUpperPage   // an unreadable page begins where the block ends (less the alignment's slack)
};

struct MemoryRange {
  unsigned char* data;
  std::size_t size;
};

/// Owned memory that notices access outside of it. Fresh bytes are 0xff: NaN in every float dtype.
class Block {
 public:
  Block() = default;
  /// `align_log2`: the start is aligned to 2^align_log2; with canaries, and below 2^4, to no more.
  Block(std::size_t bytes, int align_log2, Guard guard);
  ~Block();
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  unsigned char* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  /// True while the bytes round the block are what they were.
  bool intact() const noexcept;
  void fill(unsigned char byte) noexcept;
  /// The block and what lies round it, down to 64 bytes' alignment: what another memory must hold
  /// for the block's alignment and its guards to be the same there.
  MemoryRange range() const noexcept { return {usable_, usable_bytes_}; }

 private:
  unsigned char* mapped_ = nullptr;  // everything that was had
  std::size_t mapped_bytes_ = 0;
  unsigned char* usable_ = nullptr;  // between the guards
  std::size_t usable_bytes_ = 0;
  unsigned char* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool pages_ = false;
};

}  // namespace regard::conformance
