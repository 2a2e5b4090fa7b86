#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <thread>

#include "core/text/backend_names.h"
#include "mock_backend.h"

namespace regard::test {
namespace {

Env env_with(const std::string& name, const std::string& value) {
  Env env = described_env();
  env.variables.push_back({name, value, true, "", ""});
  return env;
}

const AttentionParams kPlain = case_params("sq8 d8 f32");

Selection chosen_by(Context& context, const Policy& call = {}) {
  return explain(context, kPlain, call);
}

TEST(BackendNames, PyTorchSpellingsAreAccepted) {
  for (const char* name : {"math", "MATH", "SDPBackend.MATH"}) {
    EXPECT_EQ(parse_backend(name).value(), kMath) << name;
  }
  for (const char* name : {"FLASH_ATTENTION", "SDPBackend.FLASH_ATTENTION", "Flash"}) {
    EXPECT_EQ(parse_backend(name).value(), kFlash) << name;
  }
  for (const char* name : {"EFFICIENT_ATTENTION", "MEMORY_EFFICIENT", "mem_efficient"}) {
    EXPECT_EQ(parse_backend(name).value(), kEfficient) << name;
  }
  EXPECT_EQ(parse_backend("CUDNN_ATTENTION").value(), kCudnn);
  EXPECT_EQ(parse_backend("custom:mine").value(), custom("mine"));
}

TEST(BackendNames, UnknownOnesAreNamed) {
  for (const char* name : {"", "flesh", "error", "custom:", "custom"}) {
    const auto ref = parse_backend(name);
    ASSERT_FALSE(ref) << name;
    EXPECT_NE(ref.status().message().find("\"" + std::string(name) + "\""), std::string::npos);
  }
  EXPECT_FALSE(parse_backend_list("math,,flash"));
  EXPECT_EQ(parse_backend_list("math,flash,math").value(), (std::vector{kMath, kFlash}));
}

TEST(BackendNames, PrintingReadsBack) {
  for (const BackendRef& ref : {kMath, kFlash, kEfficient, kCudnn, custom("x_1")}) {
    EXPECT_EQ(parse_backend(to_string(ref)).value(), ref);
  }
}

TEST(Policy, EveryFieldShowsInTextJsonHashAndEquality) {
  Policy one;
  one.only = {kMath};
  std::vector<Policy> all{one, deny({kFlash}), prefer({kMath})};
  for (int i = 0; i < 8; ++i) all.emplace_back();
  all[3].require = Determinism::kRunToRun;
  all[4].max_error = 1e-3;
  all[5].max_workspace_bytes = 7;
  all[6].on_fallback = OnFallback::kWarn;
  all[7].assume_finite = true;
  all[8].self_check = 1000;
  all[9].self_check_deny = true;
  all[10].self_check_dir = "/tmp";
  int fields = 0;
  for_each_policy_field(all[0], [&](const char*, const auto&) { ++fields; });
  ASSERT_EQ(static_cast<std::size_t>(fields), all.size()) << "a field without a row here";
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_NE(all[i], Policy{});
    EXPECT_NE(to_string(all[i]), "") << i;
    EXPECT_NE(to_json(all[i]), to_json(Policy{})) << i;
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(all[i], all[j]);
      EXPECT_NE(hash_value(all[i]), hash_value(all[j]));
      EXPECT_NE(to_string(all[i]), to_string(all[j]));
    }
  }
}

TEST(PolicySources, CallBeatsScopeBeatsContextBeatsEnvironment) {
  Context context(env_with("REGARD_BACKEND", "efficient"));
  EXPECT_EQ(chosen_by(context).chosen, kEfficient);
  EXPECT_EQ(chosen_by(context).decided_by, "REGARD_BACKEND (only, prefer)");

  context.set_policy(only({kMath}));
  Selection selection = chosen_by(context);
  EXPECT_EQ(selection.chosen, kMath);
  ASSERT_EQ(selection.warnings.size(), 1u);
  EXPECT_EQ(selection.warnings[0], "only of REGARD_BACKEND is overruled by context policy");

  const ScopedPolicy scope(only({kEfficient}));
  EXPECT_EQ(chosen_by(context).chosen, kEfficient);
  selection = chosen_by(context, only({kMath}));
  EXPECT_EQ(selection.chosen, kMath);
  EXPECT_EQ(selection.warnings.size(), 2u);  // the scope and the environment say otherwise
}

TEST(PolicySources, EnvironmentOnlyIsAlsoAnOrder) {
  Context context(env_with("REGARD_BACKEND", "math,efficient"));
  EXPECT_EQ(chosen_by(context).chosen, kMath);
  Context reversed(env_with("REGARD_BACKEND", "efficient,math"));
  EXPECT_EQ(chosen_by(reversed).chosen, kEfficient);
}

