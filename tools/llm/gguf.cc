#include "tools/llm/gguf.h"

#include <algorithm>
#include <utility>

#include "tools/llm/byte_reader.h"
#include "tools/llm/ggml_types.h"
#include "tools/llm/gguf_metadata.h"
#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;

constexpr std::uint32_t kMagic = 0x46554747;                  // "GGUF"
constexpr std::uint64_t kMaxNameBytes = 64;                   // as the format says
constexpr std::uint32_t kMaxRank = 4;                         // likewise
constexpr std::uint64_t kMinKeyBytes = 8 + 4 + 1;             // an empty key and one byte
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // an empty name and one extent

/// A tensor as the file states it; offsets count from the start of the data.
struct RawTensor {
  GgufTensor tensor;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

Status read_shape(ByteReader& reader, const Item& item, GgufTensor& tensor) {
  const Expected<std::uint32_t> rank = reader.read<std::uint32_t>(item);
  if (!rank) return rank.status();
  if (*rank == 0 || *rank > kMaxRank) {
    return invalid("gguf", item.text() + " has " + std::to_string(*rank) +
                               " extents, expected 1 to " + std::to_string(kMaxRank));
  }
  tensor.shape.resize(*rank);
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {  // files state the innermost first
    const Expected<std::int64_t> extent = reader.read<std::int64_t>(item);
    if (!extent) return extent.status();
    if (*extent <= 0) {
      return invalid("gguf", item.text() + " has an extent of " + std::to_string(*extent) +
                                 ", expected 1 to 2^63 - 1");
    }
    tensor.shape[i] = *extent;
  }
  return {};
}

Expected<std::uint64_t> size_of_tensor(const GgufTensor& tensor) {
  const BlockFormat block = block_format(tensor.type);
  const std::string what = "tensor " + quote(tensor.name) + " of " + to_string(tensor.type) +
                           " has shape " + shape_text(tensor.shape);
  if (tensor.columns() % block.elements != 0) {
    return invalid("gguf", what + ", expected rows of a multiple of " +
                               std::to_string(block.elements) + " elements");
  }
  // Extents are counted in elements, because the model's code multiplies them as well.
  std::int64_t elements = 1;
  bool overflow = false;
  for (const std::int64_t extent : tensor.shape) {
    overflow = overflow || __builtin_mul_overflow(elements, extent, &elements);
  }
  std::int64_t bytes = 0;
  overflow = overflow || __builtin_mul_overflow(elements / block.elements, block.bytes, &bytes);
  if (overflow) {
    return Status(StatusCode::kOverflow, "[gguf] " + what + ", expected at most 2^63 - 1 bytes");
  }
  return static_cast<std::uint64_t>(bytes);
}

Status read_tensor(ByteReader& reader, const Item& counted, RawTensor& raw) {
  const Expected<std::string_view> name = reader.text(counted, kMaxNameBytes);
  if (!name) return name.status();
  GgufTensor& tensor = raw.tensor;
  tensor.name = *name;
  const Item item = Item::named("tensor", *name);
  if (Status status = read_shape(reader, item, tensor); !status) return status;
  const Expected<std::uint32_t> number = reader.read<std::uint32_t>(item);
  if (!number) return number.status();
  const std::optional<GgmlType> type = known_type(*number);
  if (!type) {
    return invalid(
        "gguf", item.text() + " has " + type_text(*number) + ", expected one of " + known_types());
  }
  tensor.type = *type;
  const Expected<std::uint64_t> offset = reader.read<std::uint64_t>(item);
  if (!offset) return offset.status();
  raw.offset = *offset;
  const Expected<std::uint64_t> bytes = size_of_tensor(tensor);
  if (!bytes) return bytes.status();
  raw.bytes = *bytes;
  return {};
}

/// Checks that a tensor lies in the data, and fills in where.
Status place(RawTensor& raw, std::span<const std::byte> data, std::uint64_t alignment) {
  const std::string what = "tensor " + quote(raw.tensor.name) + " starts at offset " +
                           std::to_string(raw.offset) + " of the data";
  if (raw.offset % alignment != 0) {
    return invalid("gguf", what + ", expected a multiple of " + std::to_string(alignment) +
                               " (general.alignment)");
  }
  if (raw.offset > data.size() || raw.bytes > data.size() - raw.offset) {
    return invalid("gguf", what + " and has " + std::to_string(raw.bytes) +
                               " bytes, expected its end within the " +
                               std::to_string(data.size()) + " bytes of data in the file");
  }
  raw.tensor.data = data.subspan(raw.offset, raw.bytes);
  return {};
}

Status check_apart(const std::vector<RawTensor>& tensors) {
  std::vector<const RawTensor*> sorted;
  sorted.reserve(tensors.size());
  for (const RawTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const RawTensor* a, const RawTensor* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const RawTensor& before = *sorted[i - 1];
    if (before.offset + before.bytes > sorted[i]->offset) {
      return invalid("gguf", "tensor " + quote(sorted[i]->tensor.name) + " overlaps tensor " +
                                 quote(before.tensor.name));
    }
  }
  return {};
}

struct Header {
  std::uint64_t tensors = 0;
  std::uint64_t keys = 0;
};

Expected<Header> read_header(ByteReader& reader) {
  const Item item = Item::named("the header", {});
  const Expected<std::uint32_t> magic = reader.read<std::uint32_t>(item);
  if (!magic) return magic.status();
  if (*magic != kMagic) return invalid("gguf", "the file does not begin with 'GGUF'");
  const Expected<std::uint32_t> version = reader.read<std::uint32_t>(item);
  if (!version) return version.status();
  if (*version != 2 && *version != 3) {
    const bool swapped = *version != 0 && (*version & 0xffff) == 0;
    return invalid(
        "gguf", swapped ? "the file is big-endian, expected little-endian"
                        : "the file has version " + std::to_string(*version) + ", expected 2 or 3");
  }
  const Expected<std::uint64_t> tensors = reader.count(item, "tensors", kMinTensorBytes);
  if (!tensors) return tensors.status();
  const Expected<std::uint64_t> keys = reader.count(item, "keys", kMinKeyBytes);
  if (!keys) return keys.status();
  return Header{*tensors, *keys};
}

}  // namespace

