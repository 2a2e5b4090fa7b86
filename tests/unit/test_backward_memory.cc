#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "backends/cpu_flash/backend.h"
#include "conformance/problem.h"
#include "regard/attention.h"
#include "regard/context.h"
#include "tests/support/backends.h"
#include "tests/support/executors.h"
#include "tests/support/scratch.h"

// What a backward in one pass keeps of the heads under way: bounded, and of no consequence for
// bits.

namespace regard {
namespace {

using conformance::Guard;

KernelPlan plan_backward(const std::string& text, int workers) {
  const Env env = test::make_context(read_env().isa_available, workers)->env();
  return flash::backend()
      .plan_backward(AttentionKey::make(parse_case(text)->params, false).value(), env)
      .value();
}

TEST(BackwardMemory, IsBoundedOnManyWorkers) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const std::string sizes = " sq16384 d128 f32 lse grad";
  const std::int64_t one = plan_backward("b1 hq1" + sizes, 64).workspace_bytes;
  EXPECT_LT(one, kGiB / 4);
  // Each worker's scratch, and a GiB of heads; without a bound they take 4.8 GB.
  EXPECT_LT(plan_backward("b1 hq64" + sizes, 64).workspace_bytes, one + kGiB);
  EXPECT_GT(plan_backward("b1 hq64" + sizes, 64).workspace_bytes, kGiB / 2);
  // One head may be larger.
  EXPECT_GT(plan_backward("b1 hq64 sq1000000 d128 f32 lse grad", 64).workspace_bytes, kGiB);
}

/// The bytes of every gradient, computed in the workspace of a plan.
std::vector<unsigned char> gradients_by(const KernelPlan& plan, conformance::Problem* problem,
                                        Executor* executor) {
  const AttentionGradRequest& request = problem->request();
  Context context;
  problem->reset_outputs();
  check(attention(context, request));
  problem->begin_backward();
  test::Scratch scratch(plan.workspace_bytes);
  scratch.launch.executor = executor;
  const AttentionParams params = describe(request).value();
  check(flash::backend().execute_backward(plan, params, request, request, scratch.launch));
  EXPECT_TRUE(scratch.intact());
  EXPECT_EQ(problem->check_memory(), "");
  return problem->output_bytes();
}

// Workers that have no memory help with the heads of others.
TEST(BackwardMemory, FewerHeadWorkspacesThanWorkersGiveTheSameBits) {
  for (const std::string sizes :
       {" sq800 d16 f32 causal lse grad", " sq500 skv900 d8 bf16 lse grad"}) {
    constexpr int kWorkers = 4;
    conformance::Problem problem = conformance::make_problem(parse_case("b1 hq7" + sizes).value(),
                                                             {Guard::kCanaries, /*dense=*/true});
    test::SerialExecutor serial;
    test::BackwardsExecutor backwards;
    test::TeamExecutor team;
    test::CountingExecutor counting;  // a thread a worker
    const KernelPlan whole = plan_backward("b1 hq7" + sizes, kWorkers);
    ASSERT_EQ(whole.workers, kWorkers);
    const std::vector<unsigned char> expected = gradients_by(whole, &problem, &serial);
    const std::int64_t head_bytes = plan_backward("b1 hq3" + sizes, kWorkers).workspace_bytes -
                                    plan_backward("b1 hq2" + sizes, kWorkers).workspace_bytes;
    ASSERT_GT(head_bytes, 0);
    for (const std::int64_t heads : {1, 2, 3, 4}) {
      KernelPlan limited = whole;
      limited.workspace_bytes -= (kWorkers - heads) * head_bytes;
      for (Executor* executor :
           std::initializer_list<Executor*>{&serial, &backwards, &team, &counting}) {
        EXPECT_EQ(gradients_by(limited, &problem, executor), expected) << sizes << " " << heads;
      }
    }
  }
}

/// What the Context plans under a limit.
Expected<Plan> plan_within(Context& context, const std::string& text, std::int64_t limit) {
  Policy policy;
  policy.only = std::vector<BackendRef>{{BackendId::kFlash}};
  policy.max_workspace_bytes = limit;
  return plan(context, parse_case(text)->params, policy);
}

// A limit leaves fewer heads under way; it refuses a backward only where one head is too large.
TEST(BackwardMemory, APolicyLimitPlansFewerHeads) {
  constexpr int kWorkers = 8;
  const std::string sizes = " sq800 d16 f32 causal lse grad";
  const auto context = test::make_context(read_env().isa_available, kWorkers);
  conformance::Problem problem = conformance::make_problem(parse_case("b1 hq8" + sizes).value(),
                                                           {Guard::kCanaries, /*dense=*/true});
  test::TeamExecutor team;
  const KernelPlan whole = plan_backward("b1 hq8" + sizes, kWorkers);
  const std::vector<unsigned char> expected = gradients_by(whole, &problem, &team);
  const std::int64_t head_bytes =
      whole.workspace_bytes - plan_backward("b1 hq7" + sizes, kWorkers).workspace_bytes;
  ASSERT_GT(head_bytes, 0);
  for (std::int64_t heads = 1; heads <= 8; ++heads) {
    const std::int64_t bytes = whole.workspace_bytes - (8 - heads) * head_bytes;
    for (const std::int64_t more : {std::int64_t{0}, head_bytes - 1}) {
      const Plan limited = plan_within(*context, "b1 hq8" + sizes, bytes + more).value();
      EXPECT_EQ(limited.backward_workspace_bytes(), bytes) << heads;
      EXPECT_EQ(limited.backward_kernel().workers, whole.workers) << heads;
      EXPECT_EQ(gradients_by(limited.backward_kernel(), &problem, &team), expected) << heads;
    }
  }
  const std::int64_t min = whole.workspace_bytes - 7 * head_bytes;
  const Expected<Plan> refused = plan_within(*context, "b1 hq8" + sizes, min - 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find(std::to_string(min)), std::string::npos)
      << refused.status().message();
}

}  // namespace
}  // namespace regard
