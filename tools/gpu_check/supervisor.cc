#include "tools/gpu_check/supervisor.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "tools/gpu_check/child.h"
#include "tools/gpu_check/child_process.h"

namespace regard::gpu_check {
namespace {

constexpr int kMaxCrashes = 20;  // of a phase, before it ends

/// What tells the results of a run apart; without a case: of a phase.
std::string key_of(const JsonLine& line) {
  const char* const names[] = {"phase", "case", "backend", "variant"};
  std::string key;
  for (const char* name : names) key += line.text(name) + "\n";
  return key;
}

bool names(const std::vector<std::string>& listed, const std::string& name) {
  return listed.empty() || std::find(listed.begin(), listed.end(), name) != listed.end();
}

class PhaseRun {
 public:
  PhaseRun(const Phase& phase, const Options& options, const Setup& setup, const RunId& id,
           ResultsFile* results)
      : phase_(phase), options_(options), setup_(setup), id_(id), results_(results) {}

  /// Until all of `items` have results, or the seconds are over.
  Status run(std::vector<Item> items, double seconds) {
    items_ = std::move(items);
    begin_ = Clock::now();
    end_ = after(begin_, seconds);
    std::printf("%s: %zu cases, at most %.0f s\n", phase_.name, items_.size(), seconds);
    if (seconds < 1 && !items_.empty()) end("timed out", "no time was left");
    while (!items_.empty() && phase_result_.empty() && status_.ok()) run_process();
    if (!status_.ok()) return status_;
    JsonLine line;
    line.add("result", phase_result_.empty() ? "complete" : phase_result_);
    const std::string left = std::to_string(items_.size()) + " cases have no result";
    if (!detail_.empty()) line.add("detail", detail_);
    if (detail_.empty() && !items_.empty()) line.add("detail", left);
    line.add("seconds", std::chrono::duration<double>(Clock::now() - begin_).count(), 1);
    return append(nullptr, line);
  }

 private:
  static Clock::time_point after(Clock::time_point begin, double seconds) {
    return begin +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  std::vector<std::string> command() const {
    std::vector<std::string> words;
    if (phase_.script == nullptr) {
      words = {setup_.program, "--child", phase_.name};
    } else {
      const std::string folder = setup_.program.substr(0, setup_.program.rfind('/') + 1);
      words = {options_.python, "-B", folder + phase_.script};
    }
    if (setup_.rehearse) words.push_back("--rehearse");
    return words;
  }

  /// One process, for the cases that have no result yet.
  void run_process() {
    std::string input;
    for (const Item& item : items_) input += to_line(item).dump() + "\n";
    running_ = nullptr;
    done_ = 0;
    ChildProcess child(command(), input, ChildProcess::Group::kOwn);
    if (!child.error().empty()) return end("crashed", child.error());
    const bool was_stopped = read_lines(&child);
    if (was_stopped) child.kill();
    const std::string ended = child.finish();
    if (!was_stopped) judge_end(ended, child.exit_status());
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(done_));
  }

  /// Whether the process must be killed: its time is over, or results cannot be written.
  bool read_lines(ChildProcess* child) {
    const double limit = options_.case_seconds > 0 ? options_.case_seconds : phase_.case_seconds;
    // Until the first case begins, libraries are loaded.
    Clock::time_point case_end = end_;
    for (;;) {
      std::string line;
      switch (child->lines().next(std::min(end_, case_end), &line)) {
        case files::LineReader::Event::kEnd: return false;
        case files::LineReader::Event::kLine: break;
        case files::LineReader::Event::kTimeout:
          if (Clock::now() >= end_) {
            end("timed out", "");
          } else {
            conclude(JsonLine().add("result", "timed out").add("seconds", limit, 0));
          }
          return true;
      }
      take(line);
      if (!status_.ok()) return true;
      case_end = running_ != nullptr ? after(begun_, limit) : end_;
    }
  }

  void take(const std::string& line) {
    if (line.rfind("begin ", 0) == 0) {
      const auto index = static_cast<std::size_t>(std::atol(line.c_str() + 6));
      if (index != done_ || index >= items_.size()) return;
      running_ = &items_[index];
      begun_ = Clock::now();
      std::printf("%s: %s on %s %s\n", phase_.name, running_->words.c_str(),
                  running_->backend.c_str(), running_->variant.c_str());
      std::fflush(stdout);
    } else if (line.rfind("missing ", 0) == 0) {
      end("not present", line.substr(8));
    } else if (running_ != nullptr) {
      std::optional<JsonLine> result = JsonLine::parse(line);
      if (result && result->has("result")) conclude(*result);
    }
  }

  /// A process that ended by itself.
  void judge_end(const std::string& ended, int exit_status) {
    if (!phase_result_.empty()) return;  // not present
    if (running_ != nullptr) {
      conclude(
          JsonLine().add("result", "crashed").add("detail", ended.empty() ? "ended early" : ended));
      if (++crashes_ >= kMaxCrashes) end("crashed", "too many cases crashed");
    } else if (done_ > 0 && done_ < items_.size() && ++crashes_ < kMaxCrashes) {
      return;  // it lost its device to a case that failed, or crashed between two: another goes on
    } else if (done_ < items_.size() || (!ended.empty() && exit_status != kLostDevice)) {
      end("crashed", ended.empty() ? "ended early" : ended);
    }
  }

