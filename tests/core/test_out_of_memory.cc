// Every allocation of a call fails in turn: the n-th alone, and the n-th with all that follow.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "grad_call.h"
#include "mock_backend.h"
#include "tests/support/allocations.h"
#include "tests/support/fail_each.h"
#include "tests/support/scratch.h"
#include "tests/support/temp_folder.h"

namespace regard::test {
namespace {

// A call whose allocations fail.
struct Attempt {
  std::function<void()> prepare = [] {};  // before each call, where nothing fails
  std::function<Status()> call;
  std::function<bool()> is_untouched = [] { return true; };  // after a failure
  std::function<bool()> is_right = [] { return true; };      // after a success
  std::optional<StatusCode> expected{};  // of a call whose allocations succeed; ok where not given
};

bool is_shortage(StatusCode code) {
  return code == StatusCode::kOutOfMemory || code == StatusCode::kWorkspace;
}

// What is wrong with the n-th allocation's failure, "" where nothing is. `last`: none failed.
std::string try_one(const Attempt& attempt, std::uint64_t n, AllocationFailure::Extent extent,
                    bool* last) {
  attempt.prepare();
  const StatusCode expected = attempt.expected.value_or(StatusCode::kOk);
  Status status;
  bool threw = false;
  {
    const AllocationFailure failure(n, extent);
    try {
      status = attempt.call();
    } catch (...) {
      threw = true;
    }
    *last = !failure.happened();
  }
  if (threw) return "an exception left the call";
  if (*last || !is_shortage(status.code())) {
    if (status.code() != expected) return status.to_string();
    return attempt.is_right() ? "" : "a wrong result";
  }
  if (status.message().empty()) return "no message";
  if (!attempt.is_untouched()) return "a failed call has changed something";
  status = attempt.call();
  if (status.code() != expected) return "the next call: " + status.to_string();
  return attempt.is_right() ? "" : "a wrong result of the next call";
}

// Returns how many allocations of the call could fail.
int fail_each_allocation(const char* name, const Attempt& attempt) {
  return fail_each(name, [&](std::uint64_t n, AllocationFailure::Extent extent, bool* last) {
    return try_one(attempt, n, extent, last);
  });
}

// A function that throws std::bad_alloc, as a call with a Status.
template <class Call>
Status without_bad_alloc(Call call) {
  try {
    call();
    return {};
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory("test");
  }
}

// Runs `body` twice and compares the blocks that are left after the second run: static variables
// are made in the first.
void expect_no_leak(const std::function<void()>& body) {
  body();
  const AllocationCounter counter;
  body();
#if !defined(__SANITIZE_THREAD__)  // GCC 12's runtime reports frees of aligned_alloc's blocks alone
  EXPECT_EQ(counter.live(), 0);
#endif
}

// Two heads of 4 equal rows: each row of out is 0.25 then; before, it is 7.
struct FailingCall {
  FailingCall() {
    request.q = request.k = request.v = make_view(data.data(), {1, 2, 4, 8});
    request.out = make_view(out.data(), {1, 2, 4, 8});
  }
  void reset() { out.assign(64, 7.0f); }
  bool is(float value) const {
    for (const float x : out) {
      if (std::fabs(x - value) > 1e-6f) return false;
    }
    return true;
  }
  std::vector<float> data = std::vector<float>(64, 0.25f), out = std::vector<float>(64, 7.0f);
  AttentionRequest request;
};

// attention() of a FailingCall on `context`, which `prepare` may replace.
Attempt attention_attempt(FailingCall& call, std::unique_ptr<Context>& context,
                          const Policy& policy, std::function<void()> prepare) {
  Attempt attempt;
  attempt.prepare = [&call, prepare = std::move(prepare)] {
    call.reset();
    prepare();
  };
  attempt.call = [&] { return attention(*context, call.request, policy); };
  attempt.is_untouched = [&] { return call.is(7.0f); };
  attempt.is_right = [&] { return call.is(0.25f); };
  return attempt;
}

TEST(OutOfMemory, AttentionOnEachBackendColdAndWarm) {
  for (const BackendRef& backend : {kMath, kFlash, kEfficient}) {
    expect_no_leak([&] {
      const Policy policy = only({backend});
      FailingCall call;
      std::unique_ptr<Context> context;
      const auto renew = [&] { context = std::make_unique<Context>(described_env()); };
      EXPECT_GT(fail_each_allocation("cold", attention_attempt(call, context, policy, renew)), 20);
      fail_each_allocation("warm", attention_attempt(call, context, policy, [] {}));
      context->trim();
      fail_each_allocation("trimmed",
                           attention_attempt(call, context, policy, [&] { context->trim(); }));
      EXPECT_EQ(plan(*context, describe(call.request).value(), policy)->backend(), backend);
    });
  }
}

TEST(OutOfMemory, AFailureLeavesTheNextDecisionAsItWas) {
  const Policy policy = prefer({custom("mock")});
  FailingCall call;
  const AttentionParams params = describe(call.request).value();
  std::unique_ptr<Context> context;
  Attempt attempt;
  BackendRef chosen;
  attempt.prepare = [&] {
    context = std::make_unique<Context>(described_env());
    add_backend(*context, "mock", std::make_shared<MockBackend>(generous_info("mock")));
  };
  attempt.call = [&] {
    const Expected<Plan> made = plan(*context, params, policy);
    if (made) chosen = made->backend();
    return made.status();
  };
  attempt.is_right = [&] {
    return chosen == custom("mock") && context->plan_cache_counters().size == 1;
  };
  EXPECT_GT(fail_each_allocation("plan", attempt), 20);
}

TEST(OutOfMemory, LearnedRefusals) {
  for (const bool in_execute : {false, true}) {
    expect_no_leak([&] {
      const Policy policy = prefer({custom("mock")});
      FailingCall call;
      std::unique_ptr<Context> context;
      const auto renew = [&] {
        context = std::make_unique<Context>(described_env());
        auto mock = std::make_shared<MockBackend>(generous_info("mock"));
        if (in_execute) {
          mock->refuse_execute = StatusCode::kRefusedAtPlan;
        } else {
          mock->refuse_plan = [](const AttentionKey&) { return true; };
        }
        add_backend(*context, "mock", std::move(mock));
      };
      fail_each_allocation("learned", attention_attempt(call, context, policy, renew));
      EXPECT_EQ(context->plan_cache_counters().refusals, 1u);
    });
  }
}

TEST(OutOfMemory, APairAndItsBackward) {
  for (const BackendRef& backend : {kMath, kFlash, kEfficient}) {
    expect_no_leak([&] {
      GradCall call;
      std::unique_ptr<Context> context;
      Attempt attempt;
      attempt.prepare = [&] {
        call.d_q.assign(call.d_q.size(), 7.0f);
        call.d_k = call.d_v = call.d_q;
        context = std::make_unique<Context>(described_env());
        context->set_policy(only({backend}));
      };
      attempt.call = [&] { return attention_backward(*context, call.request); };
      attempt.is_untouched = [&] { return call.untouched(); };
      attempt.is_right = [&] { return call.right(); };
      EXPECT_GT(fail_each_allocation("backward", attempt), 10);
    });
  }
}

TEST(OutOfMemory, ExecuteAllocatesNothingAndReportsWhatItRefuses) {
  Context context(described_env());
  FailingCall call;
  const Plan made = plan(context, describe(call.request).value(), only({kFlash})).value();
  const Scratch scratch(made.workspace_bytes());
  Attempt attempt;
  attempt.prepare = [&] { call.reset(); };
  attempt.call = [&] { return execute(made, call.request, scratch.launch); };
  attempt.is_untouched = [&] { return call.is(7.0f); };
  attempt.is_right = [&] { return call.is(0.25f); };
  EXPECT_EQ(fail_each_allocation("execute", attempt), 0);
  call.request.lse = make_view(call.data.data(), {1, 2, 4});
  attempt.expected = StatusCode::kInvalidArgument;
  attempt.is_right = attempt.is_untouched;
  EXPECT_GT(fail_each_allocation("execute that refuses", attempt), 0);
}

TEST(OutOfMemory, ThreadsThatCannotBeStartedAreDoneWithout) {
  std::vector<float> data(8 * 128 * 64, 0.25f), out(data.size());
  AttentionRequest request;
  request.q = request.k = request.v = make_view(data.data(), {1, 8, 128, 64});
  request.out = make_view(out.data(), {1, 8, 128, 64});
  const Policy policy = only({kFlash});
  std::unique_ptr<Context> context;
  Attempt attempt;
  attempt.prepare = [&] {
    out.assign(out.size(), 7.0f);
    context = std::make_unique<Context>(described_env());
  };
  attempt.call = [&] { return attention(*context, request, policy); };
  attempt.is_untouched = [&] { return out == std::vector<float>(out.size(), 7.0f); };
  attempt.is_right = [&] {
    return std::fabs(out.front() - 0.25f) + std::fabs(out.back() - 0.25f) < 1e-6f;
  };
  fail_each_allocation("two workers", attempt);
  EXPECT_EQ(plan(*context, describe(request).value(), policy)->kernel().workers, 2);
}

TEST(OutOfMemory, WordsAndTheirErrors) {
  const auto parses = [](const char* text, std::optional<StatusCode> expected) {
    Attempt attempt;
    attempt.call = [text] { return parse_case(text).status(); };
    attempt.expected = expected;
    fail_each_allocation(text, attempt);
  };
  parses("b1 hq32 hkv8 sq1 skv8192 d128 bf16 causal diag=br", std::nullopt);
  parses("b1 hq32 nonsense", StatusCode::kInvalidArgument);

  FailingCall call;
  call.request.out.shape[2] = 5;
  Attempt attempt;
  attempt.call = [&] { return describe(call.request).status(); };
  attempt.expected = StatusCode::kInvalidArgument;
  EXPECT_GT(fail_each_allocation("describe", attempt), 0);
  attempt.call = [] { return parse_backend("no such backend at all").status(); };
  attempt.expected = StatusCode::kNotFound;
  EXPECT_GT(fail_each_allocation("parse_backend", attempt), 0);
  const std::string isa = "no such instruction set";
  attempt.call = [&] { return parse_isa(isa).status(); };
  EXPECT_GT(fail_each_allocation("parse_isa", attempt), 0);
  attempt.call = [] { return parse_determinism("no such level of it").status(); };
  EXPECT_GT(fail_each_allocation("parse_determinism", attempt), 0);
}

TEST(OutOfMemory, ExplainThrowsOrIsRight) {
  // Of a CPU, of devices that are read at the first question, and of words that are refused.
  for (const char* words : {"sq8 d8 f32", "sq8 d64 bf16 device=cuda", "sq8 d8 hq3"}) {
    expect_no_leak([&] {
      Env env = described_env();
      env.cuda_devices = {{"a device", 80}, {"another device", 90}};
      env.sm_version = 80;
      AttentionParams params = case_params(words);
      if (params.device.type == DeviceType::kCuda) params.device.index = 1;
      if (std::string_view(words).ends_with("hq3")) params.num_heads_kv = 2;  // does not divide 3
      Context reference(env);
      const std::string right = to_json(explain(reference, params, only({kMath, kFlash})));
      std::unique_ptr<Context> context;
      Selection selection;
      Attempt attempt;
      attempt.prepare = [&] { context = std::make_unique<Context>(env); };
      attempt.call = [&] {
        return without_bad_alloc([&] {
          selection = explain(*context, params, only({kMath, kFlash}));
        });
      };
      const std::string device = ContextImpl::of(reference).env_for(params.device)->device_name;
      attempt.is_right = [&] {
        return to_json(selection) == right &&
               ContextImpl::of(*context).env_for(params.device)->device_name == device;
      };
      EXPECT_GT(fail_each_allocation(words, attempt), 5);
    });
  }
}

class PassingSuite : public ConformanceSuite {
 public:
  Status run(Context&, const BackendRef&) const override { return {}; }
};

TEST(OutOfMemory, RegisterBackendChangesNothing) {
  expect_no_leak([] {
    const PassingSuite suite;
    const auto mock = std::make_shared<MockBackend>(generous_info("mock"));
    std::unique_ptr<Context> context;
    std::size_t before = 0;
    Attempt attempt;
    attempt.prepare = [&] {
      context = std::make_unique<Context>(described_env());
      before = context->backends().size();
    };
    attempt.call = [&] { return register_backend(*context, "mock", mock, suite).status(); };
    attempt.is_untouched = [&] { return context->backends().size() == before; };
    attempt.is_right = [&] { return context->backends().size() == before + 1; };
    EXPECT_GT(fail_each_allocation("register_backend", attempt), 20);
  });
}

TEST(OutOfMemory, SettersThrowAndChangeNothing) {
  Context context(described_env());
  const AttentionParams params = case_params("sq8 d8 f32");
  Attempt attempt;
  attempt.prepare = [&] { context.set_policy({}); };
  attempt.call = [&] {
    return without_bad_alloc([&] { context.set_policy(only({kMath, kEfficient})); });
  };
  attempt.is_untouched = [&] { return context.policy() == Policy{}; };
  attempt.is_right = [&] { return context.policy() == only({kMath, kEfficient}); };
  EXPECT_GT(fail_each_allocation("set_policy", attempt), 2);

  BackendRef inside;
  attempt.call = [&] {
    Status planned;
    const Status status = without_bad_alloc([&] {
      const ScopedPolicy scope(only({kEfficient}));
      const Expected<Plan> made = plan(context, params);
      planned = made.status();
      if (made) inside = made->backend();
    });
    return status.ok() ? planned : status;
  };
  attempt.is_untouched = [&] { return plan(context, params)->backend() == kFlash; };
  attempt.is_right = [&] { return inside == kEfficient && attempt.is_untouched(); };
  EXPECT_GT(fail_each_allocation("a scope", attempt), 5);
}

TEST(OutOfMemory, ATuningTableIsWholeOrMissed) {
  const std::string text =
      "regard-tuning 1\nversion 0.1.0\nisa avx2\ncpu described CPU\nconcurrency 2\n"
      "order sq<=4 f32 : efficient,flash,math\norder  : math,efficient,flash\n";
  std::optional<TuningTable> table;
  Attempt attempt;
  attempt.call = [&] {
    const Expected<TuningTable> parsed = parse_tuning_table(text, "a file");
    if (parsed) table = *parsed;
    return parsed.status();
  };
  attempt.is_right = [&] { return table->rules.size() == 2 && table->concurrency == 2; };
  EXPECT_GT(fail_each_allocation("parse_tuning_table", attempt), 5);

  TempFolder folder;
  const std::string path = (folder.path() / "a_tuning_table_of_some_length").string();
  std::ofstream(path) << text;
  setenv("REGARD_TUNING", path.c_str(), 1);
  setenv("REGARD_BACKEND", "efficient,math", 1);
  expect_no_leak([&] {
    const std::int32_t concurrency = read_env().concurrency;
    const std::string model = read_env().cpu_model;
    std::unique_ptr<Context> context;
    attempt.prepare = [&] { context.reset(); };
    attempt.call = [&] {
      return without_bad_alloc([&] { context = std::make_unique<Context>(); });
    };
    attempt.is_untouched = [&] { return context == nullptr; };
    attempt.is_right = [&] {
      const Selection selection = explain(*context, case_params("sq8 d8 f32"));
      bool names_table = false;
      for (const std::string& warning : selection.warnings) {
        names_table = names_table || warning.find(path) != std::string::npos;
      }
      return names_table && selection.chosen == kEfficient && env_status(context->env()).ok() &&
             context->env().concurrency == concurrency && context->env().cpu_model == model;
    };
    EXPECT_GT(fail_each_allocation("Context", attempt), 20);
  });
  unsetenv("REGARD_TUNING");
  unsetenv("REGARD_BACKEND");
}

TEST(OutOfMemory, MergedStatesAndMasks) {
  std::vector<float> data(64, 0.5f), lse(8, 0.0f), out(64), merged_lse(8);
  StateView state;
  state.out = make_view(data.data(), {1, 2, 4, 8});
  state.lse = make_view(lse.data(), {1, 2, 4});
  const std::vector<StateView> states = {state, state};
  Attempt attempt;
  attempt.prepare = [&] { out.assign(64, 7.0f); };
  attempt.call = [&] {
    return merge_states(states, make_view(out.data(), {1, 2, 4, 8}),
                        make_view(merged_lse.data(), {1, 2, 4}));
  };
  attempt.is_untouched = [&] { return out == std::vector<float>(64, 7.0f); };
  attempt.is_right = [&] { return out == data; };
  fail_each_allocation("merge_states", attempt);
  attempt.call = [&] { return merge_states(states, make_view(out.data(), {1, 2, 3, 8}), {}); };
  attempt.expected = StatusCode::kInvalidArgument;
  attempt.is_right = attempt.is_untouched;
  EXPECT_GT(fail_each_allocation("merge_states that refuses", attempt), 0);
  const AttentionParams params = case_params("sq8 d8");
  attempt.call = [&] { return dropout_mask(params, {}, state.out); };
  EXPECT_GT(fail_each_allocation("dropout_mask", attempt), 0);
}

void count_line(void* user, LogLevel, std::string_view) { ++*static_cast<int*>(user); }

TEST(OutOfMemory, TheLog) {
  Env env = described_env();
  env.variables.push_back({"REGARD_LOG", "trace", true, "", ""});
  env.warnings = {"a warning of the environment, of some length"};
  const Policy policy = only({kMath});
  int lines = 0;
  FailingCall call;
  std::unique_ptr<Context> context;
  Attempt attempt = attention_attempt(call, context, policy, [&] {
    context = std::make_unique<Context>(env);
    context->set_log_sink(count_line, &lines);
  });
  EXPECT_GT(fail_each_allocation("logged", attempt), 20);
  EXPECT_GT(lines, 0);
}

}  // namespace
}  // namespace regard::test
