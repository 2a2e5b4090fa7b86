// One Context under many threads: calls with a cold and with a full cache, refusals that are
// learned meanwhile, and settings that change under them. Every result is compared with the serial
// one, bit by bit, and the counters must add up. REGARD_DEV_STRESS_SECONDS says for how long.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "conformance/rng.h"
#include "mock_backend.h"
#include "tests/support/executors.h"
#include "tests/support/oracle_backend.h"
#include "tests/support/scratch.h"

namespace regard::test {
namespace {

using conformance::Rng;

constexpr int kCallers = 4;

// Claims everything and refuses each call in its own way; counts how often.
class Refuser : public Backend {
 public:
  enum Way { kInPlan, kInExecute, kUnavailable, kThrows };
  Refuser(const std::string& name, Way way) : info_(generous_info(name)), way_(way) {}
  const BackendInfo& info() const override { return info_; }
  std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override { return 128; }
  std::int64_t backward_workspace_bytes(const AttentionKey&, const Env&) const override {
    return 128;
  }
  Expected<KernelPlan> plan(const AttentionKey&, const Env&) const override {
    if (way_ == kThrows) throw 5;
    if (way_ != kInExecute) ++refusals;
    if (way_ == kInPlan) return Status(StatusCode::kRefusedAtPlan, "[refuser] no");
    if (way_ == kUnavailable) return Status(StatusCode::kUnavailable, "[refuser] not now");
    KernelPlan kernel;
    kernel.kernel = "refuser";
    kernel.workspace_bytes = 128;
    return kernel;
  }
  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    return plan(key, env);
  }
  Status execute(const KernelPlan&, const AttentionParams&, const Buffers&,
                 const Launch&) const override {
    ++refusals;
    return Status(StatusCode::kRefusedAtPlan, "[refuser] no");
  }

  mutable std::atomic<std::uint64_t> refusals{0};

 private:
  BackendInfo info_;
  const Way way_;
};

std::size_t below(Rng& rng, std::size_t count) {
  return static_cast<std::size_t>(rng.bits() % count);
}

// A problem with memory of its own. Every caller has one of each.
struct Call {
  Call(std::int64_t heads, std::int64_t seqlen, std::int64_t head_dim, bool is_causal)
      : shape{1, heads, seqlen, head_dim} {
    const auto count = static_cast<std::size_t>(heads * seqlen * head_dim);
    for (auto* data : {&q, &k, &v, &d_out}) {
      data->resize(count);
      for (float& x : *data) x = 0.01f * static_cast<float>(next_ = (next_ * 37 + 11) % 211) - 1.0f;
    }
    out.resize(count);
    d_q.resize(count);
    stats.resize(static_cast<std::size_t>(heads * seqlen * 2));
    request.q = view(q);
    request.k = view(k);
    request.v = view(v);
    request.out = view(out);
    request.options.is_causal = is_causal;
  }
  TensorView view(std::vector<float>& data) const {
    return make_view(data.data(), {shape[0], shape[1], shape[2], shape[3]});
  }
  /// With saved_stats, which the backward needs.
  AttentionRequest forward_of_pair() {
    AttentionRequest pair = request;
    pair.saved_stats = make_view(stats.data(), {shape[0], shape[1], shape[2], 2});
    pair.options.needs_grad = true;
    return pair;
  }
  AttentionGradRequest backward() {
    AttentionGradRequest grad;
    static_cast<AttentionRequest&>(grad) = forward_of_pair();
    grad.saved.kind = SavedContext::Kind::kStats;
    grad.saved.stats = grad.saved_stats;
    grad.saved_stats = {};
    grad.d_out = view(d_out);
    grad.d_q = view(d_q);
    return grad;
  }

  std::int64_t shape[4];
  std::vector<float> q, k, v, d_out, out, d_q, stats;
  AttentionRequest request;

