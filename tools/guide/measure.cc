#include "tools/guide/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <utility>

#include "conformance/run.h"
#include "regard/attention.h"
#include "tools/guide/answers.h"
#include "tools/guide/grid.h"
#include "tools/guide/turn.h"

namespace regard::guide {
namespace {

constexpr int kMaxRounds = 40;
constexpr int kMaxQuickRounds = 15;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string today() {
  const std::time_t time = std::time(nullptr);
  std::tm day{};
  ::gmtime_r(&time, &day);
  return fmt::format("{:04}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
}

/// The last claim that holds for these types on this machine, or null.
const DtypeClaim* claim_of(const Claims& claims, const AttentionParams& p, const Env& env) {
  const DtypeClaim* found = nullptr;
  for (const DtypeClaim& claim : claims.dtypes) {
    const bool same = claim.q == p.dtype_q && claim.kv == p.dtype_k && claim.out == p.dtype_out;
    if (same && env.isa.includes(claim.min_isa)) found = &claim;
  }
  return found;
}

class Measurement {
 public:
  Measurement(const Env& env, const MeasureOptions& options)
      : options_(options), start_(now()), end_(start_ + options.seconds), context_(env) {
    context_.set_log_level(LogLevel::kWarning);
  }

  Expected<Report> run() {
    if (!options_.peer_python.empty()) {
      Expected<std::unique_ptr<Peer>> peer =
          Peer::start(options_.peer_python, context_.env().concurrency);
      if (!peer) return peer.status();
      peer_ = *std::move(peer);
      report_.peer = peer_->version();
      start_ = now();  // the first import of PyTorch may take a minute
      end_ = start_ + options_.seconds;
    }
    describe_machine();
    if (Status status = measure_errors(); !status.ok()) return status;
    report_.sweeps = make_grid(options_.quick, options_.problems, report_.rates);
    plan_memory();
    if (Status status = measure_sweeps(); !status.ok()) return status;
    drop_unmeasured();
    report_.seconds = now() - start_;
    return std::move(report_);
  }

 private:
  struct Part {
    Sweep* sweep;
    Point* point;
    std::unique_ptr<Turn> turn;
    double order;          // 0 the smallest of its sweep, 1 the largest
    double seconds = 0.0;  // of its last turn
  };

  static Status interrupted() { return {StatusCode::kInterrupted, "[guide] interrupted"}; }

  /// Whether to go on, and how far it is.
  bool go_on() const {
    if (options_.stop && options_.stop()) return false;
    if (options_.progress) {
      options_.progress(std::clamp((now() - start_) / options_.seconds, 0.0, 1.0));
    }
    return true;
  }

  void describe_machine() {
    const Env env = context_.env();
    report_.env = env;
    report_.made = today();
    report_.quick = options_.quick;
    report_.rates = machine_rates(env.isa, env.concurrency);
    report_.one_thread = machine_rates(env.isa, 1);
    report_.support = support_matrix(context_.backends(), DeviceType::kCpu, &env);
    AttentionParams plain;
    plain.softmax_scale = default_softmax_scale(plain.head_dim_qk);
    for (const Verdict& verdict : explain(context_, plain).candidates) {
      const std::string name = to_string(verdict.backend);
      const auto& here = report_.support.backends;
      if (std::find(here.begin(), here.end(), name) != here.end()) continue;
      std::string reason;
      for (const Refusal& refusal : verdict.refusals) {
        reason += (reason.empty() ? "" : "; ") + to_string(refusal);
      }
      report_.elsewhere.push_back({name, reason});
    }
  }

  Status measure_errors() {
    for (const ErrorCase& error_case : error_cases()) {
      if (!go_on()) return interrupted();
      Expected<Case> c = parse_case(
          fmt::format("b1 hq2 hkv1 sq64 skv512 d64 causal diag=br {}", error_case.words));
      if (!c) return c.status();
      const bool grad = c->params.features.has(Feature::kNeedsGrad);
      if (grad) c->params.features.set(Feature::kSavedStats);
      Expected<conformance::PreparedCase> prepared = conformance::prepare(*c);
      if (!prepared) return prepared.status();
      for (const BackendInfo& info : context_.backends()) {
        if (info.device != DeviceType::kCpu || !info.built) continue;
        conformance::RunOptions run;
        run.twice = run.check_fixes = false;
        const conformance::Report found =
            conformance::run_prepared(context_, &*prepared, info.ref, run);
        report_.errors.push_back(error_row(info, error_case.types, prepared->params, found));
      }
    }
    return {};
  }

  ErrorRow error_row(const BackendInfo& info, const char* types, const AttentionParams& params,
                     const conformance::Report& found) const {
    ErrorRow row;
    row.backend = to_string(info.ref);
    row.types = types;
    row.gradients = params.features.has(Feature::kNeedsGrad);
    const Claims& claims = row.gradients ? info.backward : info.forward;
    const DtypeClaim* const claim = claim_of(claims, params, context_.env());
    if (claim != nullptr) row.bound = claim->error_bound;
    row.error = row.gradients ? found.gradients.error : found.comparison.out_error;
    if (found.outcome != conformance::Outcome::kPassed) row.reason = found.text;
    return row;
  }

  void plan_memory() {
    for (Sweep& sweep : report_.sweeps) {
      if (sweep.id != "memory") continue;
      for (Point& point : sweep.points) {
        const Expected<Case> c = parse_case(point.problem);
        if (!c) continue;
        for (const Verdict& verdict : explain(context_, c->params).candidates) {
          if (verdict.usable) {
            row_of(&point, to_string(verdict.backend))->workspace_bytes = verdict.workspace_bytes;
          }
        }
      }
    }
  }

  /// Small problems first, so that a slow machine has some of each sweep.
  std::vector<Part> make_parts() {
    std::vector<Part> parts;
    for (Sweep& sweep : report_.sweeps) {
      std::vector<std::unique_ptr<Turn>> turns = make_turns(sweep, context_, peer_.get());
      for (std::size_t i = 0; i < turns.size(); ++i) {
        if (turns[i] == nullptr) continue;
        const bool first = sweep.id == "problems";
        const double order =
            first ? 0.0 : static_cast<double>(i + 1) / static_cast<double>(turns.size());
        parts.push_back({&sweep, &sweep.points[i], std::move(turns[i]), order});
      }
    }
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& a, const Part& b) { return a.order < b.order; });
    return parts;
  }

