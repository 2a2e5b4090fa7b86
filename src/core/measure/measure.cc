#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "platform/running_threads.h"
#include "regard/benchmark.h"

// The clock: rounds, turns and runs.

namespace regard {
namespace {

constexpr double kRunSeconds = 1e-3;    // shorter calls are repeated: the clock and its reading
constexpr double kTurnSeconds = 20e-3;  // runs of one turn, at least one
constexpr double kLongCall = 50e-3;     // it needs no other before it to be warm
constexpr std::int32_t kMinRounds = 3;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Waits until no other thread of the process computes. Threads of an OpenMP runtime spin for up to
/// 0.2 s after their work, in which they take processors from whoever comes next.
class Quiet {
 public:
  /// False where threads still computed at the end of all patience.
  bool wait() {
    const double end = now_seconds() + patience_;
    for (int idle = 0; idle < 2;) {  // one that is only just waking is missed once
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      idle = count_running_threads() == 0 ? idle + 1 : 0;
      if (idle == 0 && now_seconds() > end) {
        patience_ = 0.02;  // they are not waiting for work: another wait would be in vain
        return false;
      }
    }
    return true;
  }

 private:
  double patience_ = 0.5;
};

/// One row's call and its runs.
class Contestant {
 public:
  Contestant(const std::function<Status()>& call, BenchmarkRow* row) : call_(call), row_(row) {}

  bool takes_part() const noexcept { return row_->reason.empty(); }
  double longest() const noexcept { return longest_; }

  /// One turn; false where measuring ends. Runs that would begin after `end` are left out, but for
  /// the first.
  bool take_turn(double end, const BenchmarkOptions& options) {
    if (longest_ < kLongCall && !warm_up()) return false;
    const double turn_end = std::min(now_seconds() + kTurnSeconds, std::max(end, now_seconds()));
    do {
      if (!takes_part()) return true;
      if (options.poll != nullptr && options.poll(options.poll_state)) return false;
      if (!timed_run()) return false;
    } while (now_seconds() < turn_end);
    return true;
  }

 private:
  /// Calls whose time is not kept: they wake threads and tell how many calls a run has.
  bool warm_up() {
    for (int i = 0; i < 2 && takes_part(); ++i) {
      const double start = now_seconds();
      if (!call_once()) return false;
      const double seconds = now_seconds() - start;
      longest_ = std::max(longest_, seconds);
      calls_ = std::clamp(std::ceil(kRunSeconds / seconds), 1.0, 1e5);
      if (seconds > kRunSeconds) break;
    }
    return true;
  }

  bool timed_run() {
    const double start = now_seconds();
    for (double i = 0.0; i < calls_; ++i) {
      if (!call_once()) return false;
      if (!takes_part()) return true;
    }
    row_->seconds.push_back((now_seconds() - start) / calls_);
    return true;
  }

  /// False where the call was interrupted.
  bool call_once() {
    const Status status = call_();
    if (status.ok()) return true;
    if (status.code() == StatusCode::kInterrupted) return false;
    row_->reason = status.message();
    row_->seconds.clear();
    return true;
  }

  const std::function<Status()>& call_;
  BenchmarkRow* row_;
  double calls_ = 1.0;  // of a run
  double longest_ = 0.0;
};

}  // namespace

void measure(Benchmark* result, std::span<const std::function<Status()>> calls,
             const BenchmarkOptions& options) {
  std::vector<Contestant> contestants;
  for (std::size_t i = 0; i < result->rows.size(); ++i) {
    if (result->rows[i].reason.empty()) contestants.emplace_back(calls[i], &result->rows[i]);
  }
  Quiet quiet;
  bool all_quiet = true;
  const double end = now_seconds() + options.seconds;
  const auto is_enough = [&] {
    if (options.rounds > 0) return result->rounds >= options.rounds;
    return result->rounds >= kMinRounds && now_seconds() >= end;
  };
  const double turn_end = options.rounds > 0 ? end + 1e9 : end;
  while (!contestants.empty() && !is_enough()) {
    for (Contestant& contestant : contestants) {
      if (!contestant.takes_part()) continue;
      all_quiet = quiet.wait() && all_quiet;
      if (!contestant.take_turn(turn_end, options)) {
        result->interrupted = true;
        return;
      }
    }
    ++result->rounds;
  }
  if (!all_quiet) {
    result->notes.push_back(
        "other threads of this process computed while it was measured; times are longer by that");
  }
}

}  // namespace regard
