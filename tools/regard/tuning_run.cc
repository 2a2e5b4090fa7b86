#include "tools/regard/tuning_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "conformance/problem.h"
#include "regard/benchmark.h"
#include "regard/case.h"
#include "tools/files/quote.h"
#include "tools/regard/interrupt.h"
#include "tools/regard/problem_words.h"
#include "tools/regard/recorded_cases.h"
#include "tools/regard/timing.h"

namespace regard::cli {
namespace {

constexpr double kSteady = 1.1;  // of the reference: beyond it the machine's speed has changed
// Of the default's time that a rule's backend or variant takes at most.
constexpr double kWorthwhile = 0.95;

/// Caches in the formats that explain compares, of which the model has terms of their own.
void add_caches(bool quick, std::vector<std::string>* grid) {
  const std::vector<int> head_dims =
      quick ? std::vector<int>{64, 128} : std::vector<int>{64, 80, 128};
  for (const char* format : {"i8 scales=token", "f8e4m3 scales=token", "u4"}) {
    for (const int d : head_dims) {
      for (const int skv : {128, 1024, 4096, 16384}) {
        grid->push_back(fmt::format("b1 hq32 hkv8 sq1 skv{} d{} bf16 kv={}", skv, d, format));
        if (!quick)
          grid->push_back(fmt::format("b4 hq8 sq1 skv{} d{} bf16 kv={}", skv / 2, d, format));
      }
    }
  }
}

/// Of one type. Each kind that the cost model distinguishes has kMinObservations problems and more
/// also with --quick.
void add_type(const std::string& type, bool quick, std::vector<std::string>* grid) {
  const auto add = [&](const std::string& words) { grid->push_back(words + " " + type); };
  if (type == "bf16") add_caches(quick, grid);
  const std::vector<int> head_dims =
      quick ? std::vector<int>{64, 128} : std::vector<int>{32, 64, 96, 128, 256};
  for (const int d : head_dims) {
    for (const int skv : {128, 2048, 16384}) {
      add(fmt::format("b1 hq32 hkv8 sq1 skv{} d{}", skv, d));
      if (skv < 16384) add(fmt::format("b4 hq8 sq1 skv{} d{}", skv / 2, d));
      if (!quick) add(fmt::format("b1 hq2 sq2 skv{} d{}", skv, d));
    }
    for (const int sq : {20, 40, 64}) {
      add(fmt::format("b8 hq8 sq{} d{}", sq, d));
      if (!quick || sq == 40) add(fmt::format("b1 hq8 sq{} skv512 d{}", sq, d));
    }
    for (const int sq : {96, 256, 1024}) {
      add(fmt::format("b1 hq8 sq{} d{}", sq, d));
      if (!quick || sq > 96) add(fmt::format("b1 hq8 sq{} d{} causal", sq, d));
      if (!quick) add(fmt::format("b4 hq4 hkv1 sq{} d{} causal", sq, d));
    }
    if (!quick || d == 64) add(fmt::format("b1 hq8 sq384 d{} mask", d));
    if (!quick || d == 128) add(fmt::format("b1 hq8 sq384 d{} bias", d));
    for (const int sq : {32, 96, 256, 768}) {
      add(fmt::format("b1 hq8 sq{} d{} grad saved", sq, d));
      if (!quick) add(fmt::format("b2 hq4 sq{} d{} causal grad saved", sq, d));
    }
  }
}

/// Seconds in all directions.
struct Total {
  double seconds = 0.0, first_quartile = 0.0, third_quartile = 0.0;
  void add(const TuningTable::Time& time) {
    seconds += time.observation.seconds;
    first_quartile += time.first_quartile;
    third_quartile += time.third_quartile;
  }
};

/// The name that is faster than `ours` by more than the spread of both; `ours`: none.
template <class Name>
Name faster_than(const std::map<Name, Total>& totals, const Name& ours) {
  const auto usual = totals.find(ours);
  if (usual == totals.end()) return ours;
  auto best = usual;
  for (auto total = totals.begin(); total != totals.end(); ++total) {
    if (total->second.seconds < best->second.seconds) best = total;
  }
  const bool is_faster = best->second.seconds < kWorthwhile * usual->second.seconds &&
                         best->second.third_quartile < usual->second.first_quartile;
  return is_faster ? best->first : ours;
}

/// What is faster than the default in a problem's times.
struct Winners {
  std::map<BackendId, std::string> variants;  // of each backend; "" is the default
  BackendId backend = BackendId::kError;      // with its variant; kError where it is `chosen`
  bool any() const {
    return backend != BackendId::kError ||
           std::ranges::any_of(variants, [](const auto& each) { return !each.second.empty(); });
  }
};

Winners winners_of(const std::vector<TuningTable::Time>& times, BackendId chosen) {
  std::map<BackendId, std::map<std::string, Total>> forwards;
  for (const TuningTable::Time& time : times) {
    if (!time.observation.backward) forwards[time.observation.backend][time.variant].add(time);
  }
  Winners winners;
  for (const auto& [backend, variants] : forwards) {
    winners.variants[backend] = faster_than(variants, std::string());
  }
  std::map<BackendId, Total> totals;
  for (const TuningTable::Time& time : times) {
    const BackendId backend = time.observation.backend;
    const auto counted = time.observation.backward ? std::string() : winners.variants[backend];
    if (time.variant == counted) totals[backend].add(time);
  }
  const BackendId best = faster_than(totals, chosen);
  if (best != chosen) winners.backend = best;
  return winners;
}

/// The second measurement without what wins in it alone.
std::vector<TuningTable::Time> confirmed(const std::vector<TuningTable::Time>& first,
                                         std::vector<TuningTable::Time> second, BackendId chosen) {
  Winners before = winners_of(first, chosen);
  for (;;) {
    Winners now = winners_of(second, chosen);
    const auto wins_alone = [&](const TuningTable::Time& time) {
      const BackendId backend = time.observation.backend;
      const bool as_variant = !time.variant.empty() && time.variant == now.variants[backend] &&
                              time.variant != before.variants[backend];
      return as_variant || (backend == now.backend && backend != before.backend);
    };
    if (std::erase_if(second, wins_alone) == 0) return second;
  }
}

std::vector<TuningTable::Time> times_of(const Benchmark& result, const AttentionParams& params) {
  std::vector<TuningTable::Time> times;
  for (const BenchmarkRow& row : result.rows) {
    const Expected<BackendRef> backend = parse_backend(row.name);
    if (row.seconds.empty() || !backend || backend->id == BackendId::kCustom) continue;
    times.push_back({{backend->id, params, row.backward, row.quantile(0.5)},
                     row.quantile(0.25),
                     row.quantile(0.75),
                     row.variant});
  }
  return times;
}

}  // namespace

std::vector<std::string> tuning_grid(bool quick) {
  std::vector<std::string> grid;
  for (const char* type : {"f32", "bf16", "f16"}) add_type(type, quick, &grid);
  std::vector<std::string> mixed;
  // A stride that shares no factor with the count visits each once.
  std::size_t stride = grid.size() * 5 / 13;
  while (std::gcd(stride, grid.size()) != 1) ++stride;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    AttentionParams params = parse_case(grid[i * stride % grid.size()])->params;
    save_for_backward(params);
    mixed.push_back(to_string(params));
  }
  return mixed;
}

