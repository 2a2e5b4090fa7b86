#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "regard/attention.h"

// dropout_mask(): the share that is kept, independence, and what decides a draw.

namespace regard {
namespace {

struct Mask {
  std::vector<unsigned char> kept;
  std::int64_t batch, heads, rows, keys;

  bool at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return kept[static_cast<std::size_t>(((b * heads + h) * rows + i) * keys + j)] == 1;
  }
};

Mask mask_of(const std::string& words, const Buffers& buffers = {}) {
  const AttentionParams p = parse_case(words).value().params;
  Mask mask{{}, p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
  mask.kept.assign(static_cast<std::size_t>(p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv), 7);
  const TensorView view =
      make_view(mask.kept.data(), Dtype::kBool, {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv});
  const Status status = dropout_mask(p, buffers, view);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return mask;
}

Buffers seeded(std::uint64_t seed, std::uint64_t offset = 0) {
  Buffers buffers;
  buffers.rng_seed = seed;
  buffers.rng_offset = offset;
  return buffers;
}

// The share kept lies within 5 standard deviations of the threshold's, for every p.
TEST(DropoutMask, KeepsItsShare) {
  for (const char* p : {"0.0001", "0.05", "0.1", "0.3", "0.5", "0.9", "0.999"}) {
    const Mask mask = mask_of("b2 hq2 sq250 skv400 d8 f32 dropout=" + std::string(p), seeded(11));
    const double share = std::floor((1.0 - std::stod(p)) * 65536.0 + 0.5) / 65536.0;
    double kept = 0.0;
    for (const unsigned char x : mask.kept) {
      ASSERT_LE(x, 1);
      kept += x;
    }
    const auto draws = static_cast<double>(mask.kept.size());
    EXPECT_NEAR(kept / draws, share, 5 * std::sqrt(share * (1 - share) / draws)) << p;
  }
}

// Correlation of two sequences of draws with the same share kept.
class Correlation {
 public:
  explicit Correlation(double share) : share_(share) {}
  void add(bool a, bool b) {
    const double x = (a ? 1.0 : 0.0) - share_, y = (b ? 1.0 : 0.0) - share_;
    sum_ += x * y;
    ++count_;
  }
  /// In standard deviations of independent draws.
  double sigmas() const {
    return sum_ / (share_ * (1 - share_) * std::sqrt(static_cast<double>(count_)));
  }

 private:
  double share_;
  double sum_ = 0.0;
  std::int64_t count_ = 0;
};

constexpr const char* kIndependent = "b3 hq4 sq120 skv160 d8 f32 dropout=0.25";

using Neighbour = std::function<bool(const Mask&, std::int64_t b, std::int64_t h, std::int64_t i,
                                     std::int64_t j)>;

double sigmas_between(const Mask& mask, const Mask& other, const Neighbour& neighbour) {
  Correlation correlation(0.75);
  for (std::int64_t b = 0; b + 1 < mask.batch; ++b) {
    for (std::int64_t h = 0; h + 1 < mask.heads; ++h) {
      for (std::int64_t i = 0; i + 1 < mask.rows; ++i) {
        for (std::int64_t j = 0; j + 16 < mask.keys; ++j) {
          correlation.add(mask.at(b, h, i, j), neighbour(other, b, h, i, j));
        }
      }
    }
  }
  return correlation.sigmas();
}

TEST(DropoutMask, NeighboursAreIndependent) {
  const Mask mask = mask_of(kIndependent, seeded(5));
  const struct {
    const char* name;
    Neighbour neighbour;
  } table[] = {
      {"row", [](const Mask& m, auto b, auto h, auto i, auto j) { return m.at(b, h, i + 1, j); }},
      {"head", [](const Mask& m, auto b, auto h, auto i, auto j) { return m.at(b, h + 1, i, j); }},
      {"sequence",
       [](const Mask& m, auto b, auto h, auto i, auto j) { return m.at(b + 1, h, i, j); }},
      {"key", [](const Mask& m, auto b, auto h, auto i, auto j) { return m.at(b, h, i, j + 1); }},
      // The two halves of a word, two words of a block, and the next block.
      {"key 2", [](const Mask& m, auto b, auto h, auto i, auto j) { return m.at(b, h, i, j + 2); }},
      {"key 8", [](const Mask& m, auto b, auto h, auto i, auto j) { return m.at(b, h, i, j + 8); }},
      {"diagonal",
       [](const Mask& m, auto b, auto h, auto i, auto j) { return m.at(b, h, i + 1, j + 1); }},
  };
  for (const auto& [name, neighbour] : table) {
    EXPECT_LT(std::fabs(sigmas_between(mask, mask, neighbour)), 5.0) << name;
  }
  // The measure sees what is not independent.
  const auto itself = [](const Mask& m, auto b, auto h, auto i, auto j) {
    return m.at(b, h, i, j);
  };
  EXPECT_GT(sigmas_between(mask, mask, itself), 100.0);
}

TEST(DropoutMask, SeedsAndOffsetsAreIndependent) {
  const auto itself = [](const Mask& m, auto b, auto h, auto i, auto j) {
    return m.at(b, h, i, j);
  };
  const Mask mask = mask_of(kIndependent, seeded(5, 7));
  for (const Buffers& other :
       {seeded(6, 7), seeded(5 + (std::uint64_t{1} << 32), 7), seeded(5, 8),
        seeded(5, 7 + (std::uint64_t{1} << 32)), seeded(~std::uint64_t{0}, ~std::uint64_t{0})}) {
    const double sigmas = sigmas_between(mask, mask_of(kIndependent, other), itself);
    EXPECT_LT(std::fabs(sigmas), 5.0) << other.rng_seed << " " << other.rng_offset;
  }
  EXPECT_EQ(mask.kept, mask_of(kIndependent, seeded(5, 7)).kept);
}

// A draw belongs to a row's place on the diagonal, so a chunk of a prefill draws what the whole
// did.
TEST(DropoutMask, FollowsTheDiagonal) {
  const Mask whole = mask_of("b1 hq2 sq40 skv40 d8 f32 causal diag=tl dropout=0.5", seeded(3));
  const Mask last = mask_of("b1 hq2 sq10 skv40 d8 f32 causal diag=br dropout=0.5", seeded(3));
  Buffers shifted = seeded(3);
  shifted.diagonal_offset = 12;
  const Mask middle = mask_of("b1 hq2 sq10 skv40 d8 f32 causal diag=1 dropout=0.5", shifted);
  std::int64_t offsets[2] = {-5, 25};
  Buffers each = seeded(3);
  each.diagonal_offsets = make_view(offsets, Dtype::kI64, {2});
  const Mask two = mask_of("b2 hq1 sq10 skv40 d8 f32 causal diag=seq dropout=0.5", each);
  int before_the_start = 0;
  for (std::int64_t i = 0; i < 10; ++i) {
    for (std::int64_t j = 0; j < 40; ++j) {
      for (std::int64_t h = 0; h < 2; ++h) {
        ASSERT_EQ(last.at(0, h, i, j), whole.at(0, h, i + 30, j));
        ASSERT_EQ(middle.at(0, h, i, j), whole.at(0, h, i + 12, j));
      }
      ASSERT_EQ(two.at(1, 0, i, j), whole.at(0, 1, i + 25, j));  // b * Hq + h is 1 in both
      if (i < 5) continue;
      ASSERT_EQ(two.at(0, 0, i, j), whole.at(0, 0, i - 5, j));
      ++before_the_start;
    }
  }
  EXPECT_EQ(before_the_start, 200);
}

TEST(DropoutMask, EndsWithItsSequence) {
  std::int32_t lens_q[3] = {4, 0, 7}, lens_kv[3] = {5, 9, 0};
  Buffers buffers = seeded(1);
  buffers.seqlens_q = make_view(lens_q, Dtype::kI32, {3});
  buffers.seqlens_kv = make_view(lens_kv, Dtype::kI32, {3});
  const Mask mask = mask_of("b3 hq2 sq7 skv9 d8 f32 lens dropout=0.0001", buffers);
  const Mask none = mask_of("b3 hq2 sq7 skv9 d8 f32 lens", buffers);
  EXPECT_EQ(mask.kept, none.kept);  // nothing is dropped in so few draws
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t i = 0; i < 7; ++i) {
      for (std::int64_t j = 0; j < 9; ++j) {
        EXPECT_EQ(none.at(b, 1, i, j), i < lens_q[b] && j < lens_kv[b]);
      }
    }
  }
}