TEST(PolicySources, DenyAndRequireUniteLimitsTakeTheMinimum) {
  Context context(env_with("REGARD_DENY", "flash"));
  Policy policy = deny({kCudnn});
  policy.max_error = 0.5;
  policy.max_workspace_bytes = 1000;
  policy.require = Determinism::kRunToRun;
  context.set_policy(policy);
  Policy scope_policy = deny({kEfficient});
  scope_policy.max_error = 0.25;
  scope_policy.max_workspace_bytes = 2000;
  scope_policy.require = Determinism::kBatchInvariant;
  const ScopedPolicy scope(scope_policy);
  Policy call;
  call.max_error = 0.75;
  const Policy resolved = chosen_by(context, call).policy;
  EXPECT_EQ(resolved.deny.size(), 3u);
  EXPECT_EQ(resolved.max_error, 0.25);
  EXPECT_EQ(resolved.max_workspace_bytes, 1000);
  EXPECT_EQ(resolved.require, Determinism::kBatchInvariant);
}

TEST(PolicySources, LimitsThatAreNoneAreRefusedWhereverTheyAreSet) {
  Context context(described_env());
  const auto answer = [&](const Policy& call) {
    const Selection selection = explain(context, kPlain, call);
    EXPECT_FALSE(selection.ok());
    const Status status = plan(context, kPlain, call).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(selection.warnings, std::vector{status.message()});
    return status.message();
  };
  Policy wrong;
  wrong.max_error = std::nan("");
  EXPECT_EQ(answer(wrong), "[call policy] max_error of policy (nan) must be at least 0");
  {
    Policy right;
    right.max_error = 0.5;  // the smallest of both is this one
    const ScopedPolicy outer(right);
    const ScopedPolicy inner(wrong);
    EXPECT_EQ(answer({}), "[scope 2] max_error of policy (nan) must be at least 0");
  }
  EXPECT_TRUE(plan(context, kPlain));
  wrong = {};
  wrong.max_workspace_bytes = -1;
  context.set_policy(wrong);
  EXPECT_EQ(answer({}), "[context policy] max_workspace_bytes of policy (-1) must be at least 0");
}

TEST(PolicySources, TheResolvedPolicyIsThatOfADecision) {
  Context context(env_with("REGARD_DENY", "efficient"));
  Policy of_context;
  of_context.max_error = 0.25;
  context.set_policy(of_context);
  Policy call;
  call.prefer = {{kFlash}};
  const std::vector<BackendRef> denied{kEfficient}, allowed{kMath, kFlash};
  EXPECT_EQ(resolved_policy(context), chosen_by(context).policy);
  EXPECT_EQ(resolved_policy(context).max_error, 0.25);
  EXPECT_EQ(resolved_policy(context).deny, denied);
  const ScopedPolicy scope(only(allowed));
  EXPECT_EQ(resolved_policy(context, call), chosen_by(context, call).policy);
  EXPECT_EQ(resolved_policy(context, call).only, allowed);
  EXPECT_EQ(resolved_policy(context, call).prefer, call.prefer);
}

TEST(PolicySources, NestedScopesNarrowAndReplaceScopesReplace) {
  Context context(described_env());
  const ScopedPolicy outer(only({kMath, kEfficient}));
  {
    const ScopedPolicy inner(only({kEfficient, kFlash}));
    EXPECT_EQ(chosen_by(context).policy.only, std::vector{kEfficient});
    const ScopedPolicy replace(only({kMath}), ScopedPolicy::kReplace);
    EXPECT_EQ(chosen_by(context).policy.only, std::vector{kMath});
  }
  EXPECT_EQ(chosen_by(context).policy.only, (std::vector{kMath, kEfficient}));
}

TEST(PolicySources, ReplaceHidesScopesNeverTheContextOrTheEnvironment) {
  Context context(env_with("REGARD_DENY", "flash,efficient"));
  context.set_policy(deny({kCudnn}));
  const ScopedPolicy outer(deny({kMath}));
  const ScopedPolicy replace(Policy{}, ScopedPolicy::kReplace);
  const Selection selection = chosen_by(context);
  EXPECT_EQ(selection.chosen, kMath);
  EXPECT_EQ(selection.policy.deny, (std::vector{kCudnn, kFlash, kEfficient}));
}