  Status measure_sweeps() {
    std::vector<Part> parts = make_parts();
    const int rounds = options_.quick ? kMaxQuickRounds : kMaxRounds;
    for (bool any = true; any && report_.rounds < rounds;) {
      any = false;
      for (Part& part : parts) {
        if (!go_on()) return interrupted();
        const double start = now();
        // The user's own problems have a round, however late it is.
        const bool owed = part.order == 0.0 && part.seconds == 0.0;
        if (part.turn == nullptr || (start + part.seconds > end_ && !owed)) continue;
        if (Status status = part.turn->take(part.point); !status.ok()) {
          if (status.code() == StatusCode::kInterrupted) return status;
          note(part, status.message());
          part.turn = nullptr;
          continue;
        }
        part.seconds = now() - start;
        any = true;
      }
      report_.rounds += any;
    }
    return {};
  }

  void note(const Part& part, const std::string& why) {
    report_.notes.push_back(fmt::format("{}, {}: {}", part.sweep->title, part.point->label, why));
  }

  void drop_unmeasured() {
    for (Sweep& sweep : report_.sweeps) {
      std::vector<std::string> dropped;
      std::erase_if(sweep.points, [&](const Point& point) {
        if (!point.rows.empty()) return false;
        dropped.push_back(point.label);
        return true;
      });
      if (dropped.empty()) continue;
      report_.notes.push_back(fmt::format("{}: {} {} left out, because the time was over.",
                                          sweep.title, list_words(dropped),
                                          dropped.size() == 1 ? "is" : "are"));
    }
  }

  const MeasureOptions& options_;
  double start_, end_;
  Context context_;
  std::unique_ptr<Peer> peer_;
  Report report_;
};

}  // namespace

Expected<Report> measure_machine(const Env& env, const MeasureOptions& options) {
  return Measurement(env, options).run();
}

}  // namespace regard::guide
