#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "oracle/number.h"
#include "oracle/padded.h"
#include "oracle/rules.h"
#include "property.h"

// The Walsh-Hadamard matrix in the call: the bits of a call whose queries and keys were multiplied
// before, and, up to rounding, the results of a call without it.

namespace regard {
namespace {

using conformance::Problem;
using test::unequal;

class Hadamard : public test::Property {};

TEST_P(Hadamard, IsTheCallOfMixedRows) {
  for (const char* text :
       {"b3 hq4 hkv2 sq1 skv640 d64 bf16 paged page_size=16 append causal diag=br "
        "lens_kv=639,77,0 hadamard rotary=64",
        "b2 hq2 sq5 skv200 d32 f32 append=5 causal diag=br lens_kv=195,3 hadamard",
        "b2 hq2 sq70 skv320 d16 dv24 f16 kv=i8 scales=token paged page_size=5 append=70 "
        "lens_kv=0,250 hadamard rotary=10 rotary_interleaved",
        "b2 hq4 hkv2 sq3 skv96 d64 f8e4m3 append=3 lens=kv descales hadamard",
        "b2 hq2 sq130 skv96 d1 f32 lens=q hadamard",
        "b2 hq2 sq9 skv96 d256 bf16 hadamard lens=q"}) {
    const std::string with_lse = std::string(text) + " lse seed=1";
    const Problem problem = problem_of(with_lse);
    const AttentionGradRequest& r = problem.request();
    const oracle::Padded twin = oracle::Padded::make(r).value();
    const AttentionRequest mixed = run_anew(test::without_cache(r, twin));
    run(r);
    EXPECT_EQ(unequal(r.out, mixed.out), "") << text;
    EXPECT_EQ(unequal(r.lse, mixed.lse), "") << text;
    EXPECT_EQ(problem.check_memory(), "") << text;
  }
}

TEST_P(Hadamard, LeavesScoresWhatTheyAre) {
  const std::string text = "b2 hq4 hkv2 sq6 skv40 d64 f32 append=40 lens_kv=0,0 lse seed=3";
  const Problem plain = problem_of(text), mixed = problem_of(text + " hadamard");
  run(plain.request());
  run(mixed.request());
  EXPECT_NE(unequal(mixed.request().k, plain.request().k), "");
  for (const auto tensor : {&Buffers::out, &Buffers::lse}) {
    const TensorView& expected = plain.request().*tensor;
    conformance::for_each_element(mixed.request().*tensor, [&](const auto& at, unsigned char* x) {
      ASSERT_NEAR(oracle::decode(x, Dtype::kF32),
                  oracle::element(expected, at[0], at[1], at[2], at[3]), 1e-5);
    });
  }
}

REGARD_INSTANTIATE_PROPERTIES(Hadamard);

}  // namespace
}  // namespace regard