std::int64_t GgufTensor::rows() const noexcept {
  std::int64_t product = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

std::int64_t GgufTensor::columns() const noexcept { return shape.empty() ? 0 : shape.back(); }

Expected<GgufContents> GgufContents::parse(std::span<const std::byte> file) {
  ByteReader reader(file);
  const Expected<Header> header = read_header(reader);
  if (!header) return header.status();
  GgufContents contents;
  if (Status status = read_metadata(reader, header->keys, contents.values_); !status) {
    return status;
  }
  const Expected<std::uint64_t> alignment = alignment_of(contents.values_);
  if (!alignment) return alignment.status();

  std::vector<RawTensor> tensors;
  for (std::uint64_t i = 0; i < header->tensors; ++i) {
    RawTensor& raw = tensors.emplace_back();
    const Item counted = Item::counted("tensor", i, header->tensors);
    if (Status status = read_tensor(reader, counted, raw); !status) return status;
    if (!contents.by_name_.emplace(raw.tensor.name, i).second) {
      return invalid("gguf", "the tensor " + quote(raw.tensor.name) + " comes twice");
    }
  }
  const std::uint64_t padding = (*alignment - reader.position() % *alignment) % *alignment;
  const auto data = padding > reader.left() ? std::span<const std::byte>()
                                            : file.subspan(reader.position() + padding);
  for (RawTensor& raw : tensors) {
    if (Status status = place(raw, data, *alignment); !status) return status;
  }
  if (Status status = check_apart(tensors); !status) return status;
  contents.tensors_.reserve(tensors.size());
  for (RawTensor& raw : tensors) contents.tensors_.push_back(std::move(raw.tensor));
  return contents;
}

}  // namespace llm
