#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "conformance/memory.h"
#include "cpu/threads/worker_hook.h"
#include "oracle/number.h"
#include "property.h"
#include "tests/support/allocations.h"
#include "tests/support/executors.h"
#include "tests/support/fixed_cases.h"
#include "tests/support/moved_maximum.h"

// What decides no bit of a gradient.

namespace regard {
namespace {

using conformance::Block;
using conformance::Guard;
using conformance::Problem;
using test::largest_difference;
using test::slice;
using test::unequal;

class Backward : public test::Property {
 protected:
  /// Runs the problem's forward and backward by a plan, in exactly the workspaces that are stated.
  static void run_pair(const Plan& made, Problem* problem, Executor* executor = nullptr) {
    const AttentionGradRequest& request = problem->request();
    problem->reset_outputs();
    {
      const Block workspace = workspace_of(made.workspace_bytes());
      check(execute(made, request, {executor, nullptr, {workspace.data(), workspace.size()}}));
      ASSERT_TRUE(workspace.intact());
    }
    problem->begin_backward();
    const Block workspace = workspace_of(made.backward_workspace_bytes());
    const Launch launch{executor, nullptr, {workspace.data(), workspace.size()}};
    check(execute_backward(made, request, request, launch));
    ASSERT_TRUE(workspace.intact());
    ASSERT_EQ(problem->check_memory(), "");
  }

  /// On so many workers.
  static void run_pair(Problem* problem, int workers, Executor* executor = nullptr) {
    const auto context = test::make_context(GetParam().isa, workers);
    const Plan made = test::plan_forced(*context, problem->request(), GetParam());
    const Isa unit = test::backward_isa(GetParam(), describe(problem->request()).value());
    ASSERT_EQ(made.backward_kernel().isa, unit) << made.to_string();
    run_pair(made, problem, executor);
  }

  static int count_nan(const TensorView& view) {
    int count = 0;
    conformance::for_each_element(view, [&](const auto&, const unsigned char* at) {
      std::uint32_t bits = 0;
      std::memcpy(reinterpret_cast<char*>(&bits) + 4 - size_of(view.dtype), at,
                  static_cast<std::size_t>(size_of(view.dtype)));  // bf16 is the upper half
      count += std::isnan(std::bit_cast<float>(bits)) ? 1 : 0;
    });
    return count;
  }

  /// Of dense tensors of one type.
  TensorView sum_of(const TensorView& a, const TensorView& b) {
    const TensorView sum = tensors_.copy(a);
    const auto* other = static_cast<const unsigned char*>(b.data);
    conformance::for_each_element(sum, [&](const auto&, unsigned char* at) {
      oracle::encode(oracle::decode(at, a.dtype) + oracle::decode(other, a.dtype), at, a.dtype);
      other += size_of(a.dtype);
    });
    return sum;
  }

  /// Each sequence's gradients are those that it has alone.
  void expect_alone(const AttentionGradRequest& whole) {
    for (std::int64_t b = 0; b < whole.q.shape[0]; ++b) {
      AttentionGradRequest alone = whole;
      for (TensorView* view : {&alone.q, &alone.k, &alone.v, &alone.out, &alone.saved_stats,
                               &alone.lse, &alone.saved.stats, &alone.d_out, &alone.delta,
                               &alone.d_lse, &alone.d_q, &alone.d_k, &alone.d_v}) {
        if (view->present()) *view = slice(*view, 0, b, 1);
      }
      for (TensorView* view : {&alone.d_q, &alone.d_k, &alone.d_v}) {
        if (view->present()) *view = tensors_.copy(*view);
      }
      Policy policy;
      policy.only = std::vector<BackendRef>{GetParam().backend};
      const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
      check(attention_backward(*context_, alone));
      EXPECT_EQ(unequal(slice(whole.d_q, 0, b, 1), alone.d_q), "") << b;
      EXPECT_EQ(unequal(slice(whole.d_k, 0, b, 1), alone.d_k), "") << b;
      EXPECT_EQ(unequal(slice(whole.d_v, 0, b, 1), alone.d_v), "") << b;
    }
  }