TEST(DropoutMask, TakesAnyStrides) {
  const std::string words = "b2 hq3 sq5 skv11 d8 f32 dropout=0.5";
  const Mask dense = mask_of(words, seeded(9));
  std::vector<unsigned char> memory(2 * 3 * 5 * 11 * 2, 7);
  const TensorView view =
      make_view(memory.data(), Dtype::kU8, {2, 3, 5, 11}, {2, 4, 12, 60});  // keys outermost
  ASSERT_TRUE(dropout_mask(parse_case(words).value().params, seeded(9), view).ok());
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t i = 0; i < 5; ++i) {
        for (std::int64_t j = 0; j < 11; ++j) {
          const auto at = static_cast<std::size_t>(2 * b + 4 * h + 12 * i + 60 * j);
          EXPECT_EQ(memory[at], dense.at(b, h, i, j) ? 1 : 0);
          EXPECT_EQ(memory[at + 1], 7);
        }
      }
    }
  }
}

// As describe() takes no notice of them.
TEST(DropoutMask, OffsetsFromWhichNothingIsMeasuredAreNotRead) {
  const AttentionParams params = parse_case("b2 hq3 sq5 skv11 d8 f32").value().params;
  std::int64_t offsets[2] = {5, -1};
  std::vector<unsigned char> memory(2 * 3 * 5 * 11, 7);
  Buffers buffers;
  buffers.diagonal_offsets = make_view(offsets, Dtype::kI64, {2});
  const Status status =
      dropout_mask(params, buffers, make_view(memory.data(), Dtype::kBool, {2, 3, 5, 11}));
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(memory, std::vector<unsigned char>(memory.size(), 1));
}

