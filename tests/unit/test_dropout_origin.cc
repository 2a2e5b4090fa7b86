#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "regard/case.h"
#include "regard/dropout.h"
#include "regard/request.h"

// dropout_origin: part of a call draws the mask of the whole.

namespace regard {
namespace {

std::vector<unsigned char> mask_of(const char* text, const DropoutOrigin& origin,
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
  const auto whole = mask_of("b2 hq4 hkv4 sq20 skv40 d8 dropout=0.3 diag=tl causal", {}, 0);
  // Sequence 1, heads 1 and 2, rows from 5, keys from 16.
  const DropoutOrigin origin{16, 16, 4 + 1, 4};
  const auto part = mask_of("b1 hq2 hkv2 sq15 skv24 d8 dropout=0.3 diag=5 causal", origin, 5 - 16);
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

}  // namespace
}  // namespace regard
