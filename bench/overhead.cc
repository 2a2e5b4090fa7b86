// What a call costs besides its arithmetic. Speed is judged here, never by a timed test: read the
// figures as multiples of BM_LockAndLookup in the same run.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "regard/attention.h"
#include "regard/regard.h"

namespace regard {
namespace {

// One problem of 1 x 1 x 1 x 1 x 64: the smallest that still computes something.
struct TinyCall {
  explicit TinyCall(Context& context_in) : context(context_in) {
    request.q = make_view(q.data(), {1, 1, 1, 64});
    request.k = make_view(k.data(), {1, 1, 1, 64});
    request.v = make_view(v.data(), {1, 1, 1, 64});
    request.out = make_view(out.data(), {1, 1, 1, 64});
  }
  Context& context;
  std::vector<float> q = std::vector<float>(64, 0.5f);
  std::vector<float> k = std::vector<float>(64, 0.5f);
  std::vector<float> v = std::vector<float>(64, 0.5f);
  std::vector<float> out = std::vector<float>(64);
  AttentionRequest request;
};

void fail_on(benchmark::State& state, const Status& status) {
  if (!status.ok()) state.SkipWithError(status.message().c_str());
}

// The yardstick: an uncontended lock and a look-up in a hash map of 256 entries.
void BM_LockAndLookup(benchmark::State& state) {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, int> map;
  for (std::uint64_t i = 0; i < 256; ++i) map[i * 0x9e3779b97f4a7c15ull] = static_cast<int>(i);
  std::uint64_t i = 0;
  for (auto _ : state) {
    const std::lock_guard lock(mutex);
    benchmark::DoNotOptimize(map.find((i++ & 255u) * 0x9e3779b97f4a7c15ull));
  }
}
BENCHMARK(BM_LockAndLookup);

void BM_CachedCall(benchmark::State& state) {
  Context context;
  TinyCall call(context);
  fail_on(state, attention(context, call.request));
  for (auto _ : state) benchmark::DoNotOptimize(attention(context, call.request));
}
BENCHMARK(BM_CachedCall);

// The same through the C ABI: what it adds is reading the caller's structs.
void BM_CachedCallC(benchmark::State& state) {
  std::vector<float> data(64, 0.5f), out(64);
  const std::int64_t shape[4] = {1, 1, 1, 64};
  const regard_dtype f32 = {REGARD_DTYPE_FLOAT, 32, 1};
  const regard_tensor input = regard_make_tensor(data.data(), f32, 4, shape);
  const regard_tensor output = regard_make_tensor(out.data(), f32, 4, shape);
  regard_request request = regard_request_default();
  request.q = request.k = request.v = &input;
  request.out = &output;
  regard_context* context = nullptr;
  if (regard_context_create(&context) != REGARD_STATUS_OK ||
      regard_attention(context, &request, nullptr, nullptr) != REGARD_STATUS_OK) {
    state.SkipWithError(regard_last_error());
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(regard_attention(context, &request, nullptr, nullptr));
  }
  regard_context_destroy(context);
}
BENCHMARK(BM_CachedCallC);

void BM_Describe(benchmark::State& state) {
  Context context;
  TinyCall call(context);
  for (auto _ : state) benchmark::DoNotOptimize(describe(call.request));
}
BENCHMARK(BM_Describe);

void BM_CachedPlan(benchmark::State& state) {
  Context context;
  TinyCall call(context);
  const AttentionParams params = describe(call.request).value();
  fail_on(state, plan(context, params).status());
  for (auto _ : state) benchmark::DoNotOptimize(plan(context, params));
}
BENCHMARK(BM_CachedPlan);

void BM_ExecutePlan(benchmark::State& state) {
  Context context;
  TinyCall call(context);
  const Plan made = plan(context, describe(call.request).value()).value();
  std::vector<char> memory(static_cast<std::size_t>(made.workspace_bytes()) + 64);
  Launch launch;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  launch.workspace.data = memory.data() + (64 - address % 64) % 64;
  launch.workspace.bytes = static_cast<std::size_t>(made.workspace_bytes());
  fail_on(state, execute(made, call.request, launch));
  for (auto _ : state) benchmark::DoNotOptimize(execute(made, call.request, launch));
}
BENCHMARK(BM_ExecutePlan);

// Every call misses: a cache of no entries plans each time.
void BM_UncachedSelectAndPlan(benchmark::State& state) {
  Context context(read_env(), 0);
  TinyCall call(context);
  const AttentionParams params = describe(call.request).value();
  fail_on(state, plan(context, params).status());
  for (auto _ : state) benchmark::DoNotOptimize(plan(context, params));
}
BENCHMARK(BM_UncachedSelectAndPlan);

void BM_Explain(benchmark::State& state) {
  Context context;
  TinyCall call(context);
  const AttentionParams params = describe(call.request).value();
  for (auto _ : state) benchmark::DoNotOptimize(explain(context, params));
}
BENCHMARK(BM_Explain);

}  // namespace
}  // namespace regard
