#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "regard/status.h"
#include "tools/files/mapped_bytes.h"

// GGUF files, versions 2 and 3: metadata and tensors of a model, read through a mapping with every
// bound checked. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

namespace llm {

/// Element formats by their numbers in files; those that regard-llm reads.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30
};
const char* to_string(GgmlType type) noexcept;  // "Q4_1"

/// A tensor inside a file; `data` points into the bytes that were parsed.
struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> shape;  // outermost first: [rows, columns]; files have the reverse
  std::span<const std::byte> data;

  std::int64_t rows() const noexcept;     // product of all extents but the last
  std::int64_t columns() const noexcept;  // the last extent
};

using GgufValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

/// What a file says. Getters name the key in their message: missing, of another type, out of range.
class GgufContents {
 public:
  /// Parses a whole file that lies in memory. Refuses truncated files, sizes that overflow, tensors
  /// outside the file or of unknown types, duplicate names, and arrays of arrays.
  static regard::Expected<GgufContents> parse(std::span<const std::byte> file);

  bool has(std::string_view key) const noexcept;
  regard::Expected<std::int64_t> integer(std::string_view key) const;  // any integer type
  regard::Expected<double> number(std::string_view key) const;         // any number
  regard::Expected<bool> flag(std::string_view key) const;
  regard::Expected<std::string_view> text(std::string_view key) const;
  regard::Expected<std::span<const std::string>> texts(std::string_view key) const;
  regard::Expected<std::span<const std::int64_t>> integers(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const noexcept { return tensors_; }
  const GgufTensor* find(std::string_view name) const noexcept;

 private:
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// A file mapped into memory. Its bytes stay valid while it lives, also when the path is replaced.
class GgufFile {
 public:
  static regard::Expected<GgufFile> open(const std::string& path);

  const GgufContents& contents() const noexcept { return contents_; }
  std::size_t size() const noexcept { return bytes_.bytes().size(); }

 private:
  GgufFile(regard::files::MappedBytes bytes, GgufContents contents)
      : bytes_(std::move(bytes)), contents_(std::move(contents)) {}
  regard::files::MappedBytes bytes_;
  GgufContents contents_;
};

/// Rows [first, first + rows) of a tensor as f32, row-major. The caller names rows that exist.
void dequantize(const GgufTensor& tensor, std::int64_t first, std::int64_t rows, float* out);

}  // namespace llm
