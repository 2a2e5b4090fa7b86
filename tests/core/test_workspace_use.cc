#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "mock_backend.h"
#include "tests/support/scratch.h"

// The bytes of a workspace that a call touches: never more than the plan states, and on one thread
// all of its pages but one; FLASH's backward states up to 80 KiB that short sequences leave.

namespace regard::test {
namespace {

constexpr std::int64_t kPage = 4096, kFlashBackward = 80 << 10;

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

/// Bytes of the pages that some byte was written in. Two patterns tell a byte that was written with
/// the pattern from one that was not.
std::int64_t touched_bytes(const Run& run) {
  const std::vector<unsigned char> ones = bytes_after(run, 0xa5), twos = bytes_after(run, 0x5a);
  std::int64_t touched = 0;
  for (std::size_t page = 0; page < ones.size(); page += kPage) {
    const std::size_t end = std::min(page + kPage, ones.size());
    bool is_touched = false;
    for (std::size_t i = page; i < end; ++i) {
      is_touched = is_touched || ones[i] != 0xa5 || twos[i] != 0x5a;
    }
    if (is_touched) touched += static_cast<std::int64_t>(end - page);
  }
  return touched;
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
    const std::int64_t unused = run.backward && backend == kFlash ? kFlashBackward : kPage;
    EXPECT_GE(touched_bytes(run), stated_bytes(run) - unused) << "of " << stated_bytes(run);
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
         {"b2 hq4 hkv2 sq1 skv1024 d64 f32", "b1 hq4 hkv1 sq4 skv4096 d128 bf16",
          "b1 hq8 sq48 skv640 d64 bf16", "b1 hq2 sq40 skv2048 d64 f32", "b2 hq4 sq512 d64 f32",
          "b2 hq4 sq512 d64 bf16 causal", "b1 hq4 sq256 d128 f16 mask",
          "b1 hq2 sq512 skv2048 d64 f32", "b1 hq2 sq400 skv1024 d128 bf16",
          "b1 hq4 sq256 d64 f32 grad saved", "b1 hq4 sq256 d64 bf16 causal grad saved"}) {
      check(words, backend);
    }
  }
}

}  // namespace
}  // namespace regard::test