 private:
  int next_ = 7;
};

std::vector<Call> make_calls() {
  std::vector<Call> calls;
  for (const std::int64_t seqlen : {1, 2, 3, 5, 8, 13, 17, 24}) {
    calls.emplace_back(2, seqlen, 8, seqlen % 2 == 0);
    calls.emplace_back(1, seqlen, 16, seqlen % 2 != 0);
  }
  calls.emplace_back(4, 64, 64, true);  // for two workers
  calls.emplace_back(4, 48, 64, false);
  return calls;
}

const std::vector<BackendRef> kBuiltin = {kMath, kFlash, kEfficient};

// What each built-in backend computes of each call, serially.
struct Truth {
  std::vector<float> out, d_q;
};
using Truths = std::vector<std::vector<Truth>>;  // [call][built-in backend]

Truths serial_truths() {
  Truths truths;
  std::vector<Call> calls = make_calls();
  for (Call& call : calls) {
    std::vector<Truth>& of_call = truths.emplace_back();
    for (const BackendRef& backend : kBuiltin) {
      Context context(described_env());
      context.set_policy(only({backend}));
      check(attention(context, call.forward_of_pair()));
      check(attention_backward(context, call.backward()));
      of_call.push_back({call.out, call.d_q});
    }
  }
  return truths;
}

TuningTable table_for(const Env& env, std::vector<BackendRef> order) {
  TuningTable table;
  table.source = "stress";
  table.version = env.version;
  table.isa = to_string(env.isa);
  table.cpu_model = env.cpu_model;
  table.concurrency = env.concurrency;
  table.rules = {{"", std::move(order)}};
  return table;
}

class Stress {
 public:
  Stress() : truths_(serial_truths()) {
    for (const auto& [name, way] : {std::pair{"in_plan", Refuser::kInPlan},
                                    {"in_execute", Refuser::kInExecute},
                                    {"unavailable", Refuser::kUnavailable},
                                    {"throws", Refuser::kThrows}}) {
      refusers_.push_back(std::make_shared<Refuser>(name, way));
      check(register_backend(context_, name, refusers_.back(), NoSuite()).status());
    }
    context_.set_log_sink(&count_line, &lines_);
  }

  void run(std::chrono::duration<double> duration) {
    const auto end = std::chrono::steady_clock::now() + duration;
    std::vector<std::thread> threads;
    for (int n = 0; n < kCallers; ++n) {
      threads.emplace_back([this, n, end] {
        std::vector<Call> calls = make_calls();
        Rng rng(1, static_cast<std::uint64_t>(n));
        while (mistakes_ == 0 && std::chrono::steady_clock::now() < end) one_call(rng, calls);
      });
    }
    threads.emplace_back([this, end] {
      Rng rng(1, kCallers);
      while (mistakes_ == 0 && std::chrono::steady_clock::now() < end) change_settings(rng);
    });
    for (std::thread& thread : threads) thread.join();
  }

  void check_counters() {
    const PlanCacheCounters counters = context_.plan_cache_counters();
    const std::uint64_t in_plan = refusers_[0]->refusals, in_execute = refusers_[1]->refusals,
                        unavailable = refusers_[2]->refusals;
    // attention() plans again after each refusal in execute.
    EXPECT_EQ(counters.hits + counters.misses, plans_ + in_execute - direct_refusals_);
    EXPECT_EQ(counters.selections, counters.misses + in_plan + unavailable);
    EXPECT_EQ(counters.refusals, in_plan + in_execute - direct_refusals_);
    EXPECT_LE(counters.size, counters.capacity);
    for (const std::uint64_t happened : {counters.hits, counters.evictions, in_plan, in_execute,
                                         unavailable, direct_refusals_.load(), plans_.load()}) {
      EXPECT_GT(happened, 0u);
    }
    context_.trim();
    EXPECT_EQ(context_.leased_workspace_bytes(), 0);
    RecordProperty("calls", std::to_string(plans_));
  }

 private:
  static void RecordProperty(const char* name, const std::string& value) {
    ::testing::Test::RecordProperty(name, value);
  }
  static void count_line(void* user, LogLevel, std::string_view) {
    ++*static_cast<std::atomic<std::uint64_t>*>(user);
  }

  void mistake(const char* what, const Call& call, const std::string& more) {
    ++mistakes_;
    ADD_FAILURE() << what << " of " << to_string(describe(call.request).value()) << ": " << more;
  }

  static std::size_t index_of(const BackendRef& backend) {
    for (std::size_t i = 0; i < kBuiltin.size(); ++i) {
      if (kBuiltin[i] == backend) return i;
    }
    return kBuiltin.size();
  }

  // `backend` computed `actual`, or any of the built-in ones where it is none of them.
  void check_bits(const char* what, std::size_t n, const Call& call, const BackendRef& backend,
                  const std::vector<float>& actual, std::vector<float> Truth::*expected) {
    const std::size_t one = index_of(backend);
    for (std::size_t i = 0; i < kBuiltin.size(); ++i) {
      if ((one == kBuiltin.size() || one == i) && actual == truths_[n][i].*expected) return;
    }
    mistake(what, call, "not the serial result of " + to_string(backend));
  }

  void one_call(Rng& rng, std::vector<Call>& calls) {
    const std::size_t n = below(rng, calls.size());
    Call& call = calls[n];
    std::fill(call.out.begin(), call.out.end(), 7.0f);
    const BackendRef forced = kBuiltin[below(rng, 3)];
    switch (below(rng, 8)) {
      case 0: return attend(n, call, {}, BackendRef{});
      case 1: return attend(n, call, only({forced}), forced);
      case 2: {
        const ScopedPolicy scope(only({forced}));
        return attend(n, call, {}, forced);
      }
      case 3: return attend(n, call, prefer({refusers_[below(rng, 3)]->info().ref}), BackendRef{});
      case 4: return plan_and_execute(n, call, only({forced}));
      case 5: return plan_and_execute(n, call, prefer({refusers_[below(rng, 3)]->info().ref}));
      case 6: return differentiate(n, call, forced);
      default: return expect_error(call);
    }
  }