 private:
  static Block workspace_of(std::int64_t bytes) {
    Block workspace(static_cast<std::size_t>(bytes), 6, Guard::kCanaries);
    workspace.fill(0xff);
    return workspace;
  }
};

// The workers take whole heads while there are enough, and work items of those under way.
TEST_P(Backward, BitsDoNotDependOnWorkers) {
  for (const char* text : test::block_cases()) {
    Problem problem = problem_of(text);
    run_pair(&problem, 1);
    const std::vector<unsigned char> one = problem.output_bytes();
    for (const int workers : {2, 7, 64}) {
      run_pair(&problem, workers);
      EXPECT_TRUE(one == problem.output_bytes()) << text << " on " << workers << " workers";
    }
  }
}

// Work items of a head wait for one another, whoever runs the workers.
TEST_P(Backward, ExecutorsDecideNoBit) {
  for (const char* text :
       {"b1 hq1 sq2000 d8 f32 causal saved grad", "b3 hq1 sq1500 skv1900 d8 bf16 lens saved grad",
        "b1 hq40 sq390 d8 f32 saved grad"}) {
    Problem problem = problem_of(text);
    run_pair(&problem, 1);
    const std::vector<unsigned char> one = problem.output_bytes();
    test::CountingExecutor counting;
    test::BackwardsExecutor backwards;
    test::SerialExecutor serial;
    test::TeamExecutor team;
    for (Executor* executor :
         std::initializer_list<Executor*>{&counting, &backwards, &serial, &team}) {
      run_pair(&problem, 4, executor);
      EXPECT_TRUE(one == problem.output_bytes()) << text;
    }
  }
}

/// While it lives, workers set one count of 16 10 ms late; the program ends where they wait for
/// 30 seconds and none sets a count.
class LateCounts {
 public:
  LateCounts() {
    last_set = now();
    cpu::worker_hook.store(at_point);
  }
  ~LateCounts() { cpu::worker_hook.store(nullptr); }

 private:
  static std::int64_t now() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
  }
  static void at_point(cpu::WorkerPoint point, const std::int64_t*, std::int64_t) {
    if (point == cpu::WorkerPoint::kPublish) {
      last_set = now();
      static std::atomic<std::uint32_t> counts{0};
      const std::uint32_t random = ++counts * 2654435769U;
      if (random >> 28 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } else if (point == cpu::WorkerPoint::kWait) {
      if (now() - last_set > 30'000) {
        std::fputs("workers wait for a count that nobody sets\n", stderr);
        std::abort();
      }
      std::this_thread::yield();
    }
  }

  static inline std::atomic<std::int64_t> last_set{0};
};

TEST_P(Backward, EndsHoweverLateCountsAreSet) {
  for (const char* text :
       {"b1 hq1 sq1150 skv768 d8 f32 saved grad", "b1 hq1 sq700 skv1500 d8 bf16 saved grad"}) {
    Problem problem = problem_of(text);
    run_pair(&problem, 1);
    const std::vector<unsigned char> one = problem.output_bytes();
    const LateCounts late;
    for (int i = 0; i < 12; ++i) {
      run_pair(&problem, 7);
      EXPECT_TRUE(one == problem.output_bytes()) << text;
    }
  }
}

TEST_P(Backward, ASequenceAloneHasTheSameBits) {
  for (const char* dtype : {"f32", "bf16"}) {
    Problem batch = problem_of(std::string("b5 hq4 hkv2 sq400 skv450 d16 ") + dtype +
                               " causal diag=br saved grad");
    run_pair(&batch, 2);
    expect_alone(batch.request());
  }
  Problem long_ones = problem_of("b3 hq1 sq700 skv1500 d8 f32 saved grad");
  run_pair(&long_ones, 7);
  expect_alone(long_ones.request());
}

// A plan serves every smaller call in its workspaces, with the bits of the call's own plan.
TEST_P(Backward, APlanForMoreGivesTheSameBits) {
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string words = std::string(" d16 ") + dtype + " causal diag=br lens saved grad";
    const AttentionParams large = parse_case("b5 hq4 hkv2 sq500 skv900" + words).value().params;
    for (const int workers : {2, 16}) {
      const auto context = test::make_context(GetParam().isa, workers);
      const Plan plan_for_more = plan(*context, large, policy).value();
      for (const char* text : {"b1 hq4 hkv2 sq1 skv1", "b5 hq4 hkv2 sq1 skv900",
                               "b1 hq4 hkv2 sq500 skv900", "b3 hq4 hkv2 sq65 skv63"}) {
        Problem problem = problem_of(text + words);
        run_pair(&problem, 2);
        const std::vector<unsigned char> own = problem.output_bytes();
        run_pair(plan_for_more, &problem);
        EXPECT_TRUE(own == problem.output_bytes())
            << text << words << " on " << workers << " workers";
      }
    }
  }
}

// A row whose queries are NaN sees one key; nothing else has part in it, neither through the other
// half of its pair nor, where it is the last of an odd number, through lanes that stand for that
// row under another's mask.
TEST_P(Backward, ANaNRowReachesOnlyItsKeys) {
  for (const char* dtype : {"f32", "bf16"}) {
    for (const std::int64_t row : {33, 34}) {
      Problem problem =
          problem_of(std::string("b1 hq1 sq35 skv70 d16 ") + dtype + " mask saved grad");
      AttentionGradRequest request = problem.request();
      request.d_lse = request.delta = {};
      request.q = tensors_.copy(request.q);
      request.attn_mask = tensors_.copy(request.attn_mask);
      conformance::for_each_element(request.q, [&](const auto& index, unsigned char* at) {
        if (index[2] == row) std::fill_n(at, size_of(request.q.dtype), 0xff);
      });
      conformance::for_each_element(request.attn_mask, [&](const auto& index, unsigned char* at) {
        *at = index[2] != row || index[3] == 0;
      });
      run(request);
      Policy policy;
      policy.only = std::vector<BackendRef>{GetParam().backend};
      const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
      check(attention_backward(*context_, request));
      for (const TensorView* view : {&request.d_k, &request.d_v}) {
        EXPECT_EQ(count_nan(slice(*view, 2, 1, 69)), 0) << dtype << " row " << row;
        EXPECT_EQ(count_nan(*view), 16) << dtype << " row " << row;
      }
      EXPECT_EQ(count_nan(request.d_q), 16) << dtype << " row " << row;
    }
  }
}

// An lse of more keys than a call has, with the out of them all, as merge_states gives them: so few
// keys that a rounded out's delta would come from the probabilities, were they all.
TEST_P(Backward, BackwardOfSplitsTakesTheMergedLse) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    Problem problem = problem_of(std::string("b1 hq2 sq33 skv128 d16 lse grad ") + dtype);
    AttentionGradRequest whole = problem.request();
    whole.d_lse = whole.delta = {};
    run(whole);
    whole.saved = {};
    whole.saved.kind = SavedContext::Kind::kLse;
    whole.saved.stats = whole.lse;
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
    check(attention_backward(*context_, whole));
    const double bound = whole.q.dtype == Dtype::kF32 ? 1e-6 : 0.03;
    std::vector<TensorView> d_q;
    for (const std::int64_t begin : {0, 64}) {
      AttentionGradRequest part = whole;
      for (TensorView* view : {&part.k, &part.v, &part.d_k, &part.d_v}) {
        *view = slice(*view, 2, begin, 64);
      }
      for (TensorView* view : {&part.d_q, &part.d_k, &part.d_v}) *view = tensors_.copy(*view);
      check(attention_backward(*context_, part));
      EXPECT_LT(largest_difference(part.d_k, slice(whole.d_k, 2, begin, 64)), bound) << dtype;
      EXPECT_LT(largest_difference(part.d_v, slice(whole.d_v, 2, begin, 64)), bound) << dtype;
      d_q.push_back(part.d_q);
    }
    EXPECT_LT(largest_difference(sum_of(d_q[0], d_q[1]), whole.d_q), bound) << dtype;
  }
}

