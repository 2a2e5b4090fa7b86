#include "tools/guide/turn.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "regard/benchmark.h"
#include "tools/guide/grid.h"

namespace regard::guide {
namespace {

BenchmarkOptions one_round() {
  BenchmarkOptions options;
  options.rounds = 1;
  return options;
}

/// Backends of other devices have a place of their own in the report.
bool is_of_cpu(const Context& context, const std::string& name) {
  for (const BackendInfo& info : context.backends()) {
    if (info.device == DeviceType::kCpu && info.built && to_string(info.ref) == name) return true;
  }
  return false;
}

void add(const BenchmarkRow& measured, Measured* row) {
  row->reason = measured.reason;
  row->kernel = measured.kernel;
  row->workspace_bytes = measured.workspace_bytes;
  if (!measured.seconds.empty()) row->seconds.push_back(measured.quantile(0.5));
}

/// A case with its tensors, measured on every backend or on the chosen one.
class CaseRun {
 public:
  CaseRun(Context& context, std::string text) : context_(context), text_(std::move(text)) {}

  const Case& source() const { return problem_->source(); }

  Expected<Benchmark> measure(bool chosen_alone) {
    if (!problem_) {
      const Expected<Case> c = parse_case(text_);
      if (!c) return c.status();
      problem_ = conformance::make_problem(*c);
      const Selection selection = explain(context_, c->params);
      if (!selection.ok())
        return Status(StatusCode::kNoBackend, "[guide] nothing can run " + text_);
      chosen_ = selection.chosen;
    }
    Policy policy;
    if (chosen_alone) policy.only = std::vector<BackendRef>{chosen_};
    return benchmark(context_, problem_->request(), policy, one_round());
  }

 private:
  Context& context_;
  std::string text_;
  std::optional<conformance::Problem> problem_;
  BackendRef chosen_;
};

/// Every backend, and the peer.
class BackendsTurn final : public Turn {
 public:
  BackendsTurn(Context& context, Peer* peer, const std::string& text)
      : context_(context), peer_(peer), run_(context, text) {}

  Status take(Point* point) override {
    const Expected<Benchmark> result = run_.measure(false);
    if (!result) return result.status();
    const bool backward = run_.source().params.features.has(Feature::kNeedsGrad);
    for (const BenchmarkRow& row : result->rows) {
      if (row.backward != backward || !is_of_cpu(context_, row.name)) continue;
      add(row, row_of(point, row.name));
      point->operations = row.work.operations;
      point->bytes = row.work.bytes;
    }
    if (peer_ != nullptr) take_of_peer(point);
    return {};
  }

 private:
  void take_of_peer(Point* point) {
    Measured* const row = row_of(point, "torch");
    row->is_peer = true;
    if (!row->reason.empty()) return;
    const Expected<double> seconds = peer_->turn(run_.source());
    if (seconds) {
      row->seconds.push_back(*seconds);
    } else {
      const std::string message = seconds.status().message();
      row->reason = message.substr(std::min(message.size(), message.find("] ") + 2));
    }
    // Its threads may still spin for a while.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  Context& context_;
  Peer* peer_;
  CaseRun run_;
};

/// Several cases, each on the backend that is chosen, as rows of one point.
class CasesTurn final : public Turn {
 public:
  explicit CasesTurn(std::unique_ptr<Context> own) : own_(std::move(own)) {}
  explicit CasesTurn(Context& context) : context_(&context) {}

  void add_case(const std::string& name, const std::string& text) {
    runs_.emplace_back(name, CaseRun(context_ == nullptr ? *own_ : *context_, text));
  }

  Status take(Point* point) override {
    for (auto& [name, run] : runs_) {
      const Expected<Benchmark> result = run.measure(true);
      if (!result) return result.status();
      for (const BenchmarkRow& row : result->rows) {
        if (row.name != result->chosen) continue;
        add(row, row_of(point, name));
        if (point->bytes == 0.0) point->bytes = row.work.bytes;
      }
    }
    return {};
  }

