#include "tools/ranks/step_lines.h"

#include <fmt/format.h>

#include <algorithm>

namespace regard::ranks {

std::vector<StepLine> steps_of(const distributed::CallRecord& record) {
  std::vector<StepLine> lines;
  for (const distributed::Activity& a : record.activities) {
    if (lines.empty() || a.step.substr(0, sizeof(StepLine::step) - 1) != lines.back().step) {
      StepLine line{};
      a.step.copy(line.step, sizeof(line.step) - 1);
      line.begin = a.begin;
      lines.push_back(line);
    }
    const bool computes = a.kind == distributed::Activity::Kind::kComputing;
    (computes ? lines.back().computing : lines.back().waiting) += a.end - a.begin;
  }
  return lines;
}

void print_steps(const std::vector<std::vector<StepLine>>& ranks) {
  fmt::print("rank  {:24}    begin ms  computing ms  waiting ms\n", "step");
  double share = 0.0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    double computing = 0.0, waiting = 0.0;
    for (const StepLine& line : ranks[r]) {
      fmt::print("{:4}  {:24} {:11.3f} {:13.3f} {:11.3f}\n", r, line.step, line.begin * 1e3,
                 line.computing * 1e3, line.waiting * 1e3);
      computing += line.computing;
      waiting += line.waiting;
    }
    if (waiting > 0.0) share = std::max(share, waiting / (computing + waiting));
  }
  fmt::print("waiting for messages: {:.1f} % of the time on the rank that waits longest\n",
             share * 100.0);
}

Expected<std::vector<std::vector<StepLine>>> exchange_steps(
    distributed::Communicator& communicator, const distributed::MessageLimits& limits,
    const std::vector<StepLine>& own, const std::vector<std::int64_t>& counts) {
  std::vector<std::vector<StepLine>> all;
  for (const std::int64_t count : counts) all.emplace_back(static_cast<std::size_t>(count));
  all[static_cast<std::size_t>(communicator.rank())] = own;
  std::vector<std::span<std::byte>> spans;
  for (auto& lines : all) spans.push_back(std::as_writable_bytes(std::span(lines)));
  distributed::Messages messages(communicator, limits, "run");
  if (Status s = messages.all_gather(spans, "steps"); !s.ok()) return s;
  return all;
}

}  // namespace regard::ranks
