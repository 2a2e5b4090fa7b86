#pragma once

#include <cstdint>

#include "cuda/swizzle.cuh"

// Keys and values of 8 and 4 bits: a tile's codes and the scales of its rows are copied as they
// are, and codes become 16-bit numbers in shared memory, which is exact. Products are of codes;
// scales of keys multiply scores, and those of values probabilities, both in f32. groups.cuh has
// what u4 has of its own.

namespace regard::cuda_flash {

using cuda::Element;

/// Begins to copy kRows rows of kBytes bytes of codes, kPerByte in each, 0 where there are none and
/// behind their `columns`. Addresses, and bytes of columns, are multiples of 16.
template <int kRows, int kBytes, int kPerByte, int kThreads, class Block, class Rows, class Shared>
REGARD_DEVICE_FN void begin_codes(const Block& block, const Rows& rows, Shared to) {
  constexpr int kCopies = kBytes / 16;
  REGARD_DEVICE_NO_UNROLL
  for (int n = block.thread(); n < kRows * kCopies; n += kThreads) {
    const int r = n / kCopies, byte = n % kCopies * 16;
    const char* const row = Rows::row(rows, r);
    const bool exists = row != nullptr && byte * kPerByte < rows.columns;
    block.copy_async(to, n * 8, exists ? row + byte : nullptr);
  }
}

/// Begins to copy the scale of a row, 0 of one that there is none of.
template <class Block, class Rows, class Shared>
REGARD_DEVICE_FN void begin_scale(const Block& block, const Rows& rows, bool has_scales, int r,
                                  Shared to) {
  if (has_scales) {
    block.copy_word_async(to, r, Rows::row(rows, r));
  } else {
    to[r] = 1.0f;
  }
}

/// 2^23 + (code + 128), whose bits are those of its parts, less that sum without the code: integers
/// become floats at a fraction of the rate of additions.
REGARD_DEVICE_FN float number_of_i8(std::uint8_t code) {
  return problem::f32_of(0x4b000000u | (code ^ 0x80u)) - 8388736.0f;
}

/// Calls f(number of a code) for a type of 8 bits.
template <class F>
REGARD_DEVICE_FN void with_code_numbers(Element type, F f) {
  switch (type) {
    case Element::kI8: return f([](std::uint8_t code) { return number_of_i8(code); });
    case Element::kF8E4M3: return f([](std::uint8_t code) { return problem::from_f8e4m3(code); });
    default: return f([](std::uint8_t code) { return problem::from_f8e5m2(code); });
  }
}

/// kRows rows of codes, in words of eight, become an operand's rows.
template <Element kType, int kRows, int kColumns, int kThreads, class Block, class Codes,
          class Shared>
REGARD_DEVICE_FN void widen_tile(const Block& block, Element type, Codes codes, Shared to) {
  constexpr int kChunks = kColumns / cuda::kChunk;
  with_code_numbers(type, [&](auto number_of) {
    REGARD_DEVICE_NO_UNROLL
    for (int n = block.thread(); n < kRows * kChunks; n += kThreads) {
      const std::uint64_t eight = codes[n];
      const auto number = [&](int x) {
        return number_of(static_cast<std::uint8_t>(eight >> (8 * x)));
      };
      cuda::Vec4<std::uint32_t> chunk;
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 4; ++x) chunk.at[x] = cuda::pack<kType>(number(2 * x), number(2 * x + 1));
      store4(to, cuda::Swizzle<kColumns>::at(n / kChunks, n % kChunks) / 2, chunk);
    }
  });
}

/// Scores of the lane's columns times their keys' scales.
template <int kKeys, class Block, class Shared>
REGARD_DEVICE_FN void scale_scores(const Block& block, Shared scales,
                                   cuda::WarpSums<kKeys>* scores) {
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    const int key = n * 8 + cuda::lane_column(block);
    const float scale[2] = {scales[key], scales[key + 1]};
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) scores->at[n][x] *= scale[x % 2];
  }
}

/// The power of two, a tile's largest scale by which is less than 1 and at least 1/2, and its
/// inverse. The tile's are kKeys from `first` on.
struct ScaleUnit {
  float by = 1.0f, unit = 1.0f;
};
template <int kKeys, class Block, class Shared>
REGARD_DEVICE_FN ScaleUnit unit_of(const Block& block, Shared scales, int first = 0) {
  float largest = 0.0f;  // NaN is passed over here and reaches the sums
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kKeys / 4; ++n) {
    const float scale = scales[first + n / 2 * 8 + cuda::lane_column(block) + n % 2];
    largest = __builtin_fmaxf(largest, __builtin_fabsf(scale));
  }
  const std::uint32_t exponent = problem::bits_of(cuda::max_of_lanes(block, largest)) >> 23;
  const std::uint32_t held = exponent < 1 ? 1 : exponent > 252 ? 252 : exponent;
  return {problem::f32_of((253u - held) << 23), problem::f32_of((held + 1u) << 23)};
}

/// Probabilities times their values' scales over the factor that is returned: those of f16, which
/// has neither small nor large numbers, in a unit of the tile. kSafe: as they are, and hidden ones
/// stay marked.
template <Element kType, bool kSafe, int kKeys, class Block, class Shared>
REGARD_DEVICE_FN float scale_probs(const Block& block, Shared scales,
                                   cuda::WarpSums<kKeys>* probs) {
  ScaleUnit unit;
  if constexpr (kType == Element::kF16 && !kSafe) unit = unit_of<kKeys>(block, scales);
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    const int key = n * 8 + cuda::lane_column(block);
    const float scale[2] = {scales[key] * unit.by, scales[key + 1] * unit.by};
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) {
      float& prob = probs->at[n][x];
      if (!kSafe || !cuda::is_hidden(prob)) prob *= scale[x % 2];
    }
  }
  return unit.unit;
}

}  // namespace regard::cuda_flash