TEST(PolicySources, AnEmptyIntersectionNamesBothSources) {
  Context context(described_env());
  const ScopedPolicy outer(only({kMath}));
  const ScopedPolicy inner(only({kEfficient}));
  const auto made = plan(context, kPlain);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.status().code(), StatusCode::kNoBackend);
  EXPECT_NE(made.status().message().find(
                "only of scope 1 (math) and only of scope 2 (efficient) have no backend in common"),
            std::string::npos)
      << made.status().message();
  ASSERT_NE(made.status().selection(), nullptr);
  EXPECT_FALSE(made.status().selection()->ok());
  // A call's own only overrules the scopes, so their conflict does not matter to it.
  EXPECT_TRUE(plan(context, kPlain, only({kMath})));
}

TEST(PolicySources, OnlyEmptiedByDenyNamesBothSources) {
  Context context(env_with("REGARD_DENY", "math"));
  const auto made = plan(context, kPlain, only({kMath}));
  ASSERT_FALSE(made);
  EXPECT_NE(made.status().message().find(
                "only of call policy (math) and deny of REGARD_DENY (math) leave no backend"),
            std::string::npos)
      << made.status().message();
}

// What a Context with REGARD_BACKEND=flash gives under a call's or a scope's only=math.
void expect_math_by(const Selection& selection, const std::string& decided_by) {
  EXPECT_EQ(selection.chosen, kMath);
  EXPECT_EQ(selection.decided_by, decided_by);
  EXPECT_EQ(selection.policy.prefer, std::nullopt);
  EXPECT_EQ(selection.warnings, std::vector{"only of REGARD_BACKEND is overruled by " +
                                            decided_by.substr(0, decided_by.find(" ("))});
}

TEST(PolicyOrder, AHigherOnlyRemovesWhatLowerSourcesPrefer) {
  Context context(env_with("REGARD_BACKEND", "flash"));
  Policy math = only({kMath});
  math.on_fallback = OnFallback::kError;
  expect_math_by(chosen_by(context, math), "call policy (only)");
  EXPECT_TRUE(plan(context, kPlain, math));
  {
    const ScopedPolicy scope(math);
    expect_math_by(chosen_by(context), "scope (only)");
    EXPECT_TRUE(plan(context, kPlain));
  }
  context.set_policy(math);
  expect_math_by(chosen_by(context), "context policy (only)");
}

TEST(PolicyOrder, AnInnerScopesOnlyRemovesWhatOuterScopesPrefer) {
  Context context(described_env());
  Policy flash = prefer({kFlash});
  flash.on_fallback = OnFallback::kError;
  const ScopedPolicy outer(flash);
  const ScopedPolicy inner(only({kMath}));
  const Selection selection = chosen_by(context);
  EXPECT_EQ(selection.chosen, kMath);
  EXPECT_EQ(selection.decided_by, "scope (only)");
  EXPECT_EQ(selection.warnings,
            std::vector<std::string>{"prefer (flash) of scope is overruled by only of scope"});
}

TEST(PolicyOrder, APreferredListThatAHigherOnlyRemovesIsAWarningNotAFallback) {
  Context context(described_env());
  Policy flash = prefer({kFlash, kEfficient});
  flash.on_fallback = OnFallback::kError;
  context.set_policy(flash);
  Selection selection = chosen_by(context, only({kMath}));
  EXPECT_EQ(selection.chosen, kMath);
  EXPECT_EQ(selection.warnings,
            std::vector<std::string>{
                "prefer (flash,efficient) of context policy is overruled by only of call policy"});
  // Of a list that keeps a part, the first of that part is the preferred one.
  selection = chosen_by(context, only({kMath, kEfficient}));
  EXPECT_EQ(selection.chosen, kEfficient);
  EXPECT_EQ(selection.decided_by, "context policy (prefer)");
  EXPECT_EQ(selection.policy.prefer, std::vector{kEfficient});
}

TEST(PolicyOrder, ALowerOnlyLeavesAPreferenceToFallBackFrom) {
  Context context(env_with("REGARD_BACKEND", "math"));
  Policy flash = prefer({kFlash});
  EXPECT_EQ(chosen_by(context, flash).chosen, kMath);
  EXPECT_EQ(chosen_by(context, flash).decided_by, "REGARD_BACKEND (only, prefer)");
  flash.on_fallback = OnFallback::kError;
  EXPECT_EQ(chosen_by(context, flash).decided_by, "on_fallback=error");
  EXPECT_FALSE(plan(context, kPlain, flash));
}