  void attend(std::size_t n, Call& call, const Policy& policy, const BackendRef& backend) {
    ++plans_;
    const Status status = attention(context_, call.request, policy);
    if (!status.ok()) return mistake("attention()", call, status.to_string());
    check_bits("attention()", n, call, backend, call.out, &Truth::out);
  }

  // Every other plan is left for another thread, and that thread's is executed.
  void plan_and_execute(std::size_t n, Call& call, const Policy& policy) {
    ++plans_;
    Expected<Plan> made = plan(context_, describe(call.request).value(), policy);
    if (!made) return mistake("plan()", call, made.status().to_string());
    {
      const std::lock_guard lock(mutex_);
      std::swap(left_[n], *made);
    }
    if (made->empty()) return;
    const Scratch scratch(made->workspace_bytes());
    const Status status = execute(*made, call.request, scratch.launch);
    if (!scratch.intact()) return mistake("execute()", call, "wrote beside its workspace");
    if (status.code() == StatusCode::kRefusedAtPlan &&
        made->backend() == refusers_[1]->info().ref) {
      ++direct_refusals_;
      return;
    }
    if (!status.ok()) return mistake("execute()", call, status.to_string());
    check_bits("execute()", n, call, made->backend(), call.out, &Truth::out);
  }

  void differentiate(std::size_t n, Call& call, const BackendRef& backend) {
    plans_ += 2;
    const ScopedPolicy scope(only({backend}));
    Status status = attention(context_, call.forward_of_pair());
    if (status.ok()) status = attention_backward(context_, call.backward());
    if (!status.ok()) return mistake("attention_backward()", call, status.to_string());
    check_bits("attention_backward()", n, call, backend, call.d_q, &Truth::d_q);
  }

  void expect_error(Call& call) {
    ++plans_;
    const Policy policy = only({refusers_[3]->info().ref});
    const Status status = attention(context_, call.request, policy);
    if (status.code() != StatusCode::kInternal) {
      return mistake("a backend that throws", call, status.to_string());
    }
    for (const float x : call.out) {
      if (x != 7.0f) return mistake("a backend that throws", call, "out was written");
    }
    const Selection selection = explain(context_, describe(call.request).value(), policy);
    if (selection.chosen != refusers_[3]->info().ref) {
      mistake("explain()", call, to_string(selection));
    }
  }

  void change_settings(Rng& rng) {
    switch (below(rng, 8)) {
      case 0: context_.set_policy({}); break;
      case 1: context_.set_policy(only({kMath, kEfficient})); break;
      case 2: context_.set_policy(prefer({kEfficient})); break;
      case 3: context_.set_tuning({}); break;
      case 4: context_.set_tuning(table_for(context_.env(), {kMath, kEfficient})); break;
      case 5: context_.set_executor(below(rng, 2) == 0 ? nullptr : &serial_); break;
      case 6: add_late_backend(); break;
      default:
        context_.trim();
        context_.set_log_sink(&count_line, &lines_);
        if (context_.backends().empty() || context_.leased_workspace_bytes() < 0) ++mistakes_;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(below(rng, 400)));
  }

  // Up to a number: each stays a candidate of every call.
  void add_late_backend() {
    constexpr int kMax = 20;
    if (late_ == kMax) return;
    const std::string name = "late_" + std::to_string(late_++);
    auto late = std::make_shared<Refuser>(name, Refuser::kThrows);
    if (!register_backend(context_, name, std::move(late), NoSuite())) ++mistakes_;
    if (register_backend(context_, name, refusers_[0], NoSuite())) ++mistakes_;  // a name twice
  }

  static Env logging_env() {
    Env env = described_env();
    env.variables.push_back({"REGARD_LOG", "trace", true, "", ""});
    return env;
  }

  const Truths truths_;
  SerialExecutor serial_;
  std::atomic<std::uint64_t> lines_{0}, plans_{0}, direct_refusals_{0}, mistakes_{0};
  Context context_{logging_env(), 8};  // fewer plans than there are problems
  std::vector<std::shared_ptr<Refuser>> refusers_;
  int late_ = 0;
  std::mutex mutex_;
  std::vector<Plan> left_{truths_.size()};  // by call
};

TEST(ContextStress, ResultsAreTheSerialOnesAndCountersAddUp) {
  const char* const seconds = std::getenv("REGARD_DEV_STRESS_SECONDS");
  Stress stress;
  stress.run(std::chrono::duration<double>(seconds != nullptr ? std::atof(seconds) : 2.0));
  stress.check_counters();
}

}  // namespace
}  // namespace regard::test
