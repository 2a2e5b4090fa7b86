#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "oracle/number.h"
#include "oracle/oracle.h"
#include "oracle/padded.h"
#include "oracle/rules.h"
#include "property.h"
#include "regard/shared_prefix.h"

// Sequences that share their first pages: a call that reads them once is within the tolerance of
// the call that reads them by sequence, whatever else the call does.

namespace regard {
namespace {

using conformance::Problem;
using test::unequal;

class SharedPrefix : public test::Property {
 protected:
  Status run_shared(const AttentionRequest& request, std::int64_t shared) {
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    return attention_shared_prefix(*context_, request, shared, policy);
  }
};

/// The first pages of all sequences become those of sequence 0.
void share_pages(const AttentionRequest& r, std::int64_t pages) {
  const TensorView& table = r.page_table;
  auto* const ids = static_cast<std::int32_t*>(table.data);
  for (std::int64_t b = 1; b < table.shape[0]; ++b) {
    for (std::int64_t page = 0; page < pages; ++page) {
      ids[b * table.strides[0] + page * table.strides[1]] = ids[page * table.strides[1]];
    }
  }
}

struct Shared {
  const char* text;
  std::int64_t keys;
};

const Shared kShared[] = {
    {"b3 hq4 hkv2 sq1 skv640 d64 bf16 paged page_size=16 lens_kv=640,600,512", 512},
    {"b3 hq4 hkv2 sq1 skv640 d64 f32 paged page_size=16 causal diag=br append lens_kv=639,600,512",
     512},
    {"b2 hq8 hkv2 sq5 skv320 d40 f16 paged page_size=5 causal diag=br append=5 lens_kv=300,165 "
     "rotary=32 softcap=5 sinks",
     160},
    {"b2 hq4 hkv2 sq3 skv96 d24 dv16 f32 kv=i8 scales=token paged page_size=16 append=3 "
     "lens_kv=93,64 rotary=24 positions tree=3 channel_scales",
     48},
    {"b2 hq4 hkv2 sq3 skv96 d64 f32 kv=u4 paged page_size=16 append=3 lens_kv=93,64 hadamard", 48},
    {"b4 hq4 hkv2 sq40 skv640 d32 bf16 paged page_size=16 causal diag=br packed rows_q=40,1,0,7 "
     "total_q=50 lens_kv=640,333,300,364",
     288},
    {"b3 hq2 sq9 skv400 d64 f32 paged page_size=80 lens_q=9,4,0 lens_kv=400,80,390 descales", 80},
    {"b2 hq2 sq2 skv64 d8 f64 paged page_size=16 lens_kv=64,40", 32},
};

TEST_P(SharedPrefix, IsWithinTheToleranceOfTheCallBySequence) {
  for (const Shared& shared : kShared) {
    for (const char* outputs : {" lse saved seed=1", " layout=bshd seed=2"}) {
      const std::string text = std::string(shared.text) + outputs;
      const Problem problem = problem_of(text);
      const AttentionGradRequest& r = problem.request();
      auto* const ids = static_cast<std::int32_t*>(r.page_table.data);
      const std::vector<std::int32_t> drawn(ids, ids + r.page_table.num_elements());
      share_pages(r, shared.keys / r.k.shape[2]);
      const Expected<oracle::Truth> truth = oracle::compute(r);
      ASSERT_TRUE(truth.ok()) << truth.status().to_string();
      Policy policy;
      policy.only = std::vector<BackendRef>{GetParam().backend};
      if (!explain(*context_, describe(r).value(), policy).ok()) continue;  // f64
      const Status status = run_shared(r, shared.keys);
      ASSERT_TRUE(status.ok()) << text << ": " << status.to_string();
      expect_within_tolerance(r, *truth, text);
      std::copy(drawn.begin(), drawn.end(), ids);  // new rows lie in pages that nobody shares
      EXPECT_EQ(problem.check_memory(), "") << text;
    }
  }
}

TEST_P(SharedPrefix, APlanHasTheBitsOfTheCall) {
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  for (const Shared& shared : kShared) {
    for (const char* outputs : {" lse saved seed=1", " layout=bshd seed=2"}) {
      const std::string text = std::string(shared.text) + outputs;
      Problem problem = problem_of(text);
      const AttentionGradRequest& r = problem.request();
      share_pages(r, shared.keys / r.k.shape[2]);
      const AttentionParams params = describe(r).value();
      if (!explain(*context_, params, policy).ok()) continue;  // f64
      ASSERT_TRUE(run_shared(r, shared.keys).ok()) << text;
      const std::vector<unsigned char> expected = problem.output_bytes();
      const auto plan = plan_shared_prefix(*context_, params, shared.keys, policy);
      ASSERT_TRUE(plan.ok()) << text << ": " << plan.status().to_string();
      std::vector<char> memory(static_cast<std::size_t>(plan->workspace_bytes()) + 64, '\x7f');
      const auto at = (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64;
      Launch launch;
      launch.workspace = {reinterpret_cast<void*>(at), memory.size() - 64};
      for (int turn = 0; turn < 2; ++turn) {
        problem.reset_outputs();
        const Status status = execute_shared_prefix(*plan, r, launch);
        ASSERT_TRUE(status.ok()) << text << ": " << status.to_string();
        EXPECT_EQ(problem.output_bytes(), expected) << text;
      }
    }
  }
}

TEST_P(SharedPrefix, OfNoKeysIsTheCallItself) {
  const Problem problem =
      problem_of("b2 hq4 hkv2 sq3 skv320 d64 f32 paged causal diag=br lens_kv=300,7 lse seed=3");
  const AttentionGradRequest& r = problem.request();
  ASSERT_TRUE(run_shared(r, 0).ok());
  EXPECT_EQ(unequal(r.out, run_anew(r).out), "");
}

REGARD_INSTANTIATE_PROPERTIES(SharedPrefix);

}  // namespace
}  // namespace regard