TEST(PolicyOrder, LowerPreferencesFollowHigherOnes) {
  Context context(env_with("REGARD_BACKEND", "efficient,flash"));
  context.set_policy(prefer({kFlash}));
  const ScopedPolicy outer(prefer({kMath, kCudnn}));
  const ScopedPolicy inner(prefer({custom("none"), kCudnn}));
  const Selection selection = chosen_by(context, prefer({kCudnn}));
  EXPECT_EQ(selection.policy.prefer,
            (std::vector{kCudnn, custom("none"), kMath, kFlash, kEfficient}));
  EXPECT_EQ(selection.chosen, kFlash);
  EXPECT_EQ(selection.decided_by, "context policy (prefer)");
}

TEST(PolicyOrder, DecidedByNamesTheSourceOfTheChosenEntry) {
  Context context(described_env());
  EXPECT_EQ(chosen_by(context, prefer({kMath})).decided_by, "call policy (prefer)");
  EXPECT_EQ(chosen_by(context, prefer({kCudnn})).chosen, kFlash);
  EXPECT_EQ(chosen_by(context, prefer({kCudnn})).decided_by, "built-in order");
  Policy either = only({kMath, kEfficient, kCudnn});
  either.prefer = {kCudnn};
  EXPECT_EQ(chosen_by(context, either).decided_by, "call policy (only)");
  EXPECT_EQ(chosen_by(context, only({kCudnn})).decided_by, "call policy (only)");
  // Where nothing can run, the order was tried to its end.
  Policy exact = prefer({kMath});
  exact.max_error = 0.0;
  EXPECT_FALSE(chosen_by(context, exact).ok());
  EXPECT_EQ(chosen_by(context, exact).decided_by, "built-in order");
}

TEST(Scopes, RestoreExactlyAlsoThroughExceptions) {
  Context context(described_env());
  const BackendRef before = chosen_by(context).chosen;
  try {
    const ScopedPolicy scope(only({kMath}));
    const ScopedPolicy nested(deny({kCudnn}));
    EXPECT_EQ(chosen_by(context).chosen, kMath);
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(chosen_by(context).chosen, before);
  EXPECT_TRUE(chosen_by(context).policy == Policy{});
  EXPECT_TRUE(capture_policy().empty());
}

TEST(Scopes, ThreadsNeverSeeEachOther) {
  Context context(described_env());
  const auto work = [&](const BackendRef& mine, int* wrong) {
    for (int i = 0; i < 2000; ++i) {
      const ScopedPolicy scope(only({mine}));
      const auto made = plan(context, kPlain);
      if (!made || made->backend() != mine) ++*wrong;
    }
  };
  int wrong_a = 0, wrong_b = 0;
  std::thread a(work, kMath, &wrong_a), b(work, kEfficient, &wrong_b);
  a.join();
  b.join();
  EXPECT_EQ(wrong_a, 0);
  EXPECT_EQ(wrong_b, 0);
}

TEST(Scopes, WorkersInheritOnlyWhatIsCaptured) {
  Context context(described_env());
  const ScopedPolicy scope(only({kMath}));
  const CapturedPolicy captured = capture_policy();
  BackendRef without, with;
  std::thread([&] {
    without = chosen_by(context).chosen;
    const ScopedPolicy handed(captured);
    with = chosen_by(context).chosen;
  }).join();
  EXPECT_EQ(without, kFlash);
  EXPECT_EQ(with, kMath);
}

TEST(Scopes, ASettersScopeDoesNotLeakIntoTheContext) {
  Context context(described_env());
  {
    const ScopedPolicy scope(only({kMath}));
    context.set_policy(deny({kCudnn}));
  }
  EXPECT_EQ(chosen_by(context).chosen, kFlash);
}

TEST(OnFallback, AllowWarnError) {
  Context context(described_env());
  Policy policy = prefer({kCudnn, kMath});
  EXPECT_EQ(chosen_by(context, policy).chosen, kMath);
  EXPECT_TRUE(chosen_by(context, policy).warnings.empty());

  policy.on_fallback = OnFallback::kWarn;
  Selection selection = chosen_by(context, policy);
  EXPECT_EQ(selection.chosen, kMath);
  ASSERT_EQ(selection.warnings.size(), 1u);
  EXPECT_EQ(selection.warnings[0],
            "fallback from cudnn, which is preferred and cannot run, to math");

  policy.on_fallback = OnFallback::kError;
  selection = chosen_by(context, policy);
  EXPECT_FALSE(selection.ok());
  EXPECT_EQ(selection.decided_by, "on_fallback=error");
  EXPECT_EQ(selection.warnings[0],
            "fallback from cudnn, which is preferred and cannot run, to math is an error; set "
            "on_fallback to allow or warn");
  const auto made = plan(context, kPlain, policy);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.status().code(), StatusCode::kNoBackend);

  policy.prefer = {kMath};
  EXPECT_TRUE(plan(context, kPlain, policy));
}

}  // namespace
}  // namespace regard::test
