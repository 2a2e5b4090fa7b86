#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "regard/case.h"
#include "regard/dropout.h"
#include "regard/request.h"

// dropout_origin: part of a call draws the mask of the whole.

namespace regard {
namespace {

std::vector<unsigned char> origin_mask(const char* text, const DropoutOrigin& origin,
                                       std::int64_t offset) {
  AttentionParams p = parse_case(text).value().params;
  Buffers buffers;
  buffers.rng_seed = 7;
  buffers.diagonal_offset = offset;
  buffers.dropout_origin = origin;
  std::vector<unsigned char> kept(
      static_cast<std::size_t>(p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv));
  TensorView view = make_view(static_cast<void*>(kept.data()), Dtype::kU8,
                              {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv});
  check(dropout_mask(p, buffers, view));
  return kept;
}

TEST(DropoutOrigin, APartHasTheMaskOfTheWhole) {
  const auto whole = origin_mask("b2 hq4 hkv4 sq20 skv40 d8 dropout=0.3 diag=tl causal", {}, 0);
  // Sequence 1, heads 1 and 2, rows from 5, keys from 16.
  const DropoutOrigin origin{16, 16, 4 + 1, 4};
  const auto part =
      origin_mask("b1 hq2 hkv2 sq15 skv24 d8 dropout=0.3 diag=5 causal", origin, 5 - 16);
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::size_t i = 0; i < 15; ++i) {
      for (std::size_t j = 0; j < 24; ++j) {
        ASSERT_EQ(part[(h * 15 + i) * 24 + j], whole[((4 + 1 + h) * 20 + 5 + i) * 40 + 16 + j])
            << h << " " << i << " " << j;
      }
    }
  }
}

TEST(DropoutOrigin, KeysBeginAtMultiplesOfEight) {
  std::vector<float> x(64);
  AttentionRequest r;
  r.q = r.k = r.v = make_view(x.data(), {1, 1, 2, 8});
  std::vector<float> out(64);
  r.out = make_view(out.data(), {1, 1, 2, 8});
  r.options.dropout_p = 0.5;
  r.dropout_origin.key = 12;
  EXPECT_EQ(describe(r).status().message(),
            "[describe] dropout_origin.key (12) must be a multiple of 8, at least 0");
  r.dropout_origin.key = 16;
  EXPECT_TRUE(describe(r).ok());
}

TEST(DropoutOrigin, IsAFeatureOfCallsWithDropout) {
  std::vector<float> x(64), out(64);
  AttentionRequest r;
  r.q = r.k = r.v = make_view(x.data(), {1, 1, 2, 8});
  r.out = make_view(out.data(), {1, 1, 2, 8});
  const auto is_stated = [&] { return describe(r).value().features.has(Feature::kDropoutOrigin); };
  r.options.dropout_p = 0.5;
  EXPECT_FALSE(is_stated());
  for (std::int64_t DropoutOrigin::*field : {&DropoutOrigin::position, &DropoutOrigin::key,
                                             &DropoutOrigin::head, &DropoutOrigin::heads}) {
    r.dropout_origin = {};
    r.dropout_origin.*field = 8;
    EXPECT_TRUE(is_stated());
  }
  r.options.dropout_p = 0.0;
  EXPECT_FALSE(is_stated());
}

TEST(DropoutOrigin, IsAWordOfACase) {
  const char* const text = "b1 hq1 sq2 d8 f32 dropout=0.5 dropout_origin=-3,16,2,7";
  const Case c = parse_case(text).value();
  EXPECT_EQ(c.data.dropout_origin, (DropoutOrigin{-3, 16, 2, 7}));
  EXPECT_EQ(parse_case(to_string(c)).value(), c) << to_string(c);
  const AttentionParams without = parse_case("b1 hq1 sq2 d8 f32 dropout=0.5").value().params;
  EXPECT_EQ(parse_case(text + std::string(" dropout=0")).ok(), false);  // two words of a name
  EXPECT_EQ(parse_case("dropout=0", c).value().data.dropout_origin, DropoutOrigin{});
  EXPECT_EQ(parse_case("dropout_origin=none", c).value().params, without);
  const Case named = parse_case(to_string(c.params)).value();
  EXPECT_EQ(named.params, c.params);
  for (const char* wrong : {"1,2,3", "0,0,0,0", "0,12,0,0", "0,-8,0,0", "0,8,0,-1", "x"}) {
    EXPECT_FALSE(parse_case("sq2 d8 f32 dropout=0.5 dropout_origin=" + std::string(wrong)).ok())
        << wrong;
  }
}

}  // namespace
}  // namespace regard
