#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/kv_tiles.h"
#include "cpu/simd/simd_scalar.h"

// K and V as kernels load them: the address of each key's row, and tiles converted, padded and
// paired.

namespace regard::cpu {
namespace {

using semantics::Tile;
using F32 = simd_scalar::Simd<float>;

constexpr std::int64_t kDim = 5;  // odd: no whole pairs
constexpr std::int64_t kStride = 7;
constexpr Tile kTile{2, 3};  // an odd last key

/// bf16 of key j, element d: distinct, finite and exact.
float element(std::int64_t j, std::int64_t d) { return static_cast<float>(8 * j + d + 1); }

std::vector<std::uint16_t> bf16_rows(std::int64_t keys, std::int64_t stride, std::int64_t dim) {
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(keys * stride), 0x7fc0);  // NaN between
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::int64_t d = 0; d < dim; ++d) {
      rows[static_cast<std::size_t>(j * stride + d)] = to_bf16(element(j, d));
    }
  }
  return rows;
}

KvOperand operand(const std::vector<std::uint16_t>& rows, std::int64_t stride, std::int64_t dim) {
  const std::int64_t keys = static_cast<std::int64_t>(rows.size()) / stride;
  return {
      reinterpret_cast<const char*>(rows.data()), stride * 2, 0, dim, keys, 1.0, Element::kBf16};
}

float low(Pair pair) { return from_bf16(static_cast<std::uint16_t>(pair.bits)); }
float high(Pair pair) { return from_bf16(static_cast<std::uint16_t>(pair.bits >> 16)); }

TEST(KvOperand, RowsOfEveryHeadAndKey) {
  Problem p{};
  p.seqlen_kv = 9;
  p.head_dim_qk = 64;
  p.head_dim_v = 40;
  std::vector<char> memory(1 << 16);
  const float descales[] = {2.0f, 3.0f};
  p.k.data = memory.data();
  p.k.type = Element::kBf16;
  p.v.data = memory.data() + 100;
  p.v.type = Element::kF32;
  const std::int64_t k_strides[] = {1000, 300, 70}, v_strides[] = {900, 50, 200};
  for (int dim = 0; dim < 3; ++dim) {
    p.k.stride[dim] = k_strides[dim];
    p.v.stride[dim] = v_strides[dim];
  }
  p.descale_v.present = true;
  p.descale_v.data = const_cast<char*>(reinterpret_cast<const char*>(descales));
  p.descale_v.stride[1] = 1;
  const KvOperand k = k_operand(p, 2, 1), v = v_operand(p, 2, 1);
  for (const std::int64_t j : {0, 1, 8}) {
    EXPECT_EQ(row_of(k, j), memory.data() + (2 * 1000 + 300 + j * 70) * 2);
    EXPECT_EQ(row_of(v, j), memory.data() + 100 + (2 * 900 + 50 + j * 200) * 4);
  }
  EXPECT_EQ(k.head_stride, 600);
  EXPECT_EQ(v.head_stride, 200);
  EXPECT_EQ(k.dim, 64);
  EXPECT_EQ(v.dim, 40);
  EXPECT_EQ(k.descale, 1.0);
  EXPECT_EQ(v.descale, 3.0);
}

TEST(KvTiles, ConvertedRowsAreZeroPastTheirEnd) {
  const auto rows = bf16_rows(6, kStride, kDim);
  std::vector<float> buffer(3 * 8, NAN);
  const auto tile = convert_tile<F32>(operand(rows, kStride, kDim), kTile, 8, buffer.data());
  EXPECT_EQ(tile.row_stride, 8);
  for (std::int64_t j = 0; j < kTile.size; ++j) {
    for (std::int64_t d = 0; d < 8; ++d) {
      EXPECT_EQ(tile.data[j * 8 + d], d < kDim ? element(kTile.begin + j, d) : 0.0f);
    }
  }
}

TEST(KvTiles, RowsOfTheArithmeticsTypeStayInPlace) {
  const std::vector<float> rows(6 * kStride);
  KvOperand x{
      reinterpret_cast<const char*>(rows.data()), kStride * 4, 0, kDim, 6, 1.0, Element::kF32};
  const auto tile = load_tile<F32>(x, kTile, nullptr);
  EXPECT_EQ(tile.data, rows.data() + 2 * kStride);
  EXPECT_EQ(tile.row_stride, kStride);
  EXPECT_EQ(transposed(tile).step, kStride);
}

TEST(KvTiles, PairsAlongHeadDimAreCopiedUnlessTheyAreWhole) {
  std::vector<Pair> buffer(3 * 3);
  const auto odd = bf16_rows(6, kStride, kDim);
  const auto copied = load_pairs(operand(odd, kStride, kDim), kTile, buffer.data());
  EXPECT_EQ(copied.data, buffer.data());
  EXPECT_EQ(copied.row_stride, 3);
  for (std::int64_t j = 0; j < kTile.size; ++j) {
    for (std::int64_t x = 0; x < 3; ++x) {
      const Pair pair = copied.data[j * 3 + x];
      EXPECT_EQ(low(pair), element(kTile.begin + j, 2 * x));
      EXPECT_EQ(high(pair), 2 * x + 1 < kDim ? element(kTile.begin + j, 2 * x + 1) : 0.0f);
    }
  }
  const auto even = bf16_rows(6, 8, 6);
  const auto in_place = load_pairs(operand(even, 8, 6), kTile, nullptr);
  EXPECT_EQ(reinterpret_cast<const std::uint16_t*>(in_place.data), even.data() + 2 * 8);
  EXPECT_EQ(in_place.row_stride, 4);
  // Whole pairs in each row, but every second row begins within one.
  EXPECT_EQ(load_pairs(operand(bf16_rows(6, kStride, 4), kStride, 4), kTile, buffer.data()).data,
            buffer.data());
}

TEST(KvTiles, PairsOfKeysEndInZeros) {
  const auto rows = bf16_rows(6, kStride, kDim);
  std::vector<Pair> pairs(2 * 8, Pair{0x7fc07fc0});
  const auto tile = pair_keys<F32>(operand(rows, kStride, kDim), kTile, 8, pairs.data());
  EXPECT_EQ(tile.row_stride, 1);
  EXPECT_EQ(tile.step, 8);
  for (std::int64_t j = 0; j < 2; ++j) {
    for (std::int64_t d = 0; d < 8; ++d) {
      const Pair pair = pairs[static_cast<std::size_t>(j * 8 + d)];
      const std::int64_t key = kTile.begin + 2 * j;
      EXPECT_EQ(low(pair), d < kDim ? element(key, d) : 0.0f);
      EXPECT_EQ(high(pair), d < kDim && j == 0 ? element(key + 1, d) : 0.0f);
    }
  }
}

TEST(KvTiles, FindsWhatIsNotFinite) {
  std::vector<float> rows(2 * 40, 1.0f);
  const ProductInput<float> tile{rows.data(), 40, 1};
  EXPECT_TRUE(all_finite<F32>(tile, 2, 37));
  rows[38] = NAN;  // past the end of row 0
  EXPECT_TRUE(all_finite<F32>(tile, 2, 37));
  rows[40 + 36] = INFINITY;
  EXPECT_FALSE(all_finite<F32>(tile, 2, 37));
}

}  // namespace
}  // namespace regard::cpu
