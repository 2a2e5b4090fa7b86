#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "base/text.h"
#include "regard/benchmark.h"

// A Benchmark for people and for programs.

namespace regard {
namespace {

std::string share_text(double rate, double limit) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f %%", 100.0 * rate / limit);
  return limit > 0.0 ? text : "-";
}

std::string size_text(std::int64_t bytes) {
  if (bytes < 0) return "-";
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double size = static_cast<double>(bytes) / 1024.0;
  const char* unit = " KiB";
  for (const char* larger : {" MiB", " GiB"}) {
    if (size < 1023.5) break;
    size /= 1024.0;
    unit = larger;
  }
  return figure_text(size) + unit;
}

/// Columns as wide as their longest cell; the last one as it is.
class Table {
 public:
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  std::string text() const {
    std::string out;
    for (const std::vector<std::string>& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        out += row[i];
        if (i + 1 < row.size()) out.append(width_of(i) - row[i].size() + 2, ' ');
      }
      out += '\n';
    }
    return out;
  }

 private:
  std::size_t width_of(std::size_t column) const {
    std::size_t width = 0;
    for (const std::vector<std::string>& row : rows_) {
      // A reason fills what is left of its row.
      if (column + 1 < row.size()) width = std::max(width, row[column].size());
    }
    return width;
  }
  std::vector<std::vector<std::string>> rows_;
};

double rate_of(double amount, double seconds) {
  return seconds > 0.0 ? amount / seconds * 1e-9 : 0.0;
}

std::vector<std::string> cells_of(const Benchmark& result, const BenchmarkRow& row) {
  const std::string name = row.name + (row.variant.empty() ? "" : "/") + row.variant;
  if (!row.reason.empty()) return {name, row.reason};
  if (row.seconds.empty()) return {name, "not measured: interrupted before its first run"};
  const double median = row.quantile(0.5);
  const double gflops = rate_of(row.work.operations, median);
  const double gbps = rate_of(row.work.bytes, median);
  return {name,
          seconds_text(median),
          seconds_text(row.quantile(0.25)) + " .. " + seconds_text(row.quantile(0.75)),
          figure_text(gflops),
          share_text(gflops, peak_gflops(result.machine, result.params)),
          figure_text(gbps),
          share_text(gbps, result.machine.read_gbps),
          size_text(row.workspace_bytes),
          row.kernel.empty() ? "-" : row.kernel};
}

std::string table_of(const Benchmark& result, bool backward) {
  Table table;
  table.add({backward ? "backward" : "forward", "median", "middle half", "GFLOP/s", "of peak",
             "GB/s", "of memory", "workspace", "kernel"});
  bool has_rows = false;
  for (const BenchmarkRow& row : result.rows) {
    if (row.backward != backward) continue;
    has_rows = true;
    table.add(cells_of(result, row));
  }
  return has_rows ? "\n" + table.text() : "";
}

/// "236 GFLOP/s in f32 on 2 threads (118 on one), memory 31.0 GB/s (24.9 on one)"
std::string machine_text(const Benchmark& result) {
  const AttentionParams& p = result.params;
  const bool pairs =
      p.dtype_q == Dtype::kBf16 && p.dtype_k == Dtype::kBf16 && p.dtype_v == Dtype::kBf16;
  const char* const type = p.dtype_q == Dtype::kF64 ? "f64" : pairs ? "bf16" : "f32";
  const bool several = result.machine.threads > 1;
  const auto rate = [&](double all, double one, const char* unit) {
    return figure_text(all) + unit + (several ? " (" + figure_text(one) + " on one)" : "");
  };
  return std::string(to_string(result.machine.isa)) + ", " +
         std::to_string(result.machine.threads) + (several ? " threads: " : " thread: ") +
         rate(peak_gflops(result.machine, p), peak_gflops(result.one_thread, p), " GFLOP/s") +
         " in " + type + ", " +
         rate(result.machine.read_gbps, result.one_thread.read_gbps, " GB/s") + " from memory";
}

void write_benchmark_row(JsonWriter& w, const Benchmark& result, const BenchmarkRow& row) {
  w.begin_object();
  w.key("name").value(row.name);
  w.key("direction").value(row.backward ? "backward" : "forward");
  w.key("reason");
  row.reason.empty() ? w.null() : w.value(row.reason);
  w.key("kernel");
  row.kernel.empty() ? w.null() : w.value(row.kernel);
  w.key("workers");
  row.workers == 0 ? w.null() : w.value(row.workers);
  w.key("workspace_bytes");
  row.workspace_bytes < 0 ? w.null() : w.value(row.workspace_bytes);
  w.key("variant").value(row.variant.empty() ? "default" : row.variant);
  w.key("operations").value(row.work.operations);
  w.key("bytes").value(row.work.bytes);
  w.key("runs").value(static_cast<std::int64_t>(row.seconds.size()));
  constexpr struct {
    const char* name;
    double share;
  } kQuantiles[] = {{"seconds", 0.5},
                    {"min_seconds", 0.0},
                    {"first_quartile_seconds", 0.25},
                    {"third_quartile_seconds", 0.75},
                    {"max_seconds", 1.0}};
  const bool measured = !row.seconds.empty();
  for (const auto& [name, share] : kQuantiles) {
    w.key(name);
    measured ? w.value(row.quantile(share)) : w.null();
  }
  const double gflops = rate_of(row.work.operations, row.quantile(0.5));
  const double gbps = rate_of(row.work.bytes, row.quantile(0.5));
  const auto write_rate = [&](const char* name, const char* share, double rate, double limit) {
    w.key(name);
    measured ? w.value(rate) : w.null();
    w.key(share);
    measured&& limit > 0.0 ? w.value(rate / limit) : w.null();
  };
  write_rate("gflops", "peak_share", gflops, peak_gflops(result.machine, result.params));
  write_rate("gbps", "memory_share", gbps, result.machine.read_gbps);
  w.end_object();
}

}  // namespace

std::string to_string(const Benchmark& result) {
  std::string out = "case     " + to_string(result.params) + "\n";
  out += "chosen   " + result.chosen + ", by " + result.decided_by + "\n";
  out += "machine  " + machine_text(result) + "\n";
  out += table_of(result, false) + table_of(result, true);
  for (const std::string& note : result.notes) out += "note     " + note + "\n";
  if (result.interrupted) out += "interrupted after " + std::to_string(result.rounds) + " rounds\n";
  return out;
}

std::string to_json(const Benchmark& result) {
  JsonWriter w;
  w.begin_object();
  w.key("case").value(to_string(result.params));
  w.key("chosen").value(result.chosen);
  w.key("decided_by").value(result.decided_by);
  w.key("machine").raw(to_json(result.machine));
  w.key("one_thread").raw(to_json(result.one_thread));
  w.key("rounds").value(result.rounds);
  w.key("interrupted").value(result.interrupted);
  w.key("rows").begin_array();
  for (const BenchmarkRow& row : result.rows) write_benchmark_row(w, result, row);
  w.end_array();
  w.key("notes").begin_array();
  for (const std::string& note : result.notes) w.value(note);
  w.end_array();
  w.end_object();
  return w.str();
}

}  // namespace regard
