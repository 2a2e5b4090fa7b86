#include "tools/gpu_check/report.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>

#include "tools/gpu_check/phase.h"

namespace regard::gpu_check {
namespace {

using Lines = std::vector<JsonLine>;

bool is_failure(const JsonLine& line) {
  const std::string result = line.text("result");
  return result == "failed" || result == "crashed" || result == "timed out";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char buffer[32];
  std::strftime(buffer, sizeof(buffer), "%Y-%m-%d", std::gmtime(&now));
  return buffer;
}

/// In a cell of a table: its first line, without the bars that end cells.
std::string cell(std::string text) {
  constexpr std::size_t kMax = 200;
  text = text.substr(0, std::min(text.find('\n'), kMax));
  std::replace(text.begin(), text.end(), '|', '/');
  return text;
}

std::string decimal(double number, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.*f", decimals, number);
  return buffer;
}

Lines cases_of(const Lines& lines, const std::string& phase) {
  Lines cases;
  for (const JsonLine& line : lines) {
    if (line.text("phase") == phase && line.has("case")) cases.push_back(line);
  }
  return cases;
}

std::string phases_table(const Lines& lines) {
  std::string out =
      "\n| phase | answers | result | seconds | cases | refused | failed |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const Phase& phase : phases()) {
    JsonLine end;
    for (const JsonLine& line : lines) {
      if (line.text("phase") == phase.name && !line.has("case")) end = line;
    }
    const Lines cases = cases_of(lines, phase.name);
    if (cases.empty() && !end.has("result")) continue;
    const auto refused = std::count_if(cases.begin(), cases.end(), [](const JsonLine& line) {
      return line.text("result") == "refused";
    });
    const std::string result = end.has("result") ? end.text("result") : "cut off";
    out += std::string("| ") + phase.name + " | " + phase.answers + " | " +
           cell(result + (end.has("detail") ? ": " + end.text("detail") : "")) + " | " +
           end.text("seconds") + " | " + std::to_string(cases.size()) + " | " +
           std::to_string(refused) + " | " + std::to_string(failures(cases)) + " |\n";
  }
  return out;
}

/// Of phases with many cases: a row for each backend.
std::string counts_table(const Lines& cases) {
  struct Counts {
    long passed = 0, refused = 0, failed = 0;
    double worst = 0;
  };
  std::map<std::string, Counts> counts;
  for (const JsonLine& line : cases) {
    const std::string variant = line.text("variant");
    Counts& c = counts[line.text("backend") + (variant.empty() ? "" : ", " + variant)];
    (line.text("result") == "passed" ? c.passed : is_failure(line) ? c.failed : c.refused) += 1;
    c.worst = std::max(c.worst, line.number("error_over_tolerance"));
  }
  std::string out =
      "| backend | passed | refused | failed | largest error / tolerance |\n"
      "|---|---|---|---|---|\n";
  for (const auto& [name, c] : counts) {
    out += "| " + name + " | " + std::to_string(c.passed) + " | " + std::to_string(c.refused) +
           " | " + std::to_string(c.failed) + " | " + decimal(c.worst, 2) + " |\n";
  }
  return out;
}

/// A row for each case, and a column for each member that one of them has.
std::string cases_table(const Lines& cases, double matmul_tflops) {
  std::vector<std::string> columns;
  for (const JsonLine& line : cases) {
    for (const std::string& name : line.names()) {
      if (name == "build" || name == "device" || name == "phase") continue;
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    }
  }
  const bool has_share =
      matmul_tflops > 0 && std::count(columns.begin(), columns.end(), "tflops") > 0;
  std::string header = "|", rule = "|", rows;
  for (const std::string& name : columns) {
    header += " " + name + " |";
    rule += "---|";
  }
  if (has_share) {
    header += " of the product |";
    rule += "---|";
  }
  for (const JsonLine& line : cases) {
    std::string row = "|";
    for (const std::string& name : columns) {
      row += name == "case" ? " `" + cell(line.text(name)) + "` |"
                            : " " + cell(line.text(name)) + " |";
    }
    if (has_share) row += " " + decimal(100 * line.number("tflops") / matmul_tflops, 0) + " % |";
    rows += row + "\n";
  }
  return header + "\n" + rule + "\n" + rows;
}

/// regard's fastest backend beside PyTorch's. They are measured one after another.
std::string torch_table(const Lines& lines) {
  std::map<std::string, std::map<std::string, double>> times;
  std::vector<std::string> order;
  for (const char* phase : {"speed", "torch"}) {
    for (const JsonLine& line : cases_of(lines, phase)) {
      const std::string words = line.text("case");
      if (line.text("result") != "measured") continue;
      if (!times.contains(words)) order.push_back(words);
      times[words][line.text("backend")] = line.number("ms");
    }
  }
  std::string out;
  for (const std::string& words : order) {
    std::string regard, torch;
    for (const auto& [backend, ms] : times[words]) {
      std::string& best = backend.rfind("torch ", 0) == 0 ? torch : regard;
      if (best.empty() || ms < times[words][best]) best = backend;
    }
    if (regard.empty() || torch.empty()) continue;
    const double ours = times[words][regard], theirs = times[words][torch];
    out += "| `" + words + "` | " + regard + " | " + decimal(ours, 4) + " | " + torch + " | " +
           decimal(theirs, 4) + " | " + decimal(ours > 0 ? theirs / ours : 0, 3) + " |\n";
  }
  if (out.empty()) return out;
  return "\n## regard beside PyTorch\n\nThe fastest backend of each; a ratio above 1: regard is "
         "faster. They are measured one after another.\n\n"
         "| case | regard | ms | PyTorch | ms | ratio |\n|---|---|---|---|---|---|\n" +
         out;
}

std::string failures_text(const Lines& lines) {
  constexpr long kMax = 40;
  std::string out;
  long count = 0;
  for (const JsonLine& line : lines) {
    if (!line.has("case") || !is_failure(line) || ++count > kMax) continue;
    out += "\n`" + line.text("case") + "` on " + line.text("backend") + " " + line.text("variant") +
           ": " + line.text("result") + "\n\n```\n" + line.text("detail") + "\n```\n";
  }
  return out.empty() ? out : "\n## Failures\n" + out;
}

}  // namespace

long failures(const Lines& lines) {
  return std::count_if(lines.begin(), lines.end(),
                       [](const JsonLine& line) { return line.has("case") && is_failure(line); });
}

std::string markdown(const Lines& lines, bool rehearse) {
  const Lines rates = cases_of(lines, "rates");
  const double matmul_tflops = rates.empty() ? 0 : rates[0].number("matmul_tflops");
  std::string out = "# regard on ";
  out += rehearse || rates.empty() ? "no device: a rehearsal" : rates[0].text("name");
  out += "\n\n" + today() + ".";
  if (rehearse) {
    out += " Times are this host's, of cases cut to a few positions: they say nothing of a device.";
  }
  out += "\n" + phases_table(lines) + failures_text(lines) + torch_table(lines);
  for (const Phase& phase : phases()) {
    const Lines cases = cases_of(lines, phase.name);
    if (cases.empty()) continue;
    out += std::string("\n## ") + phase.name + ": " + phase.answers + "\n\n";
    out += phase.is_counted ? counts_table(cases) : cases_table(cases, matmul_tflops);
  }
  return out;
}

}  // namespace regard::gpu_check
