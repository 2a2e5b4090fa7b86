#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cfenv>
#include <memory>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "tests/support/backends.h"
#include "tests/support/executors.h"
#include "tests/support/scratch.h"
#include "tests/support/tensors.h"

// The floating-point environment of the thread that calls: no bit depends on it, whichever thread
// computes a worker, and the caller has it back afterwards.

namespace regard {
namespace {

using conformance::Guard;
using test::Forced;

enum class Mode { kDefault, kUp, kDown, kFlush, kFlushAndUp, kTraps };

const char* name_of(Mode mode) {
  switch (mode) {
    case Mode::kDefault: return "default";
    case Mode::kUp: return "up";
    case Mode::kDown: return "down";
    case Mode::kFlush: return "flush";
    case Mode::kFlushAndUp: return "flush_up";
    case Mode::kTraps: return "traps";
  }
  return "?";
}

constexpr Mode kModes[] = {Mode::kUp, Mode::kDown, Mode::kFlush, Mode::kFlushAndUp, Mode::kTraps};

void set_mode(Mode mode) {
  std::fesetenv(FE_DFL_ENV);
  if (mode == Mode::kUp || mode == Mode::kFlushAndUp) std::fesetround(FE_UPWARD);
  if (mode == Mode::kDown) std::fesetround(FE_DOWNWARD);
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  if (mode == Mode::kFlush || mode == Mode::kFlushAndUp) {
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
  }
#endif
#if defined(__GLIBC__)
  if (mode == Mode::kTraps) feenableexcept(FE_ALL_EXCEPT);
#endif
}

/// All that a caller can set; not the flags that arithmetic raises.
std::string current_mode() {
  std::string text = std::to_string(std::fegetround());
#if defined(__x86_64__)
  constexpr unsigned kFlags = 0x3f;
  text += " mxcsr " + std::to_string(_mm_getcsr() & ~kFlags);
#endif
#if defined(__GLIBC__)
  text += " traps " + std::to_string(fegetexcept());
#endif
  return text;
}

/// Runs f in a mode, which must be the same afterwards; the test itself runs in the default one.
template <class F>
void in_mode(Mode mode, F f) {
  set_mode(mode);
  const std::string before = current_mode();
  f();
  const std::string after = current_mode();
  set_mode(Mode::kDefault);
  EXPECT_EQ(before, after) << name_of(mode);
}

class FloatEnvironment : public testing::TestWithParam<Forced> {
 protected:
  ~FloatEnvironment() override { set_mode(Mode::kDefault); }

