#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "regard/lengths.h"
#include "regard/regard.h"

namespace regard {
namespace {

std::vector<std::int64_t> to_vector(std::span<const std::int64_t> span) {
  return {span.begin(), span.end()};
}
std::vector<std::int32_t> to_vector(std::span<const std::int32_t> span) {
  return {span.begin(), span.end()};
}

TEST(Lengths, OfAMaskWithHolesAndPaddingOnBothSides) {
  const std::uint8_t mask[3][4] = {{0, 1, 0, 7}, {0, 0, 0, 0}, {1, 1, 0, 0}};
  const Lengths lengths = Lengths::from_mask(make_view(mask, Dtype::kU8, {3, 4})).value();
  EXPECT_EQ(to_vector(lengths.indices()), (std::vector<std::int64_t>{1, 3, 8, 9}));
  EXPECT_EQ(to_vector(lengths.cu_seqlens()), (std::vector<std::int32_t>{0, 2, 2, 4}));
  EXPECT_EQ(lengths.batch(), 3);
  EXPECT_EQ(lengths.seqlen(), 4);
  EXPECT_EQ(lengths.num_sequences(), 3);
  EXPECT_EQ(lengths.max_seqlen(), 2);
  EXPECT_EQ(to_string(lengths), "<3 sequences of at most 2 rows, 4 of 3 x 4 positions>");
  EXPECT_EQ(longest_sequence(lengths.cu_seqlens_view()), 2);
  const Lengths transposed =
      Lengths::from_mask(make_view(mask, Dtype::kU8, {4, 3}, {1, 4})).value();
  EXPECT_EQ(to_vector(transposed.indices()), (std::vector<std::int64_t>{2, 3, 5, 9}));
  EXPECT_FALSE(lengths == transposed);
}

TEST(Lengths, OfSeqlensAndPositionIds) {
  const std::int64_t seqlens[] = {2, 0, 3};
  const std::int32_t ids[3][3] = {{0, 1, 0}, {0, 0, 1}, {0, 1, 2}};
  const Lengths by_seqlens = Lengths::from_seqlens(make_view(seqlens, Dtype::kI64, {3}), 3).value();
  EXPECT_EQ(to_vector(by_seqlens.indices()), (std::vector<std::int64_t>{0, 1, 6, 7, 8}));
  const Lengths by_ids = Lengths::from_position_ids(make_view(ids, Dtype::kI32, {3, 3})).value();
  EXPECT_EQ(to_vector(by_ids.cu_seqlens()), (std::vector<std::int32_t>{0, 2, 3, 4, 6, 9}));
  EXPECT_EQ(by_ids.total(), 9);
  EXPECT_EQ(by_ids.max_seqlen(), 3);
}

TEST(Lengths, OfNothing) {
  EXPECT_EQ(Lengths().num_sequences(), 0);
  EXPECT_EQ(to_vector(Lengths().cu_seqlens()), (std::vector<std::int32_t>{0}));
  EXPECT_TRUE(Lengths() == Lengths::from_mask(make_view(nullptr, Dtype::kBool, {0, 0})).value());
  const Lengths no_positions = Lengths::from_mask(make_view(nullptr, Dtype::kBool, {2, 0})).value();
  EXPECT_EQ(to_vector(no_positions.cu_seqlens()), (std::vector<std::int32_t>{0, 0, 0}));
}

TEST(Lengths, BadInputIsRefusedByName) {
  const std::int32_t values[] = {0, 2, 4};
  const auto message = [](const Expected<Lengths>& made) { return made.status().message(); };
  EXPECT_EQ(message(Lengths::from_seqlens(make_view(values, Dtype::kI32, {3}), 3)),
            "[Lengths::from_seqlens] seqlens[2] (4), expected 0 to 3");
  EXPECT_EQ(message(Lengths::from_seqlens(make_view(values, Dtype::kI32, {3}), -1)),
            "[Lengths::from_seqlens] seqlen (-1) must be at least 0");
  EXPECT_EQ(message(Lengths::from_position_ids(make_view(values, Dtype::kI32, {1, 3}))),
            "[Lengths::from_position_ids] position_ids[0,1] (2), expected 0 where a sequence "
            "begins, or 1");
  EXPECT_EQ(message(Lengths::from_position_ids(make_view(values + 1, Dtype::kI32, {1, 2}))),
            "[Lengths::from_position_ids] position_ids[0,0] (2), expected 0 where a row of the "
            "tensor begins");
  EXPECT_FALSE(Lengths::from_mask(make_view(values, Dtype::kF32, {1, 3})));
  EXPECT_FALSE(Lengths::from_mask(make_view(values, Dtype::kI32, {3})));
  EXPECT_FALSE(Lengths::from_mask(TensorView{}));
}

/// Random masks, ranks and strides: every element lands where the mask says, and nothing else is
/// written.
TEST(Lengths, UnpadAndPadAreInversesOnAnyStrides) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % n); };
  for (int round = 0; round < 500; ++round) {
    const std::int64_t batch = below(4), seqlen = below(6), outer = 1 + below(3), inner = below(5);
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(batch * seqlen) + 1);
    for (auto& m : mask) m = random() % 2;
    const Lengths lengths =
        Lengths::from_mask(make_view(mask.data(), Dtype::kBool, {batch, seqlen})).value();
    const std::int64_t gap = 1 + below(2), total = lengths.total();
    // [batch, seqlen, outer, inner] as slices of [seqlen, batch, inner, outer, gap].
    const std::int64_t count = batch * seqlen * outer * inner * gap;
    std::vector<std::int32_t> x(static_cast<std::size_t>(count) + 1), packed(x.size(), -1);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::int32_t>(i) + 1;
    const TensorView view =
        make_view(x.data(), Dtype::kI32, {batch, seqlen, outer, inner},
                  {inner * outer * gap, batch * inner * outer * gap, gap, outer * gap});
    const TensorView dense = make_view(packed.data(), Dtype::kI32, {total, outer, inner});
    ASSERT_TRUE(unpad(lengths, view, dense).ok());
    std::vector<std::int32_t> back = x;
    for (auto& value : back) value = -value;
    TensorView target = view;
    target.data = back.data();
    ASSERT_TRUE(pad(lengths, dense, target).ok());
    std::int64_t row = 0;
    for (std::int64_t p = 0; p < batch * seqlen; ++p) {
      for (std::int64_t e = 0; e < outer * inner; ++e) {
        const std::int64_t at = p / seqlen * view.strides[0] + p % seqlen * view.strides[1] +
                                e / inner * view.strides[2] + e % inner * view.strides[3];
        const bool is_row = mask[static_cast<std::size_t>(p)] != 0;
        if (is_row) {
          ASSERT_EQ(packed[row * outer * inner + e], x[at]);
        }
        ASSERT_EQ(back[at], is_row ? x[at] : 0);
        back[at] = -x[at];
      }
      row += mask[static_cast<std::size_t>(p)] != 0;
    }
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], -x[i]) << "a gap was written";
  }
}