 private:
  std::unique_ptr<Context> own_;
  Context* context_ = nullptr;
  std::vector<std::pair<std::string, CaseRun>> runs_;
};

/// Sequences of several lengths, padded and packed.
class PaddingTurn final : public Turn {
 public:
  PaddingTurn(Context& context, int percent) : context_(context), percent_(percent) {}

  Status take(Point* point) override {
    if (Status status = prepare(); !status.ok()) return status;
    Benchmark result;
    std::vector<std::function<Status()>> calls;
    for (PaddedSequences& sequences : ways_) {
      BenchmarkRow row;
      row.name = to_string(sequences.policy);
      result.rows.push_back(std::move(row));
      calls.emplace_back([this, &sequences] {
        return attention_padded(context_, problem_->request(), sequences);
      });
    }
    regard::measure(&result, calls, one_round());
    for (const BenchmarkRow& row : result.rows) add(row, row_of(point, row.name));
    return {};
  }

 private:
  static constexpr std::int32_t kBatch = 8, kLength = 512;

  Status prepare() {
    if (problem_) return {};
    const Expected<Case> c = parse_case("b8 hq8 sq512 d64 f32 layout=bshd");
    if (!c) return c.status();
    problem_ = conformance::make_problem(*c);
    // Lengths evenly about their mean, as far as they may be apart.
    const double mean = kLength * (100 - percent_) / 100.0;
    const double spread = std::min(mean - 1.0, kLength - mean);
    std::int32_t lengths[kBatch];
    for (int b = 0; b < kBatch; ++b) {
      const double at = (b + 0.5) / kBatch * 2.0 - 1.0;
      lengths[b] = static_cast<std::int32_t>(mean + spread * at + 0.5);
    }
    const Expected<Lengths> rows = Lengths::from_seqlens(make_view(lengths, {kBatch}), kLength);
    if (!rows) return rows.status();
    for (const PaddingPolicy policy :
         {PaddingPolicy::kPadded, PaddingPolicy::kPacked, PaddingPolicy::kAuto}) {
      ways_.push_back({*rows, *rows, policy});
    }
    return {};
  }

  Context& context_;
  int percent_;
  std::optional<conformance::Problem> problem_;
  std::vector<PaddedSequences> ways_;
};

std::unique_ptr<Turn> threads_turn(const Context& context, std::int32_t count) {
  Env env = context.env();
  env.concurrency = count;
  auto turn = std::make_unique<CasesTurn>(std::make_unique<Context>(std::move(env)));
  turn->add_case("prompt", "b1 hq8 sq1024 d64 f32 causal");
  turn->add_case("decode", "b1 hq32 hkv8 sq1 skv16384 d128 bf16");
  return turn;
}

}  // namespace

Measured* row_of(Point* point, const std::string& name) {
  for (Measured& row : point->rows) {
    if (row.name == name) return &row;
  }
  point->rows.push_back({});
  point->rows.back().name = name;
  return &point->rows.back();
}

std::unique_ptr<Turn> make_padding_turn(Context& context, int percent) {
  return std::make_unique<PaddingTurn>(context, percent);
}

std::vector<std::unique_ptr<Turn>> make_turns(const Sweep& sweep, Context& context, Peer* peer) {
  std::vector<std::unique_ptr<Turn>> turns;
  for (const Point& point : sweep.points) {
    if (sweep.id == "memory") {
      turns.push_back(nullptr);
    } else if (sweep.id == "padding") {
      turns.push_back(make_padding_turn(context, static_cast<int>(point.x)));
    } else if (sweep.id == "threads") {
      turns.push_back(threads_turn(context, static_cast<std::int32_t>(point.x)));
    } else if (sweep.id == "cache") {
      auto turn = std::make_unique<CasesTurn>(context);
      for (const CacheFormat& format : cache_formats()) {
        turn->add_case(format.name, point.problem + format.words);
      }
      turns.push_back(std::move(turn));
    } else {
      turns.push_back(std::make_unique<BackendsTurn>(context, peer, point.problem));
    }
  }
  return turns;
}

}  // namespace regard::guide