  /// Forward and, with needs_grad, backward on `workers`; the modes begin at the library's calls.
  static void run(Mode mode, conformance::Problem* problem, int workers, Executor* executor) {
    const auto context = test::make_context(GetParam().isa, workers);
    const Plan made = test::plan_forced(*context, problem->request(), GetParam());
    const AttentionGradRequest& request = problem->request();
    problem->reset_outputs();
    test::Scratch forward(made.workspace_bytes());
    forward.launch.executor = executor;
    Status status;
    in_mode(mode, [&] { status = execute(made, request, forward.launch); });
    ASSERT_TRUE(status.ok()) << status.to_string();
    if (!problem->request().options.needs_grad) return;
    problem->begin_backward();
    test::Scratch backward(made.backward_workspace_bytes());
    backward.launch.executor = executor;
    in_mode(mode, [&] { status = execute_backward(made, request, request, backward.launch); });
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

const char* const kCases[] = {
    "b1 hq2 hkv1 sq130 skv130 d72 f32 causal lse saved data=denormal grad seed=1",
    "b1 hq2 hkv2 sq70 skv140 d64 bf16 lse saved data=denormal grad seed=2",
    "b1 hq2 hkv2 sq70 skv140 d40 f16 softcap=5 alibi diag=br lse saved data=denormal grad seed=3",
    "b2 hq8 hkv2 sq1 skv1600 d80 f32 causal diag=br lse data=denormal seed=4",
    "b2 hq8 hkv2 sq1 skv1600 d64 bf16 lse seed=5",
};

void expect_equal(const AttentionGradRequest& a, const AttentionGradRequest& b,
                  const std::string& what) {
  const auto compare = [&](const char* name, const TensorView& x, const TensorView& y) {
    if (x.present()) {
      EXPECT_EQ(test::unequal(x, y), "") << name << " of " << what;
    }
  };
  compare("out", a.out, b.out);
  compare("lse", a.lse, b.lse);
  compare("d_q", a.d_q, b.d_q);
  compare("d_k", a.d_k, b.d_k);
  compare("d_v", a.d_v, b.d_v);
}

TEST_P(FloatEnvironment, OfTheCallerChangesNoBits) {
  for (const char* text : kCases) {
    const Case c = parse_case(text).value();
    conformance::Problem expected =
        conformance::make_problem(c, {Guard::kCanaries, /*dense=*/true});
    conformance::Problem actual = conformance::make_problem(c, {Guard::kCanaries, /*dense=*/true});
    run(Mode::kDefault, &expected, 1, nullptr);
    test::SerialExecutor serial;
    test::TeamExecutor team;
    struct Workers {
      int count;
      Executor* executor;  // null: the own pool
    };
    for (const Workers& workers :
         {Workers{1, nullptr}, Workers{4, nullptr}, Workers{4, &serial}, Workers{4, &team}}) {
      // Each mode in the caller's thread and in another; the others' ways there by two of them.
      const bool all = workers.count == 1 || workers.executor == &team;
      for (const Mode mode : kModes) {
        if (!all && mode != Mode::kFlushAndUp && mode != Mode::kTraps) continue;
        run(mode, &actual, workers.count, workers.executor);
        expect_equal(expected.request(), actual.request(),
                     std::string(text) + " on " + std::to_string(workers.count) + " workers, " +
                         name_of(mode));
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FloatEnvironment, testing::ValuesIn(test::forced_backends()),
                         [](const auto& param) { return test::name_of(param.param); });

// 1 / sqrt(d) is rounded, too.
TEST(FloatEnvironmentOfDescribe, ChangesNoScale) {
  for (const std::int64_t head_dim : {3, 24, 40, 72, 80, 96, 112}) {
    const double expected = default_softmax_scale(head_dim);
    for (const Mode mode : kModes) {
      double actual = 0.0;
      in_mode(mode, [&] { actual = default_softmax_scale(head_dim); });
      EXPECT_EQ(expected, actual) << name_of(mode) << " d " << head_dim;
    }
  }
}

TEST(FloatEnvironmentOfMergeStates, ChangesNoBits) {
  test::Tensors tensors;
  const auto problem_of = [](const char* text) {
    return conformance::make_problem(parse_case(text).value(), {Guard::kCanaries, true});
  };
  conformance::Problem a = problem_of("b2 hq2 sq65 skv33 d40 f32 lse data=denormal seed=1");
  conformance::Problem b = problem_of("b2 hq2 sq65 skv33 d40 f32 lse data=denormal seed=2");
  Context context;
  for (conformance::Problem* problem : {&a, &b}) {
    check(attention(context, problem->request()));
  }
  const std::vector<StateView> states = {{a.request().out, a.request().lse},
                                         {b.request().out, b.request().lse}};
  const TensorView out = tensors.make(Dtype::kF32, {2, 2, 65, 40});
  const TensorView lse = tensors.make(Dtype::kF32, {2, 2, 65});
  check(merge_states(states, out, lse));
  for (const Mode mode : kModes) {
    const TensorView out2 = tensors.make(Dtype::kF32, {2, 2, 65, 40});
    const TensorView lse2 = tensors.make(Dtype::kF32, {2, 2, 65});
    Status status;
    in_mode(mode, [&] { status = merge_states(states, out2, lse2); });
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(test::unequal(out, out2), "") << name_of(mode);
    EXPECT_EQ(test::unequal(lse, lse2), "") << name_of(mode);
  }
}

}  // namespace
}  // namespace regard
