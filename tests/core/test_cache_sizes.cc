#include <gtest/gtest.h>

#include <string>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "regard/case.h"
#include "regard/context.h"

// What the sizes of caches decide changes no bits and writes no byte beside the outputs: outputs of
// calls beyond the last cache go past the caches where a line is written whole, and with a small L1
// pages of memory are touched before they are prefetched.

namespace regard::test {
namespace {

/// Bytes of the first cache, and of the last.
struct Caches {
  std::int64_t l1d, l3;
};

Env env_of(Caches caches, Isa isa) {
  Env env = read_env();
  env.isa = isa;
  env.l1d_bytes = caches.l1d;
  env.l3_bytes = caches.l3;
  env.concurrency = 2;
  return env;
}

/// What a call writes with these caches.
std::vector<unsigned char> outputs_of(conformance::Problem& problem, Caches caches, Isa isa) {
  Context context(env_of(caches, isa));
  problem.reset_outputs();
  const Status status = attention(context, problem.request());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(problem.check_memory(), "");
  return problem.output_bytes();
}

/// That outputs of the cases are the same with two kinds of caches.
void expect_same(Caches some, Caches others, std::initializer_list<const char*> cases) {
  const Env env = read_env();
  for (const char* words : cases) {
    for (const Isa isa : {env.isa, Isa(Isa::kAvx512), Isa(Isa::kAvx2), Isa(Isa::kScalar)}) {
      if (!env.isa.includes(isa)) continue;
      for (const conformance::Guard guard :
           {conformance::Guard::kNone, conformance::ProblemOptions().guard}) {
        conformance::Problem problem =
            conformance::make_problem(parse_case(words).value(), {guard});
        EXPECT_EQ(outputs_of(problem, some, isa), outputs_of(problem, others, isa))
            << words << " " << to_string(isa);
      }
    }
  }
}

TEST(CacheSizes, StreamedOutputsHaveTheBitsOfOthersAndWriteNothingBeside) {
  constexpr std::int64_t kL1 = 32768, kSmall = 1, kLarge = std::int64_t{1} << 40;
  expect_same(
      {kL1, kSmall}, {kL1, kLarge},
      {"b3 hq4 sq32 d64 f32", "b3 hq4 sq32 d64 f32 layout=bshd", "b2 hq2 sq17 d48 f32 lse",
       "b2 hq3 sq40 d96 bf16", "b2 hq3 sq40 d64 bf16 layout=bshd", "b2 hq4 hkv2 sq20 d128 bf16",
       "b2 hq2 sq24 d64 f16", "b2 hq2 sq31 d64 f32 causal diag=br", "b4 hq2 sq16 d64 f32 lens",
       "b1 hq2 sq100 skv33 d32 bf16", "b4 hq2 sq48 d64 f32 packed", "b2 hq2 sq20 d64 f64"});
}

TEST(CacheSizes, PagesThatAreTouchedBeforeChangeNoBits) {
  constexpr std::int64_t kTouched = 32768, kNot = 49152, kL3 = 1 << 25;
  expect_same({kTouched, kL3}, {kNot, kL3},
              {"b2 hq8 hkv2 sq1 skv300 d128 bf16", "b2 hq4 hkv2 sq2 skv200 d128 f32 layout=bshd",
               "b1 hq2 sq1 skv1500 d256 f16", "b2 hq4 hkv2 sq1 skv300 d128 bf16 kv=i8 scales",
               "b2 hq4 hkv2 sq1 skv320 d128 bf16 paged", "b3 hq4 sq33 d64 f32",
               "b3 hq2 sq40 d64 bf16 layout=bshd", "b4 hq2 sq48 d64 f32 packed"});
}

}  // namespace
}  // namespace regard::test
