// The forward and the backward of each backend on each instruction set, as GFLOP/s and as a share
// of the multiply-add peak that the same process measures before and after. Names are
// forward/<backend>/<isa>/<case> and backward/..., so --benchmark_filter=forward/flash/avx2 picks.
// What other libraries do: ./dev bench-peers.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "conformance/problem.h"
#include "regard/attention.h"

namespace regard {
namespace {

constexpr const char* kShapes[] = {
    "b1 hq12 sq512 d64 ",
    "b1 hq8 sq2048 d64 ",
    "b1 hq8 sq2048 d64 causal ",
    "b1 hq8 sq2048 d128 ",
    "b1 hq8 sq2048 d128 causal ",
    "b1 hq4 sq2048 d256 ",
    "b8 hq12 sq128 d32 ",
    "b1 hq8 sq1021 d80 causal ",
    "b1 hq32 hkv8 sq512 d128 causal ",
    "b1 hq8 sq4096 skv77 d40 ",
    // A window of 128 over the plain call of 128 keys, without groups and with them.
    "b16 hq8 sq128 d64 ",
    "b1 hq8 sq2048 d64 causal window=127,0 ",
    "b8 hq64 hkv8 sq128 d64 ",
    "b1 hq64 hkv8 sq1024 d64 causal window=127,0 ",
    "b1 hq64 hkv8 sq1024 d64 causal window=127,0 sinks ",
    // What a feature costs over the call of the same shape.
    "b1 hq8 sq2048 d64 causal sinks ",
    "b1 hq8 sq2048 d64 causal softcap=30 ",
    "b1 hq8 sq2048 d64 bias ",
};
constexpr const char* kBackwardShapes[] = {
    "b1 hq12 sq512 d64 ",  "b1 hq8 sq2048 d64 ",         "b1 hq8 sq2048 d64 causal ",
    "b1 hq8 sq2048 d128 ", "b1 hq8 sq2048 d128 causal ", "b1 hq4 sq2048 d256 ",
    "b8 hq12 sq128 d32 ",  "b1 hq8 sq1021 d80 causal ",  "b1 hq32 hkv8 sq512 d128 causal ",
    "b1 hq1 sq8192 d64 ",
};
constexpr const char* kDtypes[] = {"f32", "bf16", "f16"};
constexpr BackendId kBackends[] = {BackendId::kFlash, BackendId::kEfficient, BackendId::kMath};

double operations_of(const Case& source, conformance::Problem& problem, bool is_backward) {
  const Work work = is_backward ? backward_work(source.params, problem.request(), problem.request())
                                : forward_work(source.params, problem.request());
  return work.operations;
}

/// GFLOP/s that arithmetic of this type could reach on `isa`.
double peak_of(const AttentionParams& p, const Env& env) {
  return peak_gflops(measure_machine_rates(env.isa, env.concurrency, /*bandwidth=*/false), p);
}

/// One call; for a backward the problem's forward has run.
Status run(Context& context, conformance::Problem& problem, const Policy& policy,
           bool is_backward) {
  return is_backward ? attention_backward(context, problem.request())
                     : attention(context, problem.request(), policy);
}

void measure(benchmark::State& state, const Case& source, BackendId backend, const Env& env) {
  Context context(env);
  conformance::Problem problem =
      conformance::make_problem(source, {conformance::Guard::kNone, /*dense=*/true});
  const bool is_backward = source.params.features.has(Feature::kNeedsGrad);
  Policy policy;
  policy.only = {{backend}};
  const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
  Status first = attention(context, problem.request(), policy);
  if (first.ok() && is_backward) {
    problem.begin_backward();
    first = run(context, problem, policy, is_backward);
  }
  if (!first.ok()) {
    state.SkipWithError(first.message().c_str());
    return;
  }
  const double before = peak_of(source.params, env);
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    benchmark::DoNotOptimize(run(context, problem, policy, is_backward));
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const double gflops = operations_of(source, problem, is_backward) *
                        static_cast<double>(state.iterations()) / taken.count() / 1e9;
  const double peak = (before + peak_of(source.params, env)) / 2;
  state.counters["GFLOP/s"] = gflops;
  state.counters["share"] = peak > 0.0 ? gflops / peak : 0.0;
}

/// Registers one benchmark where the backend can run the case on `env`.
void register_one(const std::string& words, BackendId backend, const Env& env) {
  const Expected<Case> source = parse_case(words + " layout=bshd");
  Policy policy;
  policy.only = {{backend}};
  if (!source.ok() || !explain(source->params, policy, env).ok()) return;
  const bool is_backward = source->params.features.has(Feature::kNeedsGrad);
  const std::string name = std::string(is_backward ? "backward/" : "forward/") +
                           to_string(BackendRef(backend)) + "/" + to_string(env.isa) + "/" + words;
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { measure(state, source.value(), backend, env); })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

/// The scalar unit only on the first shape, since it takes seconds for the others.
template <std::size_t kCount>
void register_shapes(const char* const (&shapes)[kCount], const char* more, BackendId backend,
                     const Env& env, Isa best) {
  for (const char* shape : shapes) {
    if (env.isa != best && env.isa == Isa::kScalar && shape != shapes[0]) continue;
    for (const char* dtype : kDtypes) register_one(std::string(shape) + dtype + more, backend, env);
  }
}

/// Every backend, instruction set of this machine, shape and type.
bool register_all() {
  const Env machine = read_env();
  for (const BackendId backend : kBackends) {
    for (const Isa& isa : named_isas()) {
      if (!machine.isa.includes(isa)) continue;
      Env env = machine;
      env.isa = isa;
      register_shapes(kShapes, "", backend, env, machine.isa);
      register_shapes(kBackwardShapes, " saved grad", backend, env, machine.isa);
    }
  }
  return true;
}

[[maybe_unused]] const bool kRegistered = register_all();

}  // namespace
}  // namespace regard
