#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "mock_backend.h"
#include "tests/support/scratch.h"

// The bytes of a workspace that a call touches: never more than the plan states, and how near to it
// they come on one thread.

namespace regard::test {
namespace {

// MATH comes within a page. FLASH and EFFICIENT state room for splits and for fewer rows, which not
// every call of the plan's class uses.
constexpr std::int64_t kPage = 4096, kSplits = 36 << 10;

struct Run {
  conformance::Problem problem;
  Plan plan;
  bool backward = false;
};

std::int64_t stated_bytes(const Run& run) {
  return run.backward ? run.plan.backward_workspace_bytes() : run.plan.workspace_bytes();
}

/// Executes on a workspace of this pattern; gives its bytes. Fails where a byte outside changed.
std::vector<unsigned char> bytes_after(const Run& run, unsigned char pattern) {
  Scratch scratch(stated_bytes(run), pattern);
  const AttentionGradRequest& request = run.problem.request();
  const Status status = run.backward ? execute_backward(run.plan, request, request, scratch.launch)
                                     : execute(run.plan, request, scratch.launch);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(scratch.intact());
  const auto* bytes = static_cast<const unsigned char*>(scratch.launch.workspace.data);
  return {bytes, bytes + scratch.launch.workspace.bytes};
}

/// Where the last byte that was written ends. Two patterns tell a byte that was written with the
/// pattern from one that was not.
std::int64_t touched_bytes(const Run& run) {
  const std::vector<unsigned char> ones = bytes_after(run, 0xa5), twos = bytes_after(run, 0x5a);
  for (std::size_t i = ones.size(); i-- > 0;) {
    if (ones[i] != 0xa5 || twos[i] != 0x5a) return static_cast<std::int64_t>(i) + 1;
  }
  return 0;
}

void check(const std::string& words, const BackendRef& backend) {
  SCOPED_TRACE(words + " on " + to_string(backend));
  Env env = read_env();
  env.concurrency = 1;
  Context context(env);
  const Case source = parse_case(words).value();
  const Expected<Plan> made = plan(context, source.params, only({backend}));
  ASSERT_TRUE(made.ok()) << made.status().message();
  Run run{conformance::make_problem(source), *made};
  const auto expect_used = [&] {
    const std::int64_t touched = touched_bytes(run);
    EXPECT_LE(touched, stated_bytes(run));
    const std::int64_t unused = backend == kMath ? kPage : kSplits;
    EXPECT_GE(touched, stated_bytes(run) - unused) << "of " << stated_bytes(run);
  };
  expect_used();
  if (!source.params.features.has(Feature::kNeedsGrad)) return;
  run.problem.begin_backward();
  run.backward = true;
  expect_used();
}

TEST(WorkspaceUse, IsWhatThePlanStates) {
  for (const BackendRef& backend : {kFlash, kEfficient, kMath}) {
    for (const char* words :
         {"b2 hq4 hkv2 sq1 skv1024 d64 f32", "b1 hq8 sq48 skv640 d64 bf16", "b2 hq4 sq512 d64 f32",
          "b2 hq4 sq512 d64 bf16 causal", "b1 hq4 sq256 d128 f16 mask",
          "b1 hq4 sq256 d64 f32 grad saved", "b1 hq4 sq256 d64 bf16 causal grad saved"}) {
      check(words, backend);
    }
  }
}

}  // namespace
}  // namespace regard::test
