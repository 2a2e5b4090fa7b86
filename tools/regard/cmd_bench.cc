#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "regard/benchmark.h"
#include "regard/context.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/interrupt.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"
#include "tools/regard/problem_tensors.h"
#include "tools/regard/problem_words.h"
#include "tools/regard/recorded_cases.h"

namespace regard::cli {
namespace {

constexpr std::int64_t kMaxRounds = 1'000'000;

struct BenchFlags {
  CommonOptions common;
  std::vector<std::string> words;
  FileOptions file;
  std::string seconds;
  std::string rounds;
  bool variants = false;
};

bool poll_signals(void*) noexcept { return interrupted(); }

/// The verb: one problem after another, each printed when it is measured.
class BenchVerb {
 public:
  BenchVerb(Output& output, const BenchFlags& flags) : output_(output), flags_(flags) {}

  int run() {
    if (const Status status = read_flags(); !status) return output_.fail(status);
    output_.document()["problems"] = Json::array();
    const auto problems = expand_records(split_problems(flags_.words));
    if (!problems) return output_.fail(problems.status());
    for (const CountedProblem& problem : *problems) {
      if (&problem != problems->data()) output_.print("\n");
      calls_ = problem.calls;
      if (calls_ > 0) output_.print(fmt::format("{} calls of\n", calls_));
      if (const int code = measure_problem(problem.words); code != kExitOk) return code;
    }
    show_mix();
    return kExitOk;
  }

 private:
  Status read_flags() {
    Expected<Policy> policy = policy_of(flags_.common);
    if (!policy) return policy.status();
    policy_ = *std::move(policy);
    options_.poll = poll_signals;
    options_.variants = flags_.variants;
    if (!flags_.seconds.empty()) {
      const Expected<double> seconds = parse_seconds(flags_.seconds, "--seconds");
      if (!seconds) return seconds.status();
      options_.seconds = *seconds;
    }
    if (!flags_.rounds.empty()) {
      const Expected<std::int64_t> rounds = parse_whole(flags_.rounds, "--rounds", 1, kMaxRounds);
      if (!rounds) return rounds.status();
      options_.rounds = static_cast<std::int32_t>(*rounds);
    }
    return {};
  }

  int measure_problem(const ProblemWords& problem) {
    Expected<Case> c = case_of(problem, flags_.file);
    if (!c) return output_.fail(c.status());
    save_for_backward(c->params);
    Expected<Env> env = env_of(flags_.common, *c, /*must_run=*/true);
    if (!env) return output_.fail(env.status());
    Context context(*std::move(env));
    output_.apply_to(context);
    const Selection selection = explain(context, c->params, policy_);
    if (!selection.ok()) {  // before tensors are made
      output_.document()["selection"] = Json::parse(to_json(selection));
      output_.print(highlight(output_, to_string(selection)));
      return output_.fail(kExitNoBackend, "no_backend", "no backend can run this problem");
    }
    const Expected<std::unique_ptr<ProblemTensors>> tensors =
        ProblemTensors::make(problem, *c, flags_.file);
    if (!tensors) return output_.fail(tensors.status());
    const AttentionGradRequest& request = (*tensors)->request();
    const Expected<Plan> made = plan(context, c->params, policy_);
    if (!made) return output_.fail(made.status());
    if (const Status status = check_tensors(*made, request); !status) return output_.fail(status);
    // Rates are remembered; a signal meanwhile ends the program at once.
    machine_rates(context.env().isa, context.env().concurrency);
    machine_rates(context.env().isa, 1);
    return measure_tensors(problem, context, request);
  }

  int measure_tensors(const ProblemWords& problem, Context& context,
                      const AttentionGradRequest& request) {
    const DeferSignals defer;
    const Expected<Benchmark> result = benchmark(context, request, policy_, options_);
    if (!result) return output_.fail(result.status());
    Json json = Json::object();
    json["calls"] = calls_ > 0 ? Json(calls_) : Json(nullptr);
    json["file"] = problem.is_file ? Json(printable(problem.text)) : Json(nullptr);
    json.update(Json::parse(to_json(*result)));
    output_.document()["problems"].push_back(std::move(json));
    output_.print(to_string(*result));
    add_to_mix(*result);
    output_.keep_for_interrupts();
    return interrupted() ? output_.fail_interrupted() : kExitOk;
  }

  /// Seconds of the recorded calls, each by the median of its backend.
  void add_to_mix(const Benchmark& result) {
    const BenchmarkRow* before = nullptr;
    for (const BenchmarkRow& row : result.rows) {
      // The first of a backend and direction is its plan's own; other variants follow.
      const bool is_other =
          before != nullptr && before->name == row.name && before->backward == row.backward;
      before = &row;
      if (row.name != result.chosen || row.seconds.empty() || is_other) continue;
      mix_seconds_ += row.quantile(0.5) * static_cast<double>(calls_);
    }
    mix_calls_ += calls_;
  }

  void show_mix() {
    if (mix_calls_ == 0) return;
    output_.document()["recorded_calls"] = mix_calls_;
    output_.document()["recorded_seconds"] = mix_seconds_;
    output_.print(fmt::format("\nrecord   {} calls take {} on the chosen backends\n", mix_calls_,
                              seconds_text(mix_seconds_)));
  }

  Output& output_;
  const BenchFlags& flags_;
  std::uint64_t calls_ = 0;  // of the problem, in a record
  std::uint64_t mix_calls_ = 0;
  double mix_seconds_ = 0.0;
  Policy policy_;
  BenchmarkOptions options_;
};

}  // namespace

Command add_bench(CLI::App& app) {
  CLI::App* verb = add_verb(app, "bench", "How fast every usable backend is on given shapes");
  const auto flags = std::make_shared<BenchFlags>();
  add_positional(
      *verb, "problem", flags->words, true,
      {kProblemValue, "Words of a case, cases in quotes, files as run takes them, or records"});
  add_value(*verb, "--seconds", flags->seconds,
            {"X", "Seconds to measure each problem; at least three rounds", "1"});
  add_value(*verb, "--rounds", flags->rounds,
            {"N", "Rounds to measure instead; each backend runs in every round"});
  add_flag(*verb, "--variants", flags->variants,
           "Measure the variants of each backend's kernels, too");
  add_file_flags(*verb, flags->file);
  add_common_flags(*verb, flags->common);
  return {verb, [flags] {
            Output output("bench", flags->common.output);
            return output.finish(BenchVerb(output, *flags).run());
          }};
}

}  // namespace regard::cli
