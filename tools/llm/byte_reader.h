#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "regard/status.h"

namespace llm {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as they lie");

/// What is being read, put into words only where it is missing: "key 3 of 10", "element 7 of key
/// 'x'".
class Item {
 public:
  static Item named(const char* kind, std::string_view name) { return {kind, name, -1, 0}; }
  static Item counted(const char* kind, std::uint64_t index, std::uint64_t count) {
    return {kind, {}, static_cast<std::int64_t>(index), count};
  }
  Item element(std::uint64_t index) const {
    Item copy = *this;
    copy.index_ = static_cast<std::int64_t>(index);
    return copy;
  }
  std::string text() const;

 private:
  Item(const char* kind, std::string_view name, std::int64_t index, std::uint64_t count)
      : kind_(kind), name_(name), index_(index), count_(count) {}

  const char* kind_;       // "key", "tensor"
  std::string_view name_;  // empty: counted
  std::int64_t index_;     // -1: the item itself
  std::uint64_t count_;
};

/// Reads values one after the other; a value past the end is an error that names the item.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  std::size_t position() const noexcept { return position_; }
  std::size_t left() const noexcept { return bytes_.size() - position_; }

  template <class T>
  requires(std::integral<T> || std::floating_point<T>) regard::Expected<T> read(const Item& item) {
    if (left() < sizeof(T)) return ends_inside(item);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  /// 64 bits of length, then so many bytes, which must be in the file and at most `max`.
  regard::Expected<std::string_view> text(const Item& item, std::uint64_t max = UINT64_MAX);

  /// A count of things of at least `bytes_each`: more than the file has room for is an error.
  regard::Expected<std::uint64_t> count(const Item& item, const char* what,
                                        std::uint64_t bytes_each);

 private:
  regard::Status ends_inside(const Item& item) const;

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

}  // namespace llm
