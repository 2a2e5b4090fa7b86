#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "regard/machine_rates.h"
#include "tools/llm/clock.h"
#include "tools/llm/commands.h"
#include "tools/llm/report.h"
#include "tools/llm/session.h"
#include "tools/llm/terminal.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

constexpr std::int64_t kPromptLengths[] = {128, 512, 2048};
constexpr std::int64_t kContexts[] = {128, 1024, 4096, 8000};
constexpr int kDecodeSteps = 32;
constexpr int kRounds = 3;  // the best counts: other programs take time, never give it

/// Operations of a prompt: two for each weight and token, and those of causal attention.
double prompt_operations(const Model& model, std::int64_t tokens, std::int64_t weight_size) {
  const ModelConfig& c = model.config();
  const double logits = static_cast<double>(c.vocab * c.width);  // of one token
  const double layers =
      static_cast<double>(model.weight_bytes()) / static_cast<double>(weight_size) - logits;
  const auto n = static_cast<double>(tokens);
  return 2.0 * (layers * n + logits) + 2.0 * n * n * static_cast<double>(c.layers * c.q_width());
}

/// The best rates of the machine in the rounds of one measurement: bandwidth changes by half
/// within minutes where other machines share the memory.
struct BestRates {
  explicit BestRates(std::int32_t count) : threads(count) {}
  void measure() {
    const auto found = regard::measure_machine_rates(regard::read_env().isa, threads);
    bf16_gflops = std::max(bf16_gflops, found.bf16_gflops);
    f32_gflops = std::max(f32_gflops, found.f32_gflops);
    read_gbps = std::max(read_gbps, found.read_gbps);
  }
  std::int32_t threads;
  double bf16_gflops = 0.0, f32_gflops = 0.0, read_gbps = 0.0;
};

/// Receives a row of the table once it is measured.
using OnRow = std::function<void(const Json& row)>;

class Benchmark {
 public:
  Benchmark(Session& session, KvCache& cache, OnRow on_row)
      : session_(session), cache_(cache), on_row_(std::move(on_row)) {
    std::mt19937 random(1);
    for (std::int64_t i = 0; i < session.capacity; ++i) {
      tokens_.push_back(static_cast<std::int32_t>(random() % session.model.config().vocab));
    }
  }

  Status prefill_rates() {
    const bool bf16 = session_.weights == regard::Dtype::kBf16;
    for (const std::int64_t length : kPromptLengths) {
      if (length > session_.capacity) continue;
      double best = 0.0;
      BestRates machine(session_.threads);
      for (int round = 0; round < kRounds; ++round) {
        machine.measure();
        const std::int32_t sequence = cache_.add();
        const auto start = Clock::now();
        if (Status s = fill(sequence, length); !s.ok()) return s;
        session_.model.logits((length - 1) % kPrefillRows, 1);
        best = std::max(best, 1.0 / seconds_since(start));
        cache_.remove(sequence);
      }
      const double gflops =
          best * prompt_operations(session_.model, length, regard::size_of(session_.weights)) *
          1e-9;
      on_row_({{"phase", "prefill"},
               {"context", length},
               {"tokens_per_s", best * static_cast<double>(length)},
               {"share_of_peak", gflops / (bf16 ? machine.bf16_gflops : machine.f32_gflops)}});
    }
    return Status();
  }

  Status decode_rates() {
    const std::int32_t sequence = cache_.add();
    for (const std::int64_t context : kContexts) {
      if (context + kDecodeSteps > session_.capacity) continue;
      if (Status s = fill(sequence, context); !s.ok()) return s;
      double best = 1e30, attention = 1e30;
      BestRates machine(session_.threads);
      for (int round = 0; round < kRounds; ++round) {
        machine.measure();
        cache_.truncate(sequence, context);
        const double before = session_.model.profile().seconds(Operation::kAttention);
        const auto start = Clock::now();
        for (int step = 0; step < kDecodeSteps; ++step) {
          const std::int32_t token = tokens_[static_cast<std::size_t>(step)];
          Status s = session_.model.forward("decode", {&token, 1}, {&sequence, 1}, cache_);
          if (!s.ok()) return s;
          session_.model.logits(0, 1);
        }
        best = std::min(best, seconds_since(start) / kDecodeSteps);
        attention =
            std::min(attention, (session_.model.profile().seconds(Operation::kAttention) - before) /
                                    kDecodeSteps);
      }
      const double bytes =
          static_cast<double>(session_.model.weight_bytes() + cache_.row_bytes() * context);
      on_row_({{"phase", "decode"},
               {"context", context},
               {"tokens_per_s", 1.0 / best},
               {"attention_ms", 1e3 * attention},
               {"read_gbps", machine.read_gbps},
               {"share_of_bandwidth", bytes / best * 1e-9 / machine.read_gbps}});
    }
    cache_.remove(sequence);
    return Status();
  }

 private:
  /// Extends a sequence to `length` tokens.
  Status fill(std::int32_t sequence, std::int64_t length) {
    const std::int64_t begin = cache_.length(sequence);
    const auto all = std::span<const std::int32_t>(tokens_);
    if (length <= begin) {
      cache_.truncate(sequence, length);
      return Status();
    }
    return prefill(
        session_.model, cache_, sequence,
        all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(length - begin)),
        nullptr);
  }

  Session& session_;
  KvCache& cache_;
  OnRow on_row_;
  std::vector<std::int32_t> tokens_;
};

void print_head(const Session& session, const KvCache& cache) {
  print(fmt::format("{}, {} threads: weights {:.1f} MB {}, {} bytes of cache a token\n",
                    regard::read_env().cpu_model, session.threads,
                    static_cast<double>(session.model.weight_bytes()) * 1e-6,
                    to_string(session.weights), cache.row_bytes()));
  print(fmt::format("{:<8} {:>8} {:>12} {:>13}  {}\n", "phase", "context", "tokens/s",
                    "attention ms", "share of the machine"));
}

void print_row(const Json& row) {
  const bool decodes = row["phase"] == "decode";
  print(fmt::format("{:<8} {:>8} {:>12.1f} {:>13}  {:.2f} of {}\n", row["phase"].get<std::string>(),
                    row["context"].get<std::int64_t>(), row["tokens_per_s"].get<double>(),
                    decodes ? fmt::format("{:.3f}", row["attention_ms"].get<double>()) : "",
                    row[decodes ? "share_of_bandwidth" : "share_of_peak"].get<double>(),
                    decodes ? "read bandwidth" : "peak arithmetic"));
}

}  // namespace

int run_bench(const Options& options) {
  Expected<Session> session = open_session(options);
  if (!session) return fail(session.status());
  Expected<KvCache> cache = session->prepare_cache(options.generate);
  if (!cache) return fail(cache.status());
  if (!options.json) print_head(*session, *cache);
  Json rows = Json::array();
  Benchmark benchmark(*session, *cache, [&](const Json& row) {
    rows.push_back(row);
    if (!options.json) print_row(row);
  });
  if (Status s = benchmark.prefill_rates(); !s.ok()) return fail(s);
  if (Status s = benchmark.decode_rates(); !s.ok()) return fail(s);
  if (options.json) {
    print(Json{{"weight_bytes", session->model.weight_bytes()},
               {"cache_bytes_per_token", cache->row_bytes()},
               {"phases", phases_json(session->model)},
               {"rows", rows}}
              .dump() +
          "\n");
  }
  print_details(*session, options);
  return finish(kOk);
}

}  // namespace llm
