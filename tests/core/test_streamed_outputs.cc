#include <gtest/gtest.h>

#include <string>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "regard/case.h"
#include "regard/context.h"

// Outputs of calls beyond the last cache, which go past the caches where a line is written whole:
// the same bits as those of calls within it, and no byte beside them.

namespace regard::test {
namespace {

Env env_of(std::int64_t l3_bytes, Isa isa) {
  Env env = read_env();
  env.isa = isa;
  env.l3_bytes = l3_bytes;
  env.concurrency = 2;
  return env;
}

/// What a call writes where the last cache has `l3_bytes`.
std::vector<unsigned char> outputs_of(conformance::Problem& problem, std::int64_t l3_bytes,
                                      Isa isa) {
  Context context(env_of(l3_bytes, isa));
  problem.reset_outputs();
  const Status status = attention(context, problem.request());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(problem.check_memory(), "");
  return problem.output_bytes();
}

TEST(StreamedOutputs, HaveTheBitsOfOthersAndWriteNothingBeside) {
  constexpr std::int64_t kSmall = 1, kLarge = std::int64_t{1} << 40;
  const Env env = read_env();
  for (const char* words :
       {"b3 hq4 sq32 d64 f32", "b3 hq4 sq32 d64 f32 layout=bshd", "b2 hq2 sq17 d48 f32 lse",
        "b2 hq3 sq40 d96 bf16", "b2 hq3 sq40 d64 bf16 layout=bshd", "b2 hq4 hkv2 sq20 d128 bf16",
        "b2 hq2 sq24 d64 f16", "b2 hq2 sq31 d64 f32 causal diag=br", "b4 hq2 sq16 d64 f32 lens",
        "b1 hq2 sq100 skv33 d32 bf16", "b4 hq2 sq48 d64 f32 packed", "b2 hq2 sq20 d64 f64"}) {
    for (const Isa isa : {env.isa, Isa(Isa::kAvx512), Isa(Isa::kAvx2), Isa(Isa::kScalar)}) {
      if (!env.isa.includes(isa)) continue;
      for (const conformance::Guard guard :
           {conformance::Guard::kNone, conformance::ProblemOptions().guard}) {
        conformance::Problem problem =
            conformance::make_problem(parse_case(words).value(), {guard});
        EXPECT_EQ(outputs_of(problem, kSmall, isa), outputs_of(problem, kLarge, isa))
            << words << " " << to_string(isa);
      }
    }
  }
}

}  // namespace
}  // namespace regard::test
