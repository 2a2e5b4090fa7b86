#include "tools/guide/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace regard::guide {
namespace {

using Sentences = std::vector<std::string>;

/// The point nearest to x that has a time; null for none.
const Point* measured_near(const Sweep& sweep, double x) {
  const Point* best = nullptr;
  for (const Point& point : sweep.points) {
    if (fastest(point) == nullptr) continue;
    if (best == nullptr || std::abs(point.x - x) < std::abs(best->x - x)) best = &point;
  }
  return best;
}

const Point* last_measured(const Sweep& sweep) {
  const Point* last = nullptr;
  for (const Point& point : sweep.points) last = fastest(point) != nullptr ? &point : last;
  return last;
}

std::string times(double ratio) { return fmt::format("{:.2f} times", ratio); }

std::string reign_words(const Sweep& sweep, const Reign& reign) {
  const std::string names = list_words(reign.names) + (reign.names.size() > 1 ? " (equal)" : "");
  if (reign.first == reign.last) {
    return fmt::format("{} at {} {}", names, reign.first->label, sweep.x_title);
  }
  return fmt::format("{} from {} to {} {}", names, reign.first->label, reign.last->label,
                     sweep.x_title);
}

/// "Prompts in f32: flash from 64 to 4,096 positions. At 1,024 positions flash takes 1.2 ms, 0.4
/// ms less than ..."
Sentences fastest_of(const Sweep& sweep, double at) {
  std::vector<std::string> parts;
  for (const Reign& reign : reigns(sweep)) parts.push_back(reign_words(sweep, reign));
  const Point* const point = measured_near(sweep, at);
  if (parts.empty() || point == nullptr) return {};
  const Measured* const best = fastest(*point);
  std::string others;
  for (const Measured& row : point->rows) {
    if (&row == best || row.seconds.empty()) continue;
    others +=
        fmt::format("{}{} {}", others.empty() ? "; " : ", ", row.name, seconds_words(row.median()));
  }
  return {fmt::format("{}: {}. At {} {}: {} {}{}.", sweep.title, list_words(parts), point->label,
                      sweep.x_title, best->name, seconds_words(best->median()), others)};
}

Answer what_runs(const Report& report) {
  Sentences sentences = {fmt::format(
      "{} run{} on this machine: {} with {}, {} thread{}.", list_words(report.support.backends),
      report.support.backends.size() == 1 ? "s" : "", report.env.cpu_model,
      to_string(report.env.isa), report.env.concurrency, report.env.concurrency == 1 ? "" : "s")};
  for (const AbsentBackend& backend : report.elsewhere) {
    sentences.push_back(fmt::format("{} {}.", backend.name, backend.reason));
  }
  return {"What runs here?", std::move(sentences), "support"};
}

/// ", 210 KiB of workspace"
std::string workspace_words(const Measured& row) {
  if (row.workspace_bytes < 0) return {};
  return fmt::format(", {} of workspace", bytes_words(static_cast<double>(row.workspace_bytes)));
}

/// Of one that is not the fastest: "efficient 26.5 ms, 1.06 times as long, 186 KiB of workspace".
std::string other_words(const Measured& row, const Measured& best) {
  if (row.seconds.empty()) return fmt::format("{}: {}", row.name, row.reason);
  const std::string than = differ(row, best)
                               ? fmt::format("{} as long", times(row.median() / best.median()))
                               : std::string("as fast");
  return fmt::format("{} {}, {}{}", row.name, seconds_words(row.median()), than,
                     workspace_words(row));
}

Answer own_shapes(const Report& report) {
  Answer answer{"What is fastest for my shape?", {}, "problems"};
  const Sweep* const sweep = find_sweep(report, "problems");
  if (sweep == nullptr) {
    answer.sentences = {
        "Name it, and it is measured too: regard guide \"b1 hq32 hkv8 sq1024 d128 bf16 causal\"."};
    answer.section = "length_f32";
    return answer;
  }
  for (const Point& point : sweep->points) {
    const Measured* const best = fastest(point);
    if (best == nullptr) continue;
    std::string rest;
    for (const Measured& row : point.rows) {
      if (&row != best) rest += "; " + other_words(row, *best);
    }
    answer.sentences.push_back(fmt::format("{}: {}, {}{}{}.", point.problem, best->name,
                                           seconds_words(best->median()), workspace_words(*best),
                                           rest));
  }
  return answer;
}

Answer fastest_here(const Report& report) {
  Answer answer{"What is fastest here?", {}, "length_f32"};
  constexpr std::pair<const char*, double> kSweeps[] = {{"length_f32", 1024},
                                                        {"length_bf16", 1024},
                                                        {"head_dim", 128},
                                                        {"gradients", 1024},
                                                        {"decode", 16384}};
  for (const auto& [id, at] : kSweeps) {
    const Sweep* const sweep = find_sweep(report, id);
    if (sweep == nullptr) continue;
    for (std::string& sentence : fastest_of(*sweep, at)) {
      answer.sentences.push_back(std::move(sentence));
    }
  }
  return answer;
}

/// How much of the machine's limits the fastest reaches.
Answer how_good(const Report& report) {
  Answer answer{"How much of the machine is used?", {}, "decode"};
  for (const Sweep& sweep : report.sweeps) {
    const Point* best = nullptr;
    for (const Point& point : sweep.points) {
      if (fastest(point) == nullptr) continue;
      if (best == nullptr ||
          figure(sweep, point, *fastest(point)) > figure(sweep, *best, *fastest(*best))) {
        best = &point;
      }
    }
    if (sweep.id == "decode") best = last_measured(sweep);  // one that no cache holds
    if (sweep.limit <= 0.0 || best == nullptr) continue;
    const Measured& row = *fastest(*best);
    const double value = figure(sweep, *best, row);
    answer.sentences.push_back(fmt::format(
        "{}: {} of {} at {} {}, {:.0f} % of {}.", sweep.title, figure_words(sweep.unit, value),
        row.name, best->label, sweep.x_title, 100.0 * value / sweep.limit, sweep.limit_title));
  }
  return answer;
}

Answer what_it_costs(const Report& report) {
  Answer answer{"What does it cost?", {}, "memory"};
  const Sweep* const sweep = find_sweep(report, "memory");
  if (sweep == nullptr || sweep->points.empty()) return answer;
  const Point& first = sweep->points.front();
  const Point& last = sweep->points.back();
  for (const Measured& row : last.rows) {
    const Measured* const small = find_row(first, row.name);
    if (row.workspace_bytes < 0 || small == nullptr || small->workspace_bytes < 0) continue;
    answer.sentences.push_back(fmt::format(
        "{} needs {} of workspace at {} {} and {} at {}.", row.name,
        bytes_words(static_cast<double>(small->workspace_bytes)), first.label, sweep->x_title,
        bytes_words(static_cast<double>(row.workspace_bytes)), last.label));
  }
  return answer;
}

Answer how_exact(const Report& report) {
  Answer answer{"How exact is it?", {}, "errors"};
  std::vector<std::string> types;
  for (const ErrorRow& row : report.errors) {
    if (std::find(types.begin(), types.end(), row.types) == types.end()) types.push_back(row.types);
  }
  for (const std::string& type : types) {
    const ErrorRow* worst = nullptr;
    for (const ErrorRow& row : report.errors) {
      if (row.types != type || row.gradients || !row.reason.empty()) continue;
      if (worst == nullptr || row.error > worst->error) worst = &row;
    }
    if (worst == nullptr) continue;
    answer.sentences.push_back(
        fmt::format("{}: at most {:.1e} of the largest output ({}); it states {:.1e}.", type,
                    worst->error, worst->backend, worst->bound));
  }
  return answer;
}

Answer why_not_others(const Report& report) {
  Answer answer{"Why not the others?", {}, "refusals"};
  for (const char* id : {"length_f32", "decode"}) {
    const Sweep* const sweep = find_sweep(report, id);
    const Point* const point = sweep == nullptr ? nullptr : last_measured(*sweep);
    if (point == nullptr) continue;
    const Measured& best = *fastest(*point);
    for (const Measured& row : point->rows) {
      if (&row == &best || row.is_peer || row.seconds.empty()) continue;
      const double ratio = row.median() / best.median();
      const std::string than = differ(row, best) ? fmt::format("takes {} as long as", times(ratio))
                                                 : std::string("is as fast as");
      answer.sentences.push_back(fmt::format("{}, {} {}: {} {} {}.", sweep->title, point->label,
                                             sweep->x_title, row.name, than, best.name));
    }
  }
  std::size_t refusals = refused_requests(report.support).size();
  answer.sentences.push_back(fmt::format(
      "{} kinds of requests are refused by some backend, each with its reason.", refusals));
  return answer;
}

Answer padding(const Report& report) {
  Answer answer{"Padded or packed?", {}, "padding"};
  const Sweep* const sweep = find_sweep(report, "padding");
  const Point* const last = sweep == nullptr ? nullptr : last_measured(*sweep);
  if (last == nullptr) return answer;
  const Point* const from = crossing(*sweep, "packed", "padded");
  const Measured* const packed = find_row(*last, "packed");
  const Measured* const padded = find_row(*last, "padded");
  if (packed == nullptr || padded == nullptr || packed->seconds.empty() ||
      padded->seconds.empty()) {
    return answer;
  }
  answer.sentences.push_back(
      from == nullptr ? fmt::format("Leave such sequences padded: packed is not faster up to {} %.",
                                    last->label)
                      : fmt::format("Pack such sequences from {} % of padding on.", from->label));
  answer.sentences.push_back(fmt::format("At {} % of padding packed takes {} and padded {}.",
                                         last->label, seconds_words(packed->median()),
                                         seconds_words(padded->median())));
  int good = 0, all = 0;
  for (const Point& point : sweep->points) {
    const Measured* const own = find_row(point, "auto");
    const Measured* const best = fastest(point);
    if (own == nullptr || own->seconds.empty() || best == nullptr) continue;
    good += !differ(*own, *best);
    ++all;
  }
  answer.sentences.push_back(fmt::format(
      "attention_padded() decides by itself: it is as fast as the better way at {} of {} "
      "shares of padding.",
      good, all));
  return answer;
}

Answer cache_formats(const Report& report) {
  Answer answer{"Which type for a cache?", {}, "cache"};
  const Sweep* const sweep = find_sweep(report, "cache");
  const Point* const last = sweep == nullptr ? nullptr : last_measured(*sweep);
  if (last == nullptr || last->rows.empty() || last->rows.front().seconds.empty()) return answer;
  const Measured& plain = last->rows.front();
  for (const Measured& row : last->rows) {
    if (&row == &plain || row.seconds.empty()) continue;
    const Point* const from = crossing(*sweep, row.name, plain.name);
    const std::string when =
        from == nullptr ? std::string("is not faster at the longest length")
                        : fmt::format("is faster from {} {} on", from->label, sweep->x_title);
    answer.sentences.push_back(fmt::format("{} {} than {}: {} against {} at {}.", row.name, when,
                                           plain.name, seconds_words(row.median()),
                                           seconds_words(plain.median()), last->label));
  }
  return answer;
}

Answer threads(const Report& report) {
  Answer answer{"How many threads?", {}, "threads"};
  const Sweep* const sweep = find_sweep(report, "threads");
  if (sweep == nullptr || sweep->points.size() < 2) return answer;
  const Point& one = sweep->points.front();
  for (const Measured& row : one.rows) {
    const Point* best = &one;
    for (const Point& point : sweep->points) {
      const Measured* const here = find_row(point, row.name);
      const Measured* const known = find_row(*best, row.name);
      if (here == nullptr || here->seconds.empty() || known->seconds.empty()) continue;
      if (here->median() < known->median() && differ(*here, *known)) best = &point;
    }
    const Measured* const there = find_row(*best, row.name);
    if (row.seconds.empty() || there->seconds.empty()) continue;
    answer.sentences.push_back(
        best == &one ? fmt::format("{}: more threads than one give nothing.", row.name)
                     : fmt::format("{}: {} threads, {} as fast as one.", row.name, best->label,
                                   times(row.median() / there->median())));
  }
  return answer;
}

Answer peer(const Report& report) {
  Answer answer{fmt::format("And {}?", report.peer), {}, "length_f32"};
  if (report.peer.empty()) return answer;
  for (const Sweep& sweep : report.sweeps) {
    double least = 0.0, most = 0.0;
    for (const Point& point : sweep.points) {
      const Measured* const best = fastest(point);
      for (const Measured& row : point.rows) {
        if (!row.is_peer || row.seconds.empty() || best == nullptr) continue;
        const double ratio = row.median() / best->median();
        least = least == 0.0 ? ratio : std::min(least, ratio);
        most = std::max(most, ratio);
      }
    }
    if (most > 0.0) {
      answer.sentences.push_back(fmt::format("{}: the fastest here is {:.2f} to {} as fast.",
                                             sweep.title, least, times(most)));
    }
  }
  return answer;
}

}  // namespace