TEST(Lengths, CopiesCheckTheirTensors) {
  const std::int32_t seqlens[] = {2, 1};
  const Lengths lengths = Lengths::from_seqlens(make_view(seqlens, Dtype::kI32, {2}), 2).value();
  float x[12] = {}, rows[9] = {};
  const TensorView padded = make_view(x, Dtype::kF32, {2, 2, 3});
  const TensorView packed = make_view(rows, Dtype::kF32, {3, 3});
  EXPECT_TRUE(unpad(lengths, padded, packed).ok());
  EXPECT_EQ(unpad(lengths, padded, make_view(rows, Dtype::kF32, {2, 3})).message(),
            "[unpad] shape of packed (f32[2,3] strides (3,1)) must begin with 3, the rows of the "
            "lengths");
  EXPECT_EQ(pad(lengths, packed, make_view(x, Dtype::kF32, {2, 1, 3})).message(),
            "[pad] shape of padded (f32[2,1,3] strides (3,3,1)) must begin with 2,2, the batch and "
            "seqlen of the lengths");
  EXPECT_FALSE(pad(lengths, make_view(rows, Dtype::kF32, {3, 2}), padded).ok());
  EXPECT_FALSE(pad(lengths, make_view(rows, Dtype::kI32, {3, 3}), padded).ok());
  EXPECT_FALSE(pad(lengths, make_view(rows, Dtype::kF32, {3, 3, 1}), padded).ok());
  EXPECT_FALSE(unpad(lengths, padded, make_view(x, Dtype::kF32, {3, 3})).ok()) << "they overlap";
  EXPECT_FALSE(unpad(lengths, padded, TensorView{}).ok());
}

