#include "core/select/selection_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/text.h"
#include "core/select/predictions.h"
#include "core/text/backend_names.h"

namespace regard {
namespace {

using Row = std::vector<std::string>;

bool is_named(const Policy& policy, const BackendRef& ref) {
  return contains(policy.deny, ref) || (policy.only && contains(*policy.only, ref)) ||
         (policy.prefer && contains(*policy.prefer, ref));
}

// Backends of devices are one line at the end where the case is on a CPU and neither the policy nor
// --verbose names them.
bool is_folded(const Selection& selection, const Verdict& verdict) {
  return selection.params.device.type == DeviceType::kCpu && verdict.device == DeviceType::kCuda &&
         !is_named(selection.policy, verdict.backend);
}

// "flash, efficient or math"
std::string join(const std::vector<std::string>& texts, const char* last) {
  std::string out;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += i + 1 == texts.size() ? concat(" ", last, " ") : ", ";
    out += texts[i];
  }
  return out;
}

bool is_excluded_by_name(const Verdict& verdict) {
  const auto by_name = [](const Refusal& refusal) {
    return refusal.code == RefusalCode::kDenied || refusal.code == RefusalCode::kNotInOnly;
  };
  return !verdict.refusals.empty() && std::ranges::all_of(verdict.refusals, by_name);
}

// The changes that make a backend run; none where something cannot be changed.
std::vector<std::string> fixes_of(const Verdict& verdict) {
  std::vector<std::string> fixes;
  for (const Refusal& refusal : verdict.refusals) {
    if (refusal.fix.op == Fix::Op::kNone) return {};
    fixes.push_back(to_string(refusal.fix));
  }
  return fixes;
}

// ", by REGARD_BACKEND (only)". Where nothing can run, the built-in order is not what decided it.
std::string decision(const Selection& selection) {
  const bool by_default = !selection.ok() && selection.decided_by == "built-in order";
  return by_default ? "" : ", by " + selection.decided_by;
}

// "efficient, in 1.30 times the time; to run it set seqlen_kv to 64, or set policy.prefer to
// efficient"
std::string runner_up_text(const Selection& selection) {
  if (!selection.runner_up) return "";
  const RunnerUp& next = *selection.runner_up;
  std::vector<std::string> extents;
  for (const Fix& change : next.changes) {
    if (!change.field.starts_with("policy.")) {
      extents.push_back(concat(change.field, " ", change.value));
    }
  }
  std::string out = concat("next     ", to_string(next.backend), ", predicted to take ",
                           figure_text(next.ratio), " times as long");
  if (!extents.empty()) out += "; faster at " + join(extents, "or");
  return out + "\n";
}

std::string header(const Selection& selection) {
  std::string out = "case     " + to_string(selection.params) + "\n";
  AttentionParams rounded = selection.key_params;
  rounded.features.set(Feature::kNonFiniteBehindMask, false);
  if (rounded != selection.params) out += "rounded  " + to_string(rounded) + "\n";
  const std::string policy = to_string(selection.policy);
  if (!policy.empty()) out += "policy   " + policy + "\n";
  for (const EnvVariable& v : selection.environment) {
    out += "env      " + v.name + "=" + v.value + "\n";
  }
  const std::string chosen = selection.ok() ? to_string(selection.chosen) : "none";
  out += "chosen   " + chosen + decision(selection) + "\n";
  out += runner_up_text(selection);
  if (const std::string lost = given_up(selection); !lost.empty()) {
    out += "gave up  " + lost + "\n";
  }
  if (selection.mask_shares) {
    const auto percent = [](double share) { return std::round(share * 1000.0) / 10.0; };
    const MaskShares& shares = *selection.mask_shares;
    out += concat("mask     skips ", percent(shares.empty), " % of the blocks of ",
                  MaskShares::kMaskBlock, " x ", MaskShares::kMaskBlock, "; ",
                  percent(shares.partial), " % are partial\n");
  }
  if (selection.params.features.has(Feature::kScoreCallback)) {
    out +=
        "note     score_callback is called for each row of a tile, slower than a score_function\n";
  }
  if (is_f8(selection.params.dtype_q) && selection.params.device.type == DeviceType::kCpu) {
    out += "note     emulation: 8-bit floats are converted to f32 as they are read\n";
  }
  const std::string change = advice(selection);
  return change.empty() ? out : out + "change   " + change + "\n";
}

std::string yes_no(bool value) { return value ? "yes" : "no"; }

// Three digits.
std::string figure(double x) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), x, std::chars_format::general, 3).ptr;
  return std::string(text, end);
}

// Which columns a table has.
struct Columns {
  bool needs_grad, verbose, times;
};

// "4.27 us x1.4": nine of ten calls are within this factor.
std::string time_text(const Verdict& v, bool needs_grad) {
  const double seconds = v.predicted_seconds(needs_grad);
  if (seconds < 0.0) return "-";
  const double spread = std::max(v.forward_time.spread, v.backward_time.spread);
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof(text), spread, std::chars_format::fixed, 1).ptr;
  return seconds_text(seconds) + " x" + std::string(text, end);
}

Row titles(const Columns& columns) {
  Row row = {"backend", "status"};
  if (columns.verbose) row.insert(row.end(), {"built", "enabled", "usable", "chosen"});
  if (columns.times) row.push_back("predicted");
  row.push_back("workspace");
  if (columns.needs_grad) row.push_back("backward");
  row.insert(row.end(), {"error", "determinism"});
  return row;
}