std::string list_words(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

std::vector<Reign> reigns(const Sweep& sweep) {
  std::vector<Reign> found;
  for (const Point& point : sweep.points) {
    const Measured* const best = fastest(point);
    if (best == nullptr) continue;
    std::vector<std::string> names = {best->name};
    for (const Measured& row : point.rows) {
      if (&row == best || row.is_peer || row.seconds.empty()) continue;
      if (!differ(row, *best)) names.push_back(row.name);
    }
    if (!found.empty()) {
      // A row that ties at each point goes on reigning.
      std::vector<std::string> both;
      for (const std::string& name : found.back().names) {
        if (std::find(names.begin(), names.end(), name) != names.end()) both.push_back(name);
      }
      if (!both.empty()) {
        found.back().names = std::move(both);
        found.back().last = &point;
        continue;
      }
    }
    found.push_back({&point, &point, std::move(names)});
  }
  return found;
}

const Point* crossing(const Sweep& sweep, const std::string& name, const std::string& other) {
  const Point* from = nullptr;
  for (const Point& point : sweep.points) {
    const Measured* const a = find_row(point, name);
    const Measured* const b = find_row(point, other);
    if (a == nullptr || b == nullptr || a->seconds.empty() || b->seconds.empty()) continue;
    const bool faster = a->median() < b->median() && differ(*a, *b);
    if (!faster) from = nullptr;
    if (faster && from == nullptr) from = &point;
  }
  return from;
}

std::vector<Answer> answers(const Report& report) {
  std::vector<Answer> found = {what_runs(report),     own_shapes(report), fastest_here(report),
                               what_it_costs(report), how_exact(report),  why_not_others(report),
                               how_good(report),      threads(report),    padding(report),
                               cache_formats(report), peer(report)};
  std::erase_if(found, [](const Answer& answer) { return answer.sentences.empty(); });
  return found;
}

}  // namespace regard::guide
