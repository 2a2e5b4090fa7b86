#include "tests/llm/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <stdexcept>

#include "tools/llm/byte_level.h"
#include "tools/llm/utf8.h"

namespace llm::test {
namespace {

void put_q8_0(Bytes& out, std::span<const float> block) {
  float max = 0;
  for (const float x : block) max = std::max(max, std::abs(x));
  const float scale = max / 127;
  out.put(half_bits(scale));
  for (const float x : block) {
    out.put(static_cast<std::int8_t>(scale == 0 ? 0 : std::lround(x / scale)));
  }
}

void put_q4_1(Bytes& out, std::span<const float> block) {
  const auto [min, max] = std::minmax_element(block.begin(), block.end());
  const float scale = (*max - *min) / 15;
  out.put(half_bits(scale)).put(half_bits(*min));
  const auto nibble = [&](float x) {
    const long q = scale == 0 ? 0 : std::lround((x - *min) / scale);
    return static_cast<unsigned>(std::clamp(q, 0L, 15L));
  };
  for (std::size_t i = 0; i < 16; ++i) {
    out.put(static_cast<std::uint8_t>(nibble(block[i]) | nibble(block[i + 16]) << 4));
  }
}

}  // namespace

Bytes& Bytes::raw(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

Bytes& Bytes::text(std::string_view text) {
  return put(std::uint64_t{text.size()}).raw(std::as_bytes(std::span(text)));
}

Bytes& Bytes::pad_to(std::size_t multiple) {
  bytes_.resize((bytes_.size() + multiple - 1) / multiple * multiple);
  return *this;
}

std::uint16_t half_bits(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::abs(value);
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + fraction));
}

std::vector<std::byte> encoded(GgmlType type, std::span<const float> values) {
  Bytes out;
  const auto blocks = [&](auto&& put_block) {
    if (values.size() % 32 != 0) throw std::invalid_argument("values are no blocks of 32");
    for (std::size_t i = 0; i < values.size(); i += 32) put_block(out, values.subspan(i, 32));
  };
  switch (type) {
    case GgmlType::kF32: out.raw(std::as_bytes(values)); break;
    case GgmlType::kF16:
      for (const float x : values) out.put(half_bits(x));
      break;
    case GgmlType::kBF16:
      for (const float x : values) {
        const auto bits = std::bit_cast<std::uint32_t>(x);
        out.put(static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
      }
      break;
    case GgmlType::kQ8_0: blocks(put_q8_0); break;
    case GgmlType::kQ4_1: blocks(put_q4_1); break;
    default: throw std::invalid_argument("the writer does not convert to this type");
  }
  return out.bytes();
}

GgufWriter& GgufWriter::tensor(std::string_view name, const std::vector<std::int64_t>& shape,
                               GgmlType type, std::vector<std::byte> data) {
  tensors_.push_back({std::string(name), shape, type, std::move(data)});
  return *this;
}

GgufWriter& GgufWriter::tensor(std::string_view name, const std::vector<std::int64_t>& shape,
                               GgmlType type, std::span<const float> values) {
  return tensor(name, shape, type, encoded(type, values));
}

GgufWriter& GgufWriter::align(std::uint32_t alignment) {
  alignment_ = alignment;
  return set("general.alignment", alignment);
}

std::vector<std::byte> GgufWriter::bytes() const {
  Bytes file;
  file.raw(std::as_bytes(std::span(std::string_view("GGUF")))).put(version_);
  file.put(std::uint64_t{tensors_.size()}).put(key_count_).raw(keys_.bytes());
  Bytes data;
  for (const Tensor& tensor : tensors_) {
    data.pad_to(alignment_);
    file.text(tensor.name).put(static_cast<std::uint32_t>(tensor.shape.size()));
    for (std::size_t i = tensor.shape.size(); i-- > 0;) file.put(tensor.shape[i]);
    file.put(static_cast<std::uint32_t>(tensor.type)).put(std::uint64_t{data.size()});
    data.raw(tensor.data);
  }
  if (!tensors_.empty()) file.pad_to(alignment_).raw(data.bytes());
  return file.bytes();
}

void GgufWriter::save(const std::filesystem::path& path) const {
  const std::vector<std::byte> all = bytes();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(all.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

void add_tokenizer(GgufWriter& writer, const std::vector<std::string>& merges,
                   const std::vector<std::string>& specials) {
  std::vector<std::string> tokens;
  for (const char32_t code : byte_spellings()) append_utf8(tokens.emplace_back(), code);
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    const std::string merged = merge.substr(0, space) + merge.substr(space + 1);
    if (std::find(tokens.begin(), tokens.end(), merged) == tokens.end()) tokens.push_back(merged);
  }
  std::vector<std::int32_t> types(tokens.size(), 1);
  for (const std::string& special : specials) {
    tokens.push_back(special);
    types.push_back(3);
  }
  writer.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "smollm");
  writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types);
  writer.set("tokenizer.ggml.merges", merges);
  if (specials.empty()) return;
  const auto end = static_cast<std::uint32_t>(tokens.size() - 1);
  writer.set("tokenizer.ggml.bos_token_id",
             static_cast<std::uint32_t>(tokens.size() - specials.size()));
  writer.set("tokenizer.ggml.eos_token_id", end);
}

}  // namespace llm::test