Row cells(const Verdict& v, const Columns& columns) {
  Row row = {to_string(v.backend), to_string(v.status())};
  if (columns.verbose) {
    for (const bool fact : {v.built, v.enabled, v.usable, v.chosen}) row.push_back(yes_no(fact));
  }
  if (columns.times) row.push_back(time_text(v, columns.needs_grad));
  row.push_back(v.workspace_bytes < 0 ? "-" : bytes_text(v.workspace_bytes));
  if (columns.needs_grad) {
    row.push_back(v.backward_workspace_bytes < 0 ? "-" : bytes_text(v.backward_workspace_bytes));
  }
  row.push_back(v.error_bound < 0.0 ? "-" : error_text(v.error_bound));
  row.push_back(v.built ? to_string(v.determinism) : "-");
  return row;
}

// Columns as wide as their widest cell, two spaces between them.
std::string line(const Row& row, const std::vector<std::size_t>& widths) {
  std::string out;
  for (std::size_t i = 0; i < row.size(); ++i) {
    out += row[i];
    if (i + 1 < row.size()) out.append(widths[i] - row[i].size() + 2, ' ');
  }
  return out + "\n";
}

// One line for the backends that the table leaves out.
std::string footer(const std::vector<std::string>& folded) {
  if (folded.empty()) return "";
  const bool one = folded.size() == 1;
  return join(folded, "and") + (one ? " needs" : " need") + " a CUDA device; verbose shows " +
         (one ? "it" : "them") + "\n";
}

// A table behind an empty line, without the spaces that end its lines.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out = "\n";
  for (const Row& row : rows) {
    const std::string text = line(row, widths);
    out += text.substr(0, text.find_last_not_of(" \n") + 1) + "\n";
  }
  return out;
}

// A line for each way to compute sequences of several lengths.
std::string paths_text(const std::vector<PathPrediction>& paths) {
  if (paths.empty()) return "";
  std::vector<Row> rows = {{"path", "operations", "bytes", "predicted", ""}};
  for (const PathPrediction& path : paths) {
    rows.push_back({to_string(path.path), figure(path.operations), figure(path.bytes),
                    seconds_text(path.seconds), path.path == fastest_path(paths) ? "fastest" : ""});
  }
  return table(rows);
}

// A line for each format of a cache.
std::string cache_formats_text(const std::vector<CacheFormatPrediction>& formats) {
  if (formats.empty()) return "";
  std::vector<Row> rows = {{"k and v", "bytes a token", "predicted", "bf16's / its", ""}};
  for (const CacheFormatPrediction& format : formats) {
    std::string faster;
    if (format.faster_from) {
      faster = concat("faster than bf16 from ", *format.faster_from, " keys on");
    } else if (format.dtype != Dtype::kBf16) {
      faster = concat("not faster than bf16 with ", CacheFormatPrediction::kMaxKeys, " keys");
    }
    rows.push_back({to_string(format.dtype), concat(format.bytes), seconds_text(format.seconds),
                    figure_text(format.ratio), faster});
  }
  return table(rows);
}

}  // namespace

std::string advice(const Selection& selection) {
  if (selection.ok()) return "";
  std::string change;
  std::vector<std::string> excluded;
  for (const Verdict& verdict : selection.candidates) {
    if (verdict.usable && verdict.refusals.empty()) return "";  // a warning says what is wrong
    if (is_excluded_by_name(verdict)) {
      excluded.push_back(to_string(verdict.backend));
    } else if (const auto fixes = fixes_of(verdict); change.empty() && !fixes.empty()) {
      change = join(fixes, "and") + " to run " + to_string(verdict.backend);
    }
  }
  if (excluded.empty()) return change;
  return change + (change.empty() ? "allow " : ", or allow ") + join(excluded, "or");
}

std::string no_backend_message(const Selection& selection) {
  std::string out = "no backend can run " + to_string(selection.params) + decision(selection);
  const char* separator = ": ";
  const auto add = [&](const std::string& sentence) {
    out += separator + sentence;
    separator = ". ";
  };
  for (const Verdict& verdict : selection.candidates) {
    const std::string name = to_string(verdict.backend);
    if (is_folded(selection, verdict)) continue;
    if (verdict.refusals.empty()) add(name + " can run");
    for (const Refusal& refusal : verdict.refusals) {
      add(name + " " + to_string(refusal, selection.alternative()));
    }
  }
  for (const std::string& warning : selection.warnings) add(warning);
  return out;
}

std::string to_string(const Selection& selection, bool verbose) {
  const Columns columns = {selection.params.features.has(Feature::kNeedsGrad), verbose,
                           !selection.cost_source.empty()};
  const BackendRef alternative = selection.alternative();
  struct Entry {
    Row row;
    std::string reasons;
  };
  std::vector<Entry> entries = {{titles(columns), ""}};
  std::vector<std::string> folded;
  for (const Verdict& verdict : selection.candidates) {
    if (!verbose && is_folded(selection, verdict)) {
      folded.push_back(to_string(verdict.backend));
      continue;
    }
    Entry& entry = entries.emplace_back(cells(verdict, columns), "");
    for (const Refusal& refusal : verdict.refusals) {
      entry.reasons += "  - " + to_string(refusal, alternative) + "\n";
    }
  }
  std::vector<std::size_t> widths(entries.front().row.size());
  for (const Entry& entry : entries) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], entry.row[i].size());
    }
  }
  std::string out = header(selection) + "\n";
  for (const Entry& entry : entries) out += line(entry.row, widths) + entry.reasons;
  out += footer(folded);
  if (columns.times) {
    out +=
        "predicted from " + selection.cost_source + ": nine of ten calls are within the factor\n";
  }
  out += paths_text(selection.paths);
  out += cache_formats_text(selection.cache_formats);
  for (const std::string& warning : selection.warnings) out += "warning: " + warning + "\n";
  for (const Selection& prefix : selection.prefix) {
    out += "\nbefore it, the call over the shared prefix:\n\n" + to_string(prefix, verbose);
  }
  return out;
}

}  // namespace regard
