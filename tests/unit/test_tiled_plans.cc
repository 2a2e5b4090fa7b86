#if defined(__x86_64__) && !defined(REGARD_NO_AVX512_BF16)

#include <gtest/gtest.h>

#include <string>

#include "backends/cpu_efficient/backend.h"
#include "backends/cpu_flash/backend.h"
#include "regard/case.h"

// Which kernels FLASH and EFFICIENT plan.

namespace regard {
namespace {

std::string planned(const Backend& backend, const std::string& text) {
  AttentionParams params = parse_case(text).value().params;
  Env env = read_env();
  env.isa = env.isa_available = Isa::kAvx512Bf16;
  return backend.plan(AttentionKey::make(params, false).value(), env).value().kernel;
}

bool has_lanes_along_head_dim(const std::string& kernel) { return kernel.ends_with("_decode"); }

// The two kernels differ in the number of rows from which rows lie in lanes: 12 rows tell them
// apart.
TEST(TiledPlans, PairsOfBf16NeedThatQKAndVAreBf16) {
  for (const Backend* backend : {&flash::backend(), &efficient::backend()}) {
    EXPECT_FALSE(has_lanes_along_head_dim(planned(*backend, "sq12 d8 bf16")));
    for (const char* mixed : {"f32", "bf16 kv=f32", "bf16 kv=f16", "f32 kv=bf16", "f16"}) {
      const std::string kernel = planned(*backend, std::string("sq12 d8 ") + mixed);
      EXPECT_TRUE(has_lanes_along_head_dim(kernel)) << mixed << " runs " << kernel;
    }
  }
}

}  // namespace
}  // namespace regard

#endif
