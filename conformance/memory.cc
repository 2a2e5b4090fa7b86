#include "conformance/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "regard/params.h"

namespace regard::conformance {
namespace {

constexpr std::size_t kCanaryBytes = 256;
constexpr std::size_t kMaxAlign = 64;
constexpr unsigned char kFresh = 0xff;

/// The canary of an address's last bits: neighbouring bytes differ, so that a shifted copy shows.
unsigned char canary(std::size_t n) { return static_cast<unsigned char>(0x5a ^ (n * 7)); }

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

Block::Block(std::size_t bytes, int align_log2, Guard guard)
    : bytes_(bytes), pages_(guard == Guard::kLowerPage || guard == Guard::kUpperPage) {
  const std::size_t align = std::size_t{1} << align_log2;
  if (!pages_) {
    mapped_bytes_ = bytes + 2 * kCanaryBytes + kMaxAlign;
    mapped_ =
        static_cast<unsigned char*>(::operator new (mapped_bytes_, std::align_val_t{kMaxAlign}));
    usable_ = mapped_;
    usable_bytes_ = mapped_bytes_;
    const bool best = align == kMaxAlign || (guard == Guard::kNone && align_log2 == kMaxAlignLog2);
    data_ = mapped_ + kCanaryBytes + (best ? 0 : align);  // no better than requested
  } else {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    usable_bytes_ = std::max(round_up(bytes, page), page);
    mapped_bytes_ = usable_bytes_ + 2 * page;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    mapped_ = static_cast<unsigned char*>(mapped);
    usable_ = mapped_ + page;
    if (mprotect(usable_, usable_bytes_, PROT_READ | PROT_WRITE) != 0) {
      munmap(mapped_, mapped_bytes_);
      throw std::bad_alloc();
    }
    const std::size_t slack = (usable_bytes_ - bytes) / align * align;
    data_ = usable_ + (guard == Guard::kUpperPage ? slack : 0);
  }
  const auto before = static_cast<std::size_t>(data_ - usable_);
  for (std::size_t n = 0; n < before; ++n) usable_[n] = canary(n);
  for (std::size_t n = before + bytes_; n < usable_bytes_; ++n) usable_[n] = canary(n);
  fill(kFresh);
}

Block::~Block() {
  if (mapped_ == nullptr) return;
  if (pages_) {
    munmap(mapped_, mapped_bytes_);
  } else {
    ::operator delete (mapped_, std::align_val_t{kMaxAlign});
  }
}

Block::Block(Block&& other) noexcept { *this = std::move(other); }

Block& Block::operator=(Block&& other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(usable_, other.usable_);
  std::swap(usable_bytes_, other.usable_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(pages_, other.pages_);
  return *this;
}

bool Block::intact() const noexcept {
  const auto before = static_cast<std::size_t>(data_ - usable_);
  for (std::size_t n = 0; n < usable_bytes_; ++n) {
    if (n == before) n += bytes_;
    if (n < usable_bytes_ && usable_[n] != canary(n)) return false;
  }
  return true;
}

void Block::fill(unsigned char byte) noexcept {
  if (bytes_ != 0) std::memset(data_, byte, bytes_);
}

}  // namespace regard::conformance
