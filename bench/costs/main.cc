// Random problems, measured on every usable backend: how often the choice is within 5 % of the
// fastest, and the prediction within 1.3 times the measured time. The same of padding "auto" and of
// the format of a cache. A choice is wrong where a second run says so, too. A problem that other
// programs disturb is measured again, at last left out.
//
//     regard_bench_costs [--problems 200] [--seed 1] [--seconds 60] [--group NAME] [--save FILE]
//         [--fit] [--load FILE]...
//
// The choice and the predictions are those of a Context, so REGARD_TUNING=FILE judges a table.
// --save writes a tuning file with the measured times. --load FILE without --fit measures nothing:
// it judges the predictions of the file's times. --fit prints the terms that fit the times best, as
// src/core/measure/default_costs.cc has them, and saves these, too; --load adds the times of a
// file, --problems 0 fits to them alone. --group draws from one group alone: cache has keys and
// values in the formats of caches.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "bench/costs/choices.h"
#include "bench/costs/problems.h"
#include "bench/costs/ratios.h"
#include "bench/costs/steady.h"
#include "conformance/problem.h"
#include "regard/attention.h"

namespace {

using namespace regard;
using regard::bench::Choice;
using regard::bench::Draw;
using regard::bench::kBackendGroups;
using regard::bench::kGroups;
using regard::bench::Way;

struct Options {
  int problems = 200;
  std::uint64_t seed = 1;
  double seconds = 1e9;
  std::string group;  // one of kGroups; all of them where it is empty
  bool fit = false;
  std::string save;               // a tuning file to write
  std::vector<std::string> load;  // tuning files to read
};

struct Figures {
  int problems = 0, chosen_well = 0;
  int predictions = 0, predicted_well = 0;
  void add(const Figures& other) {
    problems += other.problems;
    chosen_well += other.chosen_well;
    predictions += other.predictions;
    predicted_well += other.predicted_well;
  }
};

double share(int part, int whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

/// Of one direction: seconds of each row that was measured.
std::map<std::string, double> medians(const Benchmark& result, bool backward) {
  std::map<std::string, double> seconds;
  for (const BenchmarkRow& row : result.rows) {
    if (row.backward == backward && !row.seconds.empty()) seconds[row.name] = row.quantile(0.5);
  }
  return seconds;
}

bool within(const std::map<std::string, double>& seconds, const std::string& chosen) {
  const auto found = seconds.find(chosen);
  if (found == seconds.end()) return false;
  for (const auto& [name, other] : seconds) {
    if (found->second > 1.05 * other) return false;
  }
  return true;
}

bool is_well_chosen(const Choice& choice) {
  std::map<std::string, double> seconds;
  for (const Way& way : choice.ways) seconds[way.name] = way.seconds;
  return within(seconds, choice.chosen);
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  int run() {
    for (const std::string& file : options_.load) {
      if (!load(file)) return 1;
    }
    if (!options_.load.empty() && !options_.fit) {
      judge_times();
      return 0;
    }
    Draw draw(options_.seed);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < options_.problems; ++i) {
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (taken.count() > options_.seconds) {
        std::printf("ended after %d problems\n", i);
        break;
      }
      const std::size_t count = options_.fit ? kBackendGroups : std::size(kGroups);
      const std::string group =
          options_.group.empty() ? kGroups[static_cast<std::size_t>(i) % count] : options_.group;
      if (group == "padded") {
        judge(group, [&, before = draw] {
          draw = before;  // the same problem where it is measured again
          return bench::measure_padded(context_, &draw, kRounds);
        });
      } else if (group == "formats") {
        const std::string words = bench::draw_case(group, &draw);
        judge(group, [&] { return bench::measure_formats(context_, words, kRounds); });
      } else {
        measure_problem(group, bench::draw_case(group, &draw));
      }
    }
    if (options_.fit) {
      fit();
    } else {
      print_shares();
      ratios_.print();
    }
    return options_.save.empty() || save() ? 0 : 1;
  }

 private:
  static constexpr int kRounds = 3;

  bool load(const std::string& file) {
    std::ifstream stream(file);
    std::stringstream text;
    text << stream.rdbuf();
    const Expected<TuningTable> table = parse_tuning_table(text.str(), file);
    if (!table.ok()) {
      std::fprintf(stderr, "%s\n", table.status().message().c_str());
      return false;
    }
    for (const TuningTable::Time& time : table->times) {
      if (time.variant.empty()) times_.push_back(time);
    }
    rates_ = table->costs.rates;
    return true;
  }

  /// Measures while the machine is steady; false after so many tries.
  template <class Measure>
  bool measure_steadily(Measure measure) {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i) {
      const bool was_steady = steady_.wait();
      if (!measure()) return true;
      if (was_steady && steady_.is_steady()) return true;
    }
    ++disturbed_;
    return false;
  }