Expected<std::vector<std::string>> read_cases(const std::string& path) {
  const auto error = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "[tune] " + files::quote(path) + ": " + what);
  };
  std::ifstream file(path);
  if (!file) return error("cannot be read");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> lines;
  const bool recorded = is_record(text);
  if (recorded) {
    const Expected<Record> record = parse_record(text, files::quote(path));
    if (!record) return record.status();
    for (const CountedProblem& problem : cases_of(*record)) lines.push_back(problem.words.text);
  } else {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
  }
  std::vector<std::string> cases;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || lines[i][0] == '#') continue;
    const std::string where = fmt::format("{} {}: ", recorded ? "case" : "line", i + 1);
    Expected<Case> parsed = parse_case(lines[i]);
    if (!parsed) return error(where + parsed.status().message());
    if (parsed->params.device.type != DeviceType::kCpu) {
      return error(where + "expected a case on the CPU");
    }
    save_for_backward(parsed->params);
    cases.push_back(to_string(parsed->params));
    constexpr std::size_t kMaxCases = 100'000;
    if (cases.size() > kMaxCases) return error("it has more than 100000 cases");
  }
  if (cases.empty()) return error("it has no case");
  return cases;
}

double reference_seconds() {
  constexpr int kRuns = 8, kSteps = 40'000;
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    volatile double seed = 1.0;
    double sum = seed;
    const double start = now_seconds();
    for (int i = 0; i < kSteps; ++i) sum = sum * 0.999 + 1.0;
    seed = sum;
    best = std::min(best, now_seconds() - start);
  }
  return best;
}

std::string condition_near(const AttentionParams& p) {
  std::string words = to_string(p.dtype_q);
  const auto within = [&](const char* name, std::int64_t extent) {
    constexpr double kRoot = 1.4142135623730951;
    const double value = static_cast<double>(extent);
    words +=
        fmt::format(" {}>={} {}<={}", name, static_cast<std::int64_t>(std::ceil(value / kRoot)),
                    name, static_cast<std::int64_t>(std::floor(value * kRoot)));
  };
  within("b", p.batch);
  within("hq", p.num_heads_q);
  within("hkv", p.num_heads_kv);
  within("sq", p.seqlen_q);
  within("skv", p.seqlen_kv);
  within("d", p.head_dim_qk);
  within("dv", p.head_dim_v);
  for (const Feature feature :
       {Feature::kNeedsGrad, Feature::kCausal, Feature::kAttnMask, Feature::kAttnBias,
        Feature::kAlibi, Feature::kSoftcap, Feature::kDropout, Feature::kPacked, Feature::kPaged,
        Feature::kSeqlensKv, Feature::kWindowLeft, Feature::kScales}) {
    words += std::string(p.features.has(feature) ? " " : " !") + to_string(feature);
  }
  return words;
}

