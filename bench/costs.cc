// Random problems, measured on every usable backend: how often the choice is within 5 % of the
// fastest, and the prediction within 1.3 times the measured time.
//
//     regard_bench_costs [--problems 200] [--seed 1] [--seconds 60] [--group NAME]
//         [--fit [--load FILE]...]
//
// The choice and the predictions are those of a Context, so REGARD_TUNING=FILE judges a table.
// --fit prints the terms that fit these problems best instead, as src/core/measure/default_costs.cc
// has them, and a tuning file; --load adds the times of one. --group draws from one group alone:
// cache has keys and values in the formats of caches.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"

namespace {

using namespace regard;

struct Options {
  int problems = 200;
  std::uint64_t seed = 1;
  double seconds = 1e9;
  std::string group;  // one of kGroups; all of them where it is empty
  bool fit = false;
  std::vector<std::string> load;  // tuning files
};

/// Draws of a generator, the same with every standard library.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::int64_t whole(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::int64_t logarithmic(double low, double high) {
    const double at = static_cast<double>(engine_() >> 11) * 0x1p-53;
    return static_cast<std::int64_t>(std::lround(low * std::pow(high / low, at)));
  }
  template <class T, std::size_t kCount>
  const T& one_of(const T (&values)[kCount]) {
    return values[engine_() % kCount];
  }

 private:
  std::mt19937_64 engine_;
};

constexpr const char* kGroups[] = {"prefill", "decode", "short", "masked", "backward", "cache"};

std::string words_of(const std::string& group, Draw* draw) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  constexpr const char* kCacheTypes[] = {"bf16 kv=i8 scales=token",
                                         "bf16 kv=f8e4m3 scales=token",
                                         "bf16 kv=u4",
                                         "f32 kv=i8 scales=token",
                                         "f32 kv=f8e5m2 scales=token",
                                         "f32 kv=u4",
                                         "f32 kv=bf16"};
  constexpr int kHeadDims[] = {32, 40, 64, 64, 80, 96, 128, 128, 192, 256};
  constexpr int kKvHeads[] = {1, 2, 3, 4, 8, 12};
  constexpr int kGroupSizes[] = {1, 1, 1, 2, 4, 8};
  constexpr const char* kMasks[] = {" causal diag=br", " window=127,0 diag=br", " mask",
                                    " bias",           " alibi causal diag=br", " softcap=30",
                                    " sinks"};
  const std::int64_t kv_heads = draw->one_of(kKvHeads);
  const std::int64_t heads = kv_heads * draw->one_of(kGroupSizes);
  std::int64_t batch = draw->whole(1, 4), sq = 0, skv = 0;
  std::string more;
  const bool is_cache = group == "cache";
  if (group == "decode" || (is_cache && draw->whole(0, 3) != 0)) {
    sq = draw->whole(1, 3) == 1 ? draw->whole(2, 4) : 1;
    skv = draw->logarithmic(64, 32768);
  } else if (group == "short" || is_cache) {
    sq = draw->logarithmic(5, 80);
    skv = draw->whole(0, 1) == 0 ? sq : draw->logarithmic(16, 512);
    batch = draw->logarithmic(1, 64);
  } else {
    sq = draw->logarithmic(65, 2048);
    skv = draw->whole(0, 2) == 0 ? draw->logarithmic(64, 4096) : sq;
  }
  if (group == "masked") more = draw->one_of(kMasks);
  if (group == "prefill" && draw->whole(0, 1) == 0) more = " causal diag=br";
  if (group == "backward")
    more = draw->whole(0, 1) == 0 ? " grad saved" : " grad saved causal diag=br";
  const auto word = [](const char* name, std::int64_t n) { return name + std::to_string(n) + " "; };
  return word("b", batch) + word("hq", heads) + word("hkv", kv_heads) + word("sq", sq) +
         word("skv", skv) + word("d", draw->one_of(kHeadDims)) +
         (is_cache ? draw->one_of(kCacheTypes) : draw->one_of(kTypes)) + more;
}