  /// The running case has a result.
  void conclude(const JsonLine& result) {
    const std::string text = result.text("result");
    if (text == "failed" || text == "crashed" || text == "timed out") {
      std::printf("  %s: %s\n", text.c_str(), result.text("detail").c_str());
    }
    status_ = append(running_, result);
    running_ = nullptr;
    ++done_;
  }

  void end(const std::string& result, const std::string& detail) {
    phase_result_ = result;
    detail_ = detail;
    running_ = nullptr;
  }

  Status append(const Item* item, const JsonLine& result) {
    JsonLine line;
    line.add("build", id_.build).add("device", id_.device).add("phase", phase_.name);
    if (item != nullptr) {
      line.add("case", item->words);
      if (!item->backend.empty()) line.add("backend", item->backend);
      if (!item->variant.empty()) line.add("variant", item->variant);
    } else {
      std::printf("%s: %s %s\n", phase_.name, result.text("result").c_str(),
                  result.text("detail").c_str());
    }
    std::fflush(stdout);
    return results_->append(line.add(result));
  }

  const Phase& phase_;
  const Options& options_;
  const Setup& setup_;
  const RunId& id_;
  ResultsFile* results_;
  std::vector<Item> items_;        // without a result, from this process's first on
  std::size_t done_ = 0;           // of them, by this process
  const Item* running_ = nullptr;  // null between cases
  int crashes_ = 0;
  Clock::time_point begin_, begun_, end_;
  std::string phase_result_, detail_;
  Status status_;
};

}  // namespace

std::vector<Item> selected(const Phase& phase, const Setup& setup, const Filter& only) {
  std::vector<Item> items;
  if (!names(only.phases, phase.name)) return items;
  for (const Item& item : phase.list(setup)) {
    const bool has_words = only.cases.empty() ||
                           std::any_of(only.cases.begin(), only.cases.end(), [&](const auto& part) {
                             return item.words.find(part) != item.words.npos;
                           });
    if (has_words && names(only.backends, item.backend)) items.push_back(item);
  }
  return items;
}

Status check_filter(const Setup& setup, const Filter& only) {
  std::set<std::string> backends;
  std::string known_phases;
  Filter unknown = only;
  for (const Phase& phase : phases()) {
    std::erase(unknown.phases, phase.name);
    known_phases += (known_phases.empty() ? "" : ", ") + std::string(phase.name);
    for (const Item& item : phase.list(setup)) {
      if (!item.backend.empty()) backends.insert(item.backend);
      std::erase_if(unknown.cases,
                    [&](const auto& part) { return item.words.find(part) != item.words.npos; });
    }
  }
  std::string known_backends;
  for (const std::string& name : backends) {
    std::erase(unknown.backends, name);
    known_backends += (known_backends.empty() ? "" : ", ") + name;
  }
  const auto wrong = [](const std::string& value, const std::string& expected) {
    return Status(StatusCode::kInvalidArgument,
                  "[gpu_check] --only (" + value + ") must be " + expected);
  };
  if (!unknown.phases.empty()) return wrong("phase=" + unknown.phases[0], "one of " + known_phases);
  if (!unknown.backends.empty()) {
    return wrong("backend=" + unknown.backends[0], "one of " + known_backends);
  }
  if (!unknown.cases.empty()) {
    return wrong("case=" + unknown.cases[0], "a part of a case's words; --list prints them");
  }
  return {};
}

Status run_phases(const Options& options, const Setup& setup, const RunId& id,
                  ResultsFile* results) {
  const auto begin = Clock::now();
  std::set<std::string> done, complete;
  for (const JsonLine& line : lines_of(*results, id)) {
    if (line.has("case")) done.insert(key_of(line));
    if (!line.has("case") && line.text("result") == "complete") complete.insert(line.text("phase"));
  }
  for (const Phase& phase : phases()) {
    std::vector<Item> items = selected(phase, setup, options.only);
    const std::size_t all = items.size();
    std::erase_if(items, [&](const Item& item) {
      return done.contains(key_of(JsonLine().add("phase", phase.name).add(to_line(item))));
    });
    if (items.size() < all) {
      std::printf("%s: %zu of %zu cases have results\n", phase.name, all - items.size(), all);
    }
    if (items.empty() && (all == 0 || complete.contains(phase.name))) continue;
    const double left =
        options.seconds - std::chrono::duration<double>(Clock::now() - begin).count();
    const double limit = options.phase_seconds > 0 ? options.phase_seconds : phase.seconds;
    PhaseRun run(phase, options, setup, id, results);
    Status status = run.run(std::move(items), std::max(0.0, std::min(left, limit)));
    if (!status.ok()) return status;
  }
  return {};
}

std::vector<JsonLine> lines_of(const ResultsFile& results, const RunId& id) {
  std::vector<JsonLine> lines;
  std::map<std::string, std::size_t> places;
  for (const JsonLine& line : results.lines()) {
    if (line.text("build") != id.build || line.text("device") != id.device) continue;
    const auto [place, is_new] = places.emplace(key_of(line), lines.size());
    if (is_new) {
      lines.push_back(line);
    } else {
      lines[place->second] = line;
    }
  }
  return lines;
}

}  // namespace regard::gpu_check