TEST_P(Backward, AMovedMaximumMovesGradientsByAsMuch) {
  test::expect_moved_maximum_moves_as_much(*context_, GetParam().backend);
}

// FLASH keeps packed rows, keys and values, and sums of as many heads as there are workers: nine
// times [seqlen][head_dim] in f32. EFFICIENT and MATH keep those of a tile.
TEST_P(Backward, MemoryIsLinearInTheLengthAtMost) {
  std::vector<std::int64_t> bytes;
  for (const char* text : {"b1 hq2 sq4096 d64 f32 saved grad", "b1 hq2 sq8192 d64 f32 saved grad",
                           "b1 hq2 sq16384 d64 f32 saved grad"}) {
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    bytes.push_back(plan(*context_, parse_case(text).value().params, policy)
                        .value()
                        .backward_workspace_bytes());
  }
  const std::int64_t rows = std::int64_t{16384} * 64 * 4, heads = 2;
  EXPECT_LE(bytes[2], 2 * bytes[1]);
  EXPECT_LE(bytes[1], 2 * bytes[0]);
  EXPECT_LE(bytes[2], heads * 10 * rows);
  if (GetParam().backend.id == BackendId::kEfficient) {
    EXPECT_EQ(bytes[2], bytes[0]);
  }
}

TEST_P(Backward, ALongSequenceStaysWithinTheStatedMemory) {
  if (GetParam().isa == Isa::kScalar) GTEST_SKIP() << "half a minute in scalar code";
  Problem problem = problem_of("b1 hq1 sq16384 d8 f32 causal saved grad");
  run_pair(&problem, 2);
}

#if !defined(__SANITIZE_THREAD__)  // GCC 12's runtime does not report aligned_alloc to its hooks

// What the program's allocations say of the same: a Context takes what the plan states, and some
// bookkeeping.
TEST_P(Backward, AllocatesWhatThePlanStates) {
  if (GetParam().isa == Isa::kScalar) GTEST_SKIP() << "half a minute in scalar code";
  const auto context = test::make_context(GetParam().isa, 2);
  Problem problem = problem_of("b1 hq1 sq16384 d8 f32 causal saved grad");
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
  check(attention(*context, problem.request()));
  problem.begin_backward();
  const Plan made = plan(*context, describe(problem.request()).value()).value();
  context->trim();
  const test::AllocationCounter counter;
  check(attention_backward(*context, problem.request()));
  const auto stated = static_cast<std::uint64_t>(made.backward_workspace_bytes());
  EXPECT_GE(counter.bytes(), stated);
  EXPECT_LE(counter.bytes(), stated + (1 << 15));
}

#endif

REGARD_INSTANTIATE_PROPERTIES(Backward);

}  // namespace
}  // namespace regard