/// Small enough that MATH takes some 30 ms.
bool is_small(const AttentionParams& p) {
  const double pairs = static_cast<double>(p.batch * p.num_heads_q) *
                       static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_kv);
  const double keys = static_cast<double>(p.batch * p.num_heads_kv * p.seqlen_kv);
  const double dims = static_cast<double>(p.head_dim_qk);
  const bool grad = p.features.has(Feature::kNeedsGrad);
  return pairs * dims * (grad ? 14.0 : 4.0) < 1.5e9 && keys * dims < 4e7 && pairs < 2e7;
}

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

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  int run() {
    for (const std::string& file : options_.load) {
      if (!load(file)) return 1;
    }
    Draw draw(options_.seed);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < options_.problems; ++i) {
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (taken.count() > options_.seconds) {
        std::printf("ended after %d problems\n", i);
        break;
      }
      const std::string group = options_.group.empty()
                                    ? kGroups[static_cast<std::size_t>(i) % std::size(kGroups)]
                                    : options_.group;
      std::string words = words_of(group, &draw);
      while (!is_small(parse_case(words).value().params)) words = words_of(group, &draw);
      measure_problem(group, words);
    }
    if (options_.fit) {
      print_fit();
    } else {
      print_shares();
    }
    return 0;
  }

 private:
  bool load(const std::string& file) {
    std::ifstream stream(file);
    std::stringstream text;
    text << stream.rdbuf();
    const Expected<TuningTable> table = parse_tuning_table(text.str(), file);
    if (!table.ok()) {
      std::fprintf(stderr, "%s\n", table.status().message().c_str());
      return false;
    }
    times_.insert(times_.end(), table->times.begin(), table->times.end());
    rates_ = table->costs.rates;
    return true;
  }

  Expected<Benchmark> bench(const conformance::Problem& problem) {
    BenchmarkOptions rounds;
    rounds.rounds = options_.fit ? 2 : 3;
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
    const Expected<Benchmark> result = bench(problem);
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
        const Verdict* verdict = selection.find(ref);
        if (verdict == nullptr) continue;
        times_.push_back({{ref.id, params, backward, measured}, measured, measured});
        const PredictedTime& time = backward ? verdict->backward_time : verdict->forward_time;
        if (!time.known()) continue;
        const double ratio = measured / time.seconds;
        const bool good = ratio < 1.3 && ratio > 1 / 1.3;
        if (name == result->chosen) {
          ++figures.predictions;
          figures.predicted_well += good ? 1 : 0;
        }
        ++all_.predictions;
        all_.predicted_well += good ? 1 : 0;
        std::printf("           %-10s %10.1f us, %.2f times the prediction\n", name.c_str(),
                    measured * 1e6, ratio);
      }
      groups_[group].add(figures);
    }
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
    std::printf("of every backend, not the chosen one alone: predicted within 1.3 x in %.1f %%\n",
                share(all_.predicted_well, all_.predictions));
  }

  void print_fit() const {
    const Env env = context_.env();
    CostModel start = default_costs(env);
    start.rates = rates_.f32_gflops > 0.0 ? rates_ : machine_rates(env.isa, env.concurrency);
    std::vector<CostObservation> observations;
    for (const TuningTable::Time& time : times_) observations.push_back(time.observation);
    const CostModel fitted = fit_costs(start, observations);
    TuningTable table;
    table.version = env.version;
    table.isa = to_string(env.isa);
    table.cpu_model = env.cpu_model;
    table.concurrency = env.concurrency;
    table.costs = fitted;
    table.costs.source.clear();
    table.times = times_;
    std::printf("\n");
    for (const CostEntry& entry : fitted.entries) {
      std::printf("    {\"%s %s %s\", {", to_string(BackendRef(entry.backend)).c_str(),
                  to_string(entry.kind), to_string(entry.types));
      const char* separator = "";
      for_each_cost_term(entry.terms, [&](const char*, double term) {
        std::printf("%s%.3g", separator, term);
        separator = ", ";
      });
      std::printf("}},\n");
    }
    std::printf("\n%s", to_text(table).c_str());
  }

  Options options_;
  Context context_;
  std::vector<TuningTable::Time> times_;
  MachineRates rates_;  // of a loaded file
  std::map<std::string, Figures> groups_;
  Figures all_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--fit") == 0) {
      options.fit = true;
    } else if (std::strcmp(argv[i], "--load") == 0 && has_value) {
      options.load.emplace_back(argv[++i]);
    } else if (std::strcmp(argv[i], "--problems") == 0 && has_value) {
      options.problems = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--seed") == 0 && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--group") == 0 && has_value) {
      options.group = argv[++i];
      if (std::find(std::begin(kGroups), std::end(kGroups), options.group) == std::end(kGroups)) {
        std::fprintf(stderr,
                     "--group (%s), expected prefill, decode, short, masked, backward or cache\n",
                     argv[i]);
        return 2;
      }
    } else if (std::strcmp(argv[i], "--seconds") == 0 && has_value) {
      options.seconds = std::atof(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: %s [--problems N] [--seed N] [--seconds X] [--group NAME] "
                   "[--fit [--load FILE]]\n",
                   argv[0]);
      return 2;
    }
  }
  return Bench(options).run();
}