TuningRun::TuningRun(Context& context, TuningStore store, int rounds)
    : context_(context), store_(std::move(store)), rounds_(rounds) {
  context_.set_tuning({});  // the default is measured, whatever REGARD_TUNING names
  reference_ = reference_seconds();
}

Status TuningRun::measure(const std::vector<std::string>& problems, double seconds,
                          const std::function<void(int, double)>& report) {
  counts_.problems = static_cast<int>(problems.size());
  const double start = now_seconds();
  int done = 0;
  for (const std::string& words : problems) {
    const double taken = now_seconds() - start;
    if (interrupted()) return {};
    if (taken > seconds) {
      counts_.out_of_time = true;
      return {};
    }
    std::vector<TuningTable::Time> times = store_.find(words, &counts_.notes);
    if (!times.empty()) {
      ++counts_.reused;
    } else {
      const Status status = measure_one(words, &times);
      if (interrupted()) return {};
      if (!status.ok()) return status;
    }
    if (!times.empty()) times_.push_back(std::move(times));
    ++done;
    const int new_ones = std::max(counts_.measured, 1);
    const double each = (now_seconds() - start) / static_cast<double>(new_ones);
    report(done, std::min(each * static_cast<double>(counts_.problems - done),
                          std::max(seconds - (now_seconds() - start), 0.0)));
  }
  return {};
}

Status TuningRun::measure_one(const std::string& words, std::vector<TuningTable::Time>* times) {
  const Expected<Case> source = parse_case(words);
  if (!source) return source.status();
  const bool needs_grad = source->params.features.has(Feature::kNeedsGrad);
  conformance::Problem problem = conformance::make_problem(*source, {conformance::Guard::kNone});
  Policy forward;
  if (needs_grad) {
    const Status status = attention(context_, problem.request(), forward);
    if (!status.ok()) {
      counts_.notes.push_back(words + ": " + status.message());
      return {};
    }
    problem.begin_backward();
  }
  BenchmarkOptions options;
  options.rounds = rounds_;
  options.variants = true;
  options.poll = [](void*) noexcept { return interrupted(); };
  constexpr int kTries = 3;
  bool is_steady = false;
  for (int attempt = 0; attempt < kTries && !is_steady && !interrupted(); ++attempt) {
    const Expected<Benchmark> result = benchmark(context_, problem.request(), {}, options);
    if (!result) {
      counts_.notes.push_back(words + ": " + result.status().message());
      return {};
    }
    *times = times_of(*result, source->params);
    // The default must lose twice.
    const BackendId chosen = parse_backend(result->chosen)->id;
    if (winners_of(*times, chosen).any() && !interrupted()) {
      const Expected<Benchmark> again = benchmark(context_, problem.request(), {}, options);
      if (again && !again->interrupted) {
        *times = confirmed(*times, times_of(*again, source->params), chosen);
      }
    }
    const double ratio = reference_seconds() / reference_;
    is_steady = ratio < kSteady && ratio > 1.0 / kSteady;
    if (!is_steady && attempt + 1 < kTries) ++counts_.repeated;
  }
  if (interrupted()) return {};
  if (!is_steady) {
    ++counts_.unsteady;
    reference_ = reference_seconds();
  }
  ++counts_.measured;
  return is_steady && !times->empty() ? store_.keep(words, *times) : Status();
}

void TuningRun::add_rules(const std::vector<TuningTable::Time>& times, TuningTable* table) const {
  const AttentionParams& params = times.front().observation.params;
  // No condition names these types: what holds for a cache of int8 need not hold for one of bf16.
  if (params.dtype_k != params.dtype_q || params.dtype_v != params.dtype_q) return;
  const BackendRef chosen = explain(context_, params).chosen;
  const Winners winners = winners_of(times, chosen.id);
  if (winners.backend != BackendId::kError) {
    table->rules.push_back({condition_near(params), {BackendRef(winners.backend), chosen}});
  }
  for (const auto& [backend, variant] : winners.variants) {
    if (!variant.empty()) {
      table->variants.push_back({condition_near(params), BackendRef(backend), variant});
    }
  }
}

TuningTable TuningRun::table() const {
  const Env env = context_.env();
  TuningTable table = table_of(env);
  std::vector<CostObservation> observations;
  for (const std::vector<TuningTable::Time>& times : times_) {
    for (const TuningTable::Time& time : times) {
      if (time.variant.empty()) observations.push_back(time.observation);
    }
    add_rules(times, &table);
  }
  CostModel start = default_costs(env);
  start.rates = machine_rates(env.isa, env.concurrency);
  table.costs = fit_costs(start, observations);
  table.costs.source.clear();
  return table;
}

}  // namespace regard::cli
