#include <cstdint>
#include <cstring>

#include "regard/dtype.h"
#include "tools/llm/ggml_types.h"
#include "tools/llm/gguf.h"

// Elements of ggml's block formats as f32, each by the operations that ggml uses in their order, so
// that the bits are the same: products and sums are rounded separately (-ffp-contract=off).

namespace llm {
namespace {

using Byte = std::uint8_t;

std::uint16_t read16(const Byte* p) { return static_cast<std::uint16_t>(p[0] | p[1] << 8); }

std::uint32_t read32(const Byte* p) {
  return read16(p) | static_cast<std::uint32_t>(read16(p + 2)) << 16;
}

float from_half(const Byte* p) { return regard::f32_from_f16(read16(p)); }

void f16(const Byte* block, float* out) { *out = from_half(block); }

void bf16(const Byte* block, float* out) { *out = regard::f32_from_bf16(read16(block)); }

void q8_0(const Byte* block, float* out) {
  const float scale = from_half(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<std::int8_t>(block[2 + i]) * scale;
}

// Blocks of 32: byte i holds element i in its low half and element i + 16 in its high half.

void q4_0(const Byte* block, float* out) {
  const float scale = from_half(block);
  const Byte* q = block + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((q[i] & 15) - 8) * scale;
    out[i + 16] = static_cast<float>((q[i] >> 4) - 8) * scale;
  }
}

void q4_1(const Byte* block, float* out) {
  const float scale = from_half(block);
  const float minimum = from_half(block + 2);
  const Byte* q = block + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(q[i] & 15) * scale + minimum;
    out[i + 16] = static_cast<float>(q[i] >> 4) * scale + minimum;
  }
}

/// Bit 4 of element i, from the 32 fifth bits of a block.
int fifth(std::uint32_t bits, int i) { return static_cast<int>((bits >> i) & 1) << 4; }

void q5_0(const Byte* block, float* out) {
  const float scale = from_half(block);
  const std::uint32_t high = read32(block + 2);
  const Byte* q = block + 6;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(((q[i] & 15) | fifth(high, i)) - 16) * scale;
    out[i + 16] = static_cast<float>(((q[i] >> 4) | fifth(high, i + 16)) - 16) * scale;
  }
}

void q5_1(const Byte* block, float* out) {
  const float scale = from_half(block);
  const float minimum = from_half(block + 2);
  const std::uint32_t high = read32(block + 4);
  const Byte* q = block + 8;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((q[i] & 15) | fifth(high, i)) * scale + minimum;
    out[i + 16] = static_cast<float>((q[i] >> 4) | fifth(high, i + 16)) * scale + minimum;
  }
}

struct SubScale {
  float scale;
  float minimum;
};

/// Scale and minimum of 32 elements: 6 bits each, of 8 sub-blocks in 12 bytes. Those of the first
/// four lie in the low 6 bits of bytes 0 to 3 and 4 to 7; those of the last four have their low 4
/// bits in bytes 8 to 11 and their high 2 bits above the first four's.
SubScale sub_scale(const Byte* block, int i) {
  const Byte* packed = block + 4;
  int scale = 0;
  int minimum = 0;
  if (i < 4) {
    scale = packed[i] & 63;
    minimum = packed[i + 4] & 63;
  } else {
    scale = (packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4;
    minimum = packed[i + 4] >> 4 | (packed[i] >> 6) << 4;
  }
  return {from_half(block) * static_cast<float>(scale),
          from_half(block + 2) * static_cast<float>(minimum)};
}

// Blocks of 256: 32 bytes hold one sub-block of 32 in their low halves and the next in their high
// halves.

void q4_k(const Byte* block, float* out) {
  const Byte* q = block + 16;
  for (int sub = 0; sub < 8; ++sub) {
    const auto [scale, minimum] = sub_scale(block, sub);
    const int shift = 4 * (sub % 2);
    for (int i = 0; i < 32; ++i) {
      const int value = (q[32 * (sub / 2) + i] >> shift) & 15;
      out[32 * sub + i] = scale * static_cast<float>(value) - minimum;
    }
  }
}

void q5_k(const Byte* block, float* out) {
  const Byte* high = block + 16;  // bit s of byte i: bit 4 of element i of sub-block s
  const Byte* q = block + 48;
  for (int sub = 0; sub < 8; ++sub) {
    const auto [scale, minimum] = sub_scale(block, sub);
    const int shift = 4 * (sub % 2);
    for (int i = 0; i < 32; ++i) {
      const int low = (q[32 * (sub / 2) + i] >> shift) & 15;
      const int value = low | ((high[i] >> sub) & 1) << 4;
      out[32 * sub + i] = scale * static_cast<float>(value) - minimum;
    }
  }
}

void q6_k(const Byte* block, float* out) {
  const Byte* scales = block + 192;  // one int8 for 16 elements
  const float scale = from_half(block + 208);
  for (int half = 0; half < 2; ++half) {  // 128 elements: 4 groups of 32
    const Byte* low = block + 64 * half;
    const Byte* high = block + 128 + 32 * half;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < 32; ++i) {
        const int at = 128 * half + 32 * group + i;
        const int nibble = (low[32 * (group % 2) + i] >> 4 * (group / 2)) & 15;
        const int value = (nibble | ((high[i] >> 2 * group) & 3) << 4) - 32;
        const float sub = scale * static_cast<float>(static_cast<std::int8_t>(scales[at / 16]));
        out[at] = sub * static_cast<float>(value);
      }
    }
  }
}

using BlockFunction = void (*)(const Byte* block, float* out);

/// Null for F32, which is copied.
BlockFunction block_function(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return nullptr;
    case GgmlType::kF16: return f16;
    case GgmlType::kBF16: return bf16;
    case GgmlType::kQ8_0: return q8_0;
    case GgmlType::kQ4_0: return q4_0;
    case GgmlType::kQ4_1: return q4_1;
    case GgmlType::kQ5_0: return q5_0;
    case GgmlType::kQ5_1: return q5_1;
    case GgmlType::kQ4_K: return q4_k;
    case GgmlType::kQ5_K: return q5_k;
    case GgmlType::kQ6_K: return q6_k;
  }
  return nullptr;
}

}  // namespace

void dequantize(const GgufTensor& tensor, std::int64_t first, std::int64_t rows, float* out) {
  const BlockFormat format = block_format(tensor.type);
  const std::int64_t row_blocks = tensor.columns() / format.elements;
  const std::byte* begin = tensor.data.data() + first * row_blocks * format.bytes;
  const std::int64_t blocks = rows * row_blocks;
  const BlockFunction function = block_function(tensor.type);
  if (function == nullptr) {
    std::memcpy(out, begin, static_cast<std::size_t>(blocks * format.bytes));
    return;
  }
  const auto* block = reinterpret_cast<const Byte*>(begin);
  for (std::int64_t i = 0; i < blocks; ++i) {
    function(block + i * format.bytes, out + i * format.elements);
  }
}

}  // namespace llm