  Expected<Benchmark> bench(const conformance::Problem& problem) {
    BenchmarkOptions rounds;
    rounds.rounds = options_.fit ? 2 : kRounds;
    return benchmark(context_, problem.request(), {}, rounds);
  }

  void measure_problem(const std::string& group, const std::string& words) {
    const Case source = parse_case(words).value();
    const AttentionParams& params = source.params;
    conformance::Problem problem = conformance::make_problem(source, {conformance::Guard::kNone});
    if (params.features.has(Feature::kNeedsGrad)) {
      if (!attention(context_, problem.request()).ok()) return;
      problem.begin_backward();
    }
    Expected<Benchmark> result = Benchmark();
    const bool is_steady = measure_steadily([&] {
      result = bench(problem);
      return result.ok();
    });
    if (!is_steady) return;
    if (!result.ok()) {
      std::printf("%s: %s\n", words.c_str(), result.status().message().c_str());
      return;
    }
    const Selection selection = explain(context_, params);
    for (const bool backward : {false, true}) {
      const auto seconds = medians(*result, backward);
      if (seconds.empty() || backward != params.features.has(Feature::kNeedsGrad)) continue;
      Figures figures;
      figures.problems = 1;
      bool well = within(seconds, result->chosen);
      if (!well && !options_.fit) {
        const Expected<Benchmark> again = bench(problem);
        well = again.ok() && within(medians(*again, backward), result->chosen);
      }
      figures.chosen_well = well ? 1 : 0;
      std::printf("%-8s %s: %s%s\n", group.c_str(), words.c_str(), result->chosen.c_str(),
                  well ? "" : " is not the fastest");
      for (const auto& [name, measured] : seconds) {
        const BackendRef ref = parse_backend(name).value();
        times_.push_back({{ref.id, params, backward, measured}, measured, measured});
        const double ratio = ratios_.add(selection, times_.back().observation);
        if (ratio < 0.0) continue;
        if (name == result->chosen) {
          ++figures.predictions;
          figures.predicted_well += bench::is_good(ratio) ? 1 : 0;
        }
        std::printf("           %-10s %10.1f us, %.2f times the prediction\n", name.c_str(),
                    measured * 1e6, ratio);
      }
      groups_[group].add(figures);
    }
    std::fflush(stdout);
  }

  void judge_times() {
    for (const TuningTable::Time& time : times_) {
      const CostObservation& o = time.observation;
      const double ratio = ratios_.add(explain(context_, o.params), o);
      if (ratio < 0.0) continue;
      std::printf("%s %-9s %-8s %6.2f %10.1f us  %s\n", bench::is_good(ratio) ? "   " : "off",
                  to_string(BackendRef(o.backend)).c_str(), bench::kind_name(o).c_str(), ratio,
                  o.seconds * 1e6, to_string(o.params).c_str());
    }
    ratios_.print();
  }

  template <class Measure>
  void judge(const std::string& group, Measure measure) {
    Choice choice;
    const bool is_steady = measure_steadily([&] {
      choice = measure();
      return choice.error.empty();
    });
    if (!is_steady) return;
    if (!choice.error.empty()) {
      std::printf("%-8s %s: %s\n", group.c_str(), choice.words.c_str(), choice.error.c_str());
      return;
    }
    for (const CostObservation& time : choice.times) {
      times_.push_back({time, time.seconds, time.seconds});
    }
    bool well = is_well_chosen(choice);
    if (!well) {  // as measure_problem() does
      const Choice again = measure();
      well = again.error.empty() && is_well_chosen(again);
    }
    Figures figures;
    figures.problems = 1;
    figures.chosen_well = well ? 1 : 0;
    std::printf("%-8s %s: %s%s\n", group.c_str(), choice.words.c_str(), choice.chosen.c_str(),
                figures.chosen_well == 1 ? "" : " is not the fastest");
    for (const Way& way : choice.ways) {
      const double ratio = way.seconds / way.predicted;
      const bool good = way.predicted > 0.0 && bench::is_good(ratio);
      if (way.name == choice.chosen) {
        figures.predictions = 1;
        figures.predicted_well = good ? 1 : 0;
      }
      std::printf("           %-10s %10.1f us, %.2f times the prediction\n", way.name.c_str(),
                  way.seconds * 1e6, ratio);
    }
    groups_[group].add(figures);
    std::fflush(stdout);
  }