TEST(DropoutMask, RefusesWhatDoesNotFit) {
  const AttentionParams params = parse_case("b2 hq3 sq5 skv11 d8 f32 dropout=0.5").value().params;
  const AttentionParams lens =
      parse_case("b2 hq3 sq5 skv11 d8 f32 dropout=0.5 lens").value().params;
  std::vector<unsigned char> memory(2 * 3 * 5 * 11, 7);
  std::int32_t lengths[2] = {5, 6};
  Buffers buffers;
  const TensorView good = make_view(memory.data(), Dtype::kBool, {2, 3, 5, 11});
  const auto refusal = [&](const AttentionParams& p, const Buffers& b, const TensorView& view) {
    const Status status = dropout_mask(p, b, view);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(memory, std::vector<unsigned char>(memory.size(), 7));
    return status.message();
  };
  TensorView wrong = good;
  wrong.dtype = Dtype::kI8;
  EXPECT_EQ(refusal(params, buffers, wrong),
            "[dropout_mask] dtype of kept (i8) must be bool or u8");
  wrong = good;
  wrong.shape[3] = 10;
  EXPECT_EQ(refusal(params, buffers, wrong),
            "[dropout_mask] shape of kept ([2,3,5,10]) must be [2,3,5,11], [B,Hq,Sq,Skv]");
  wrong = good;
  wrong.strides[1] = 0;
  EXPECT_NE(refusal(params, buffers, wrong).find("must not overlap itself"), std::string::npos);
  EXPECT_EQ(refusal(lens, buffers, good),
            "[dropout_mask] seqlens_q (absent) must be present, as the params state");
  buffers.seqlens_q = buffers.seqlens_kv = make_view(lengths, Dtype::kI32, {2});
  EXPECT_EQ(refusal(params, buffers, good),
            "[dropout_mask] seqlens_q (present) must be absent, as the params state");
  EXPECT_EQ(refusal(lens, buffers, good), "[dropout_mask] seqlens_q[1] (6), expected 0 to 5");
  buffers.seqlens_q.data = memory.data();
  EXPECT_NE(refusal(lens, buffers, good).find("must not overlap seqlens_q"), std::string::npos);
  AttentionParams impossible = params;
  impossible.dropout_p = 1.5;
  EXPECT_EQ(refusal(impossible, {}, good), "[dropout_mask] dropout_p (1.5) must be in [0, 1)");
}

}  // namespace
}  // namespace regard
