// The forward of each backend on each instruction set, as GFLOP/s and as a share of the
// multiply-add peak that the same process measures before and after. Names are
// forward/<backend>/<isa>/<case>, so
// --benchmark_filter=forward/flash/avx2 picks. What other libraries do: ./dev bench-peers.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "bench/peak/rates.h"
#include "conformance/problem.h"
#include "regard/attention.h"

namespace regard {
namespace {

constexpr const char* kShapes[] = {
    "b1 hq12 sq512 d64 ",       "b1 hq8 sq2048 d64 ",         "b1 hq8 sq2048 d64 causal ",
    "b1 hq8 sq2048 d128 ",      "b1 hq8 sq2048 d128 causal ", "b1 hq4 sq2048 d256 ",
    "b8 hq12 sq128 d32 ",       "b1 hq8 sq1021 d80 causal ",  "b1 hq32 hkv8 sq512 d128 causal ",
    "b1 hq8 sq4096 skv77 d40 ",
};
constexpr const char* kDtypes[] = {"f32", "bf16", "f16"};
constexpr BackendId kBackends[] = {BackendId::kFlash, BackendId::kEfficient, BackendId::kMath};

/// 2 * (Dqk + Dv) for each pair of query and key; half of a causal square.
double flops_of(const AttentionParams& p) {
  const double pairs = static_cast<double>(p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv);
  const double all = 2.0 * static_cast<double>(p.head_dim_qk + p.head_dim_v) * pairs;
  return p.features.has(Feature::kCausal) ? all / 2 : all;
}

/// GFLOP/s that arithmetic of this type could reach on `isa`.
double peak_of(const AttentionParams& p, const Env& env) {
  const int threads = env.concurrency;
  const double bf16 = p.dtype_q == Dtype::kBf16
                          ? peak::bf16_gflops(env.isa, env.isa_available, threads, 0.02)
                          : 0.0;
  return bf16 > 0.0 ? bf16 : peak::f32_gflops(env.isa, env.isa_available, threads, 0.02);
}

void forward(benchmark::State& state, const Case& source, BackendId backend, const Env& env) {
  Context context(env);
  const conformance::Problem problem = conformance::make_problem(source);
  Policy policy;
  policy.only.emplace({BackendRef{backend, ""}});
  const Status first = attention(context, problem.request(), policy);
  if (!first.ok()) {
    state.SkipWithError(first.message().c_str());
    return;
  }
  const double before = peak_of(source.params, env);
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    benchmark::DoNotOptimize(attention(context, problem.request(), policy));
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const double gflops =
      flops_of(source.params) * static_cast<double>(state.iterations()) / taken.count() / 1e9;
  const double peak = (before + peak_of(source.params, env)) / 2;
  state.counters["GFLOP/s"] = gflops;
  state.counters["share"] = peak > 0.0 ? gflops / peak : 0.0;
}

/// Registers one benchmark where the backend can run the case on `env`.
void register_one(const std::string& words, BackendId backend, const Env& env) {
  const Expected<Case> source = parse_case(words + " layout=bshd");
  Policy policy;
  policy.only.emplace({BackendRef{backend, ""}});
  if (!source.ok() || !explain(source->params, policy, env).ok()) return;
  const std::string name =
      "forward/" + to_string(BackendRef{backend, ""}) + "/" + to_string(env.isa) + "/" + words;
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { forward(state, source.value(), backend, env); })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

/// Every backend, instruction set of this machine, shape and type; the scalar unit only on the
/// first shape, since it takes seconds for the others.
bool register_all() {
  const Env machine = read_env();
  for (const BackendId backend : kBackends) {
    for (int isa = static_cast<int>(machine.isa); isa >= 0; --isa) {
      Env env = machine;
      env.isa = static_cast<Isa>(isa);
      for (const char* shape : kShapes) {
        if (env.isa < machine.isa && env.isa == Isa::kScalar && shape != kShapes[0]) continue;
        for (const char* dtype : kDtypes) {
          register_one(std::string(shape) + dtype, backend, env);
        }
      }
    }
  }
  return true;
}

[[maybe_unused]] const bool kRegistered = register_all();

}  // namespace
}  // namespace regard
