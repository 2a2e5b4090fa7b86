// How well calls use up to 64 workers, simulated on one core: efficiency is the time of one worker
// over w times the longest of w. Prints a table in Markdown: a row a shape, a column a number of
// workers; the target is 0.85 up to min(64, serial time / 1 ms) workers, and a number below it
// there has a star. usage: regard_bench_workers [FILTER]

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string>

#include "bench/workers/simulated_workers.h"
#include "conformance/problem.h"
#include "regard/attention.h"

namespace regard::bench {
namespace {

struct Shape {
  const char* name;
  const char* text;
};

constexpr Shape kShapes[] = {
    {"prefill, 32 heads of 2048", "b1 hq32 hkv8 sq2048 d128 bf16 causal"},
    {"prefill, 32 heads of 512", "b1 hq32 hkv8 sq512 d128 bf16 causal"},
    {"encoder, 12 heads of 512", "b1 hq12 sq512 d64 f32"},
    {"encoder, 64 short sequences", "b64 hq12 sq128 d64 f32"},
    {"one head of 4096", "b1 hq1 sq4096 d128 f32"},
    {"one causal head of 4096", "b1 hq1 sq4096 d128 f32 causal"},
    {"decode, batch 1, 8k keys", "b1 hq32 hkv8 sq1 skv8192 d128 bf16"},
    {"decode, batch 1, 32k keys", "b1 hq32 hkv8 sq1 skv32768 d128 bf16"},
    {"few rows, 16 of 16k keys", "b1 hq8 hkv2 sq16 skv16384 d128 f32"},
    {"128 rows of 32k keys", "b1 hq8 hkv8 sq128 skv32768 d128 f32 causal diag=br"},
    {"backward, one head of 4096", "b1 hq1 sq4096 d64 f32 lse grad"},
    {"backward, 16 heads of 1024", "b1 hq16 sq1024 d64 f32 causal lse grad"},
};
constexpr int kWorkers[] = {2, 4, 8, 16, 32, 64};
constexpr double kTarget = 0.85, kWorkerSeconds = 1e-3;
constexpr int kRepeats = 3;

/// The simulated time of one call on a machine of `workers` cores, the best of a few.
double simulate(const Env& env, const Case& source, int workers) {
  Env described = env;
  described.concurrency = workers;
  Context context(described);
  SimulatedWorkers executor;
  context.set_executor(&executor);
  conformance::Problem problem = conformance::make_problem(source, {conformance::Guard::kNone});
  const bool is_backward = source.params.features.has(Feature::kNeedsGrad);
  check(attention(context, problem.request()));
  if (is_backward) problem.begin_backward();
  double best = HUGE_VAL;
  for (int i = 0; i <= kRepeats; ++i) {  // the first is for the caches
    executor.reset();
    const double start = thread_seconds();
    check(is_backward ? attention_backward(context, problem.request())
                      : attention(context, problem.request()));
    const double caller = thread_seconds() - start - executor.inside_seconds();
    if (i > 0) best = std::min(best, caller + executor.longest_seconds());
  }
  return best;
}

void print_row(const Env& env, const Shape& shape) {
  const Case source = parse_case(shape.text).value();
  const double serial = simulate(env, source, 1);
  std::printf("| %s | %.1f ms |", shape.name, serial * 1e3);
  for (const int workers : kWorkers) {
    const double efficiency = serial / (workers * simulate(env, source, workers));
    const bool counts = workers <= std::min(64.0, serial / kWorkerSeconds);
    std::printf(" %.2f%s |", efficiency, counts && efficiency < kTarget ? "*" : "");
    std::fflush(stdout);
  }
  std::printf("\n");
}

int run(int argc, char** argv) {
  const Env env = read_env();
  const std::string filter = argc > 1 ? argv[1] : "";
  std::printf("| shape | one worker |");
  for (const int workers : kWorkers) std::printf(" %d |", workers);
  std::printf("\n|---|---:|");
  for (std::size_t i = 0; i < std::size(kWorkers); ++i) std::printf("---:|");
  std::printf("\n");
  for (const Shape& shape : kShapes) {
    if (std::string(shape.name).find(filter) != std::string::npos) print_row(env, shape);
  }
  return 0;
}

}  // namespace
}  // namespace regard::bench

int main(int argc, char** argv) { return regard::bench::run(argc, argv); }
