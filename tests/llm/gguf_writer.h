#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tools/llm/gguf.h"

// Writes GGUF files for tests, by the format's description alone.

namespace llm::test {

/// Bytes of a file, put one after the other: what hostile files are made of, too.
class Bytes {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Bytes& put(T value) {
    return raw(std::as_bytes(std::span(&value, 1)));
  }
  Bytes& raw(std::span<const std::byte> bytes);
  Bytes& text(std::string_view text);  // its length in 64 bits, then the text
  Bytes& pad_to(std::size_t multiple);

  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  std::size_t size() const noexcept { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

/// The number that files have for the type of a value.
template <class T>
constexpr std::uint32_t value_type() {
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::string>) return 8;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, double>) return 12;
  if constexpr (std::is_integral_v<T>) {
    constexpr std::uint32_t kSigned = std::is_signed_v<T> ? 1 : 0;
    if constexpr (sizeof(T) == 8) return 10 + kSigned;
    if constexpr (sizeof(T) == 4) return 4 + kSigned;
    if constexpr (sizeof(T) == 2) return 2 + kSigned;
    if constexpr (sizeof(T) == 1) return 0 + kSigned;
  }
}

/// A file: metadata of any type, then tensors.
class GgufWriter {
 public:
  static constexpr std::uint32_t kArray = 9;

  explicit GgufWriter(std::uint32_t version = 3) : version_(version) {}

  template <class T>
  requires std::is_arithmetic_v<T> GgufWriter& set(std::string_view key, T value) {
    return begin(key, value_type<T>(), [&] { keys_.put(value); });
  }
  GgufWriter& set(std::string_view key, std::string_view value) {
    return begin(key, value_type<std::string>(), [&] { keys_.text(value); });
  }
  GgufWriter& set(std::string_view key, const char* value) {
    return set(key, std::string_view(value));
  }
  template <class T>
  GgufWriter& set(std::string_view key, const std::vector<T>& values) {
    return begin(key, kArray, [&] {
      keys_.put(value_type<T>()).put(std::uint64_t{values.size()});
      for (const T& value : values) {
        if constexpr (std::is_same_v<T, std::string>) {
          keys_.text(value);
        } else {
          keys_.put(static_cast<T>(value));
        }
      }
    });
  }

  /// A tensor of bytes as they lie in files; `shape` outermost first.
  GgufWriter& tensor(std::string_view name, const std::vector<std::int64_t>& shape, GgmlType type,
                     std::vector<std::byte> data);
  /// A tensor of values, converted to F32, F16, BF16, Q8_0 or Q4_1.
  GgufWriter& tensor(std::string_view name, const std::vector<std::int64_t>& shape, GgmlType type,
                     std::span<const float> values);

  /// Where the data starts; sets general.alignment as well.
  GgufWriter& align(std::uint32_t alignment);

  /// The file. It ends with the last tensor's last byte.
  std::vector<std::byte> bytes() const;
  void save(const std::filesystem::path& path) const;

 private:
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    GgmlType type;
    std::vector<std::byte> data;
  };

  template <class F>
  GgufWriter& begin(std::string_view key, std::uint32_t type, F&& put_value) {
    keys_.text(key).put(type);
    put_value();
    ++key_count_;
    return *this;
  }

  std::uint32_t version_;
  std::uint32_t alignment_ = 32;
  std::uint64_t key_count_ = 0;
  Bytes keys_;
  std::vector<Tensor> tensors_;
};

/// The nearest half, as its bits.
std::uint16_t half_bits(float value);

/// Values as they lie in files, in F32, F16, BF16, Q8_0 or Q4_1.
std::vector<std::byte> encoded(GgmlType type, std::span<const float> values);

/// A tokenizer of the pre-tokeniser smollm: tokens 0 to 255 are the bytes, then come those of
/// `merges` ("Ġ t"), each of two tokens before it, then special ones, the first being the start of
/// a text, the last its end.
void add_tokenizer(GgufWriter& writer, const std::vector<std::string>& merges,
                   const std::vector<std::string>& specials);

}  // namespace llm::test