TEST(Lengths, LongestSequenceOfStartsThatNothingHasChecked) {
  const std::int32_t descending[] = {5, 2, 4};
  const std::int64_t extreme[] = {INT64_MAX, INT64_MIN};
  EXPECT_EQ(longest_sequence(make_view(descending, Dtype::kI32, {3})), 2);
  EXPECT_EQ(longest_sequence(make_view(extreme, Dtype::kI64, {2})), 0);
  EXPECT_EQ(longest_sequence(TensorView{}), 0);
}

TEST(Lengths, InC) {
  const int64_t shape[] = {2, 3}, rows[] = {3};
  const std::uint8_t mask[] = {0, 1, 1, 1, 0, 0};
  const float x[] = {1, 2, 3, 4, 5, 6};
  float packed[3] = {}, padded[6] = {9, 9, 9, 9, 9, 9};
  const regard_dtype f32 = {REGARD_DTYPE_FLOAT, 32, 1};
  const regard_tensor mask_tensor = regard_make_input(mask, {REGARD_DTYPE_BOOL, 8, 1}, 2, shape);
  const regard_tensor x_tensor = regard_make_input(x, f32, 2, shape);
  const regard_tensor packed_tensor = regard_make_tensor(packed, f32, 1, rows);
  const regard_tensor padded_tensor = regard_make_tensor(padded, f32, 2, shape);
  regard_lengths* lengths = nullptr;
  ASSERT_EQ(regard_lengths_from_mask(&mask_tensor, &lengths), REGARD_STATUS_OK);
  regard_lengths_view view;
  ASSERT_EQ(regard_lengths_read(lengths, &view), REGARD_STATUS_OK);
  EXPECT_EQ(view.total, 3);
  EXPECT_EQ(view.max_seqlen, 2);
  EXPECT_EQ(view.cu_seqlens[1], 2);
  EXPECT_EQ(view.indices[2], 3);
  ASSERT_EQ(regard_unpad(lengths, &x_tensor, &packed_tensor), REGARD_STATUS_OK);
  EXPECT_EQ(std::vector<float>(packed, packed + 3), (std::vector<float>{2, 3, 4}));
  ASSERT_EQ(regard_pad(lengths, &packed_tensor, &padded_tensor), REGARD_STATUS_OK);
  EXPECT_EQ(std::vector<float>(padded, padded + 6), (std::vector<float>{0, 2, 3, 4, 0, 0}));
  EXPECT_EQ(regard_unpad(lengths, &x_tensor, nullptr), REGARD_STATUS_INVALID_ARGUMENT);
  regard_lengths_destroy(lengths);
  regard_lengths_destroy(nullptr);
  EXPECT_EQ(regard_lengths_from_seqlens(&packed_tensor, 3, &lengths),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(lengths, nullptr);
  EXPECT_EQ(regard_lengths_from_position_ids(nullptr, &lengths), REGARD_STATUS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace regard