  void print_shares() const {
    Figures total;
    std::printf("\n%-10s %8s  %17s  %22s\n", "problems", "count", "chosen within 5 %",
                "predicted within 1.3 x");
    const auto print = [](const std::string& name, const Figures& f) {
      std::printf("%-10s %8d  %15.1f %%  %20.1f %%\n", name.c_str(), f.problems,
                  share(f.chosen_well, f.problems), share(f.predicted_well, f.predictions));
    };
    for (const auto& [name, figures] : groups_) {
      print(name, figures);
      total.add(figures);
    }
    print("all", total);
    std::printf("left out, as other programs disturbed them: %d\n", disturbed_);
  }

  void fit() {
    std::vector<CostObservation> observations;
    for (const TuningTable::Time& time : times_) observations.push_back(time.observation);
    costs_ = fit_costs(default_terms(), observations);
    std::printf("\n");
    for (const CostEntry& entry : costs_.entries) {
      std::printf("    {\"%s %s %s\", {", to_string(BackendRef(entry.backend)).c_str(),
                  to_string(entry.kind), to_string(entry.types));
      const char* separator = "";
      for_each_cost_term(entry.terms, [&](const char*, double term) {
        std::printf("%s%.3g", separator, term);
        separator = ", ";
      });
      std::printf("}},\n");
    }
  }

  /// With the loaded file's rates, or this machine's.
  CostModel default_terms() const {
    const Env env = context_.env();
    CostModel terms = default_costs(env);
    terms.rates = rates_.f32_gflops > 0.0 ? rates_ : machine_rates(env.isa, env.concurrency);
    terms.source.clear();
    return terms;
  }

  bool save() const {
    const Env env = context_.env();
    TuningTable table;
    table.version = env.version;
    table.isa = to_string(env.isa);
    table.cpu_model = env.cpu_model;
    table.concurrency = env.concurrency;
    table.costs = costs_;
    if (!options_.fit) {
      table.costs = default_terms();
      table.costs.entries.clear();
    }
    table.times = times_;
    std::ofstream stream(options_.save);
    stream << to_text(table);
    if (stream.flush()) return true;
    std::fprintf(stderr, "cannot write %s\n", options_.save.c_str());
    return false;
  }

  Options options_;
  Context context_;
  bench::SteadyMachine steady_{context_};
  int disturbed_ = 0;  // problems
  std::vector<TuningTable::Time> times_;
  MachineRates rates_;  // of a loaded file
  CostModel costs_;     // fitted
  std::map<std::string, Figures> groups_;
  bench::Ratios ratios_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--fit") == 0) {
      options.fit = true;
    } else if (std::strcmp(argv[i], "--save") == 0 && has_value) {
      options.save = argv[++i];
    } else if (std::strcmp(argv[i], "--load") == 0 && has_value) {
      options.load.emplace_back(argv[++i]);
    } else if (std::strcmp(argv[i], "--problems") == 0 && has_value) {
      options.problems = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--seed") == 0 && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--group") == 0 && has_value) {
      options.group = argv[++i];
      if (std::find(std::begin(kGroups), std::end(kGroups), options.group) == std::end(kGroups)) {
        std::fprintf(
            stderr,
            "--group (%s), expected prefill, decode, short, masked, backward, cache, padded or "
            "formats\n",
            argv[i]);
        return 2;
      }
    } else if (std::strcmp(argv[i], "--seconds") == 0 && has_value) {
      options.seconds = std::atof(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: %s [--problems N] [--seed N] [--seconds X] [--group NAME] "
                   "[--save FILE] [--fit] [--load FILE]...\n",
                   argv[0]);
      return 2;
    }
  }
  return Bench(options).run();
}
