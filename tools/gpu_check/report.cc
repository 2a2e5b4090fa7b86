#include "tools/gpu_check/report.h"

#include <cmath>
#include <cstdarg>
#include <ctime>
#include <fstream>

namespace regard::gpu_check {
namespace {

std::string text(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  return buffer;
}

// JSON has no infinity, and a case that fails may be that far off.
double finite(double x) { return std::isfinite(x) ? x : -1; }

std::string quoted(const std::string& words) {
  std::string out = "\"";
  for (const char c : words) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += text("\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char buffer[32];
  std::strftime(buffer, sizeof(buffer), "%Y-%m-%d", std::gmtime(&now));
  return buffer;
}

std::string list(const char* name, const std::vector<std::string>& items, bool is_last = false) {
  std::string out = text("  \"%s\": [", name);
  const char* separator = "\n    ";
  for (const std::string& item : items) {
    out += separator + item;
    separator = ",\n    ";
  }
  return out + (is_last ? "]\n" : "],\n");
}

std::string benchmarks_json(const Report& r) {
  std::vector<std::string> items;
  for (const BenchRow& row : r.rows) {
    const Timing& t = row.timing;
    items.push_back("{\"case\": " + quoted(row.words) + ", \"backend\": " + quoted(row.backend) +
                    ", \"error\": " + quoted(t.error) +
                    text(", \"ms\": %.5f, \"spread\": %.3f, \"tflops\": %.2f, \"gbps\": %.1f, "
                         "\"clock_mhz\": %d}",
                         t.median.ms, t.median.spread, finite(t.tflops), finite(t.gbps),
                         t.clock_mhz));
  }
  return list("benchmarks", items);
}

std::string comparisons_json(const Report& r) {
  std::vector<std::string> items;
  for (const ComparisonRow& row : r.comparisons) {
    const Comparison& c = row.comparison;
    items.push_back("{\"case\": " + quoted(row.words) +
                    text(", \"backward\": %s, \"error\": ", row.backward ? "true" : "false") +
                    quoted(c.error) +
                    text(", \"ms\": %.5f, \"direct_ms\": %.5f, \"spread\": %.3f, "
                         "\"direct_spread\": %.3f, \"max_ratio\": %.2f}",
                         c.regard.ms, c.direct.ms, c.regard.spread, c.direct.spread, kMaxRatio));
  }
  return list("cudnn_direct", items);
}

std::string overheads_json(const Report& r) {
  std::vector<std::string> items;
  for (const OverheadRow& row : r.overheads) {
    const Overhead& o = row.overhead;
    items.push_back("{\"case\": " + quoted(row.words) + ", \"backend\": " + quoted(row.backend) +
                    ", \"error\": " + quoted(o.error) +
                    text(", \"attention_us\": %.2f, \"execute_us\": %.2f, \"max_us\": %.0f}",
                         o.attention_us, o.execute_us, kMaxOverheadUs));
  }
  return list("overhead", items, true);
}

std::string json(const Report& r) {
  std::string out = "{\n";
  out += text("  \"date\": \"%s\", \"complete\": %s, \"dry_run\": %s,\n", today().c_str(),
              r.complete ? "true" : "false", r.dry_run ? "true" : "false");
  out += "  \"device\": {\"name\": " + quoted(r.facts.name);
  out += text(
      ", \"sm_version\": %d, \"driver\": %d, \"runtime\": %d, \"cudnn\": %d, "
      "\"memory_gib\": %.1f},\n",
      r.facts.sm_version, r.facts.driver, r.facts.runtime, r.facts.cudnn, r.facts.memory_gib);
  out += text(
      "  \"matmul_tflops\": %.1f, \"copy_gbps\": %.0f, \"idle_clock_mhz\": %d, "
      "\"clock_mhz\": %d,\n  \"conformance\": {",
      finite(r.matmul_tflops), finite(r.copy_gbps), r.idle_clock_mhz, r.clock_mhz);
  const char* separator = "";
  for (const auto& [backend, t] : r.tallies) {
    out += separator + quoted(backend) +
           text(": {\"passed\": %ld, \"refused\": %ld, \"failed\": %ld, \"worst_share\": %.3f}",
                t.passed, t.refused, t.failed, finite(t.worst_share));
    separator = ", ";
  }
  out += "},\n  \"failures\": [";
  separator = "";
  for (const std::string& failure : r.failures) {
    out += separator + quoted(failure);
    separator = ",\n    ";
  }
  return out + "],\n" + benchmarks_json(r) + comparisons_json(r) + overheads_json(r) + "}\n";
}

const char* verdict(const Report& r, bool is_held) {
  if (r.dry_run) return "a dry run";
  return is_held ? "held" : "missed";
}

std::string speeds_table(const Report& r) {
  std::string out =
      "\n## Speed\n\n| case | backend | ms | TFLOPS | of the product | GB/s | of the copy | MHz |\n"
      "|---|---|---|---|---|---|---|---|\n";
  const auto percent = [](double part, double whole) { return whole > 0 ? 100 * part / whole : 0; };
  for (const BenchRow& row : r.rows) {
    const Timing& t = row.timing;
    out += "| `" + row.words + "` | " + row.backend + " | ";
    out += t.error.empty() ? text("%.4f | %.1f | %.0f %% | %.0f | %.0f %% | %d |\n", t.median.ms,
                                  t.tflops, percent(t.tflops, r.matmul_tflops), t.gbps,
                                  percent(t.gbps, r.copy_gbps), t.clock_mhz)
                           : t.error + " | | | | | |\n";
  }
  return out;
}

std::string comparisons_table(const Report& r) {
  std::string out = text("\n## CUDNN beside cuDNN called directly (target: %.2f)\n\n", kMaxRatio);
  if (r.dry_run) out += "A dry run: the second call is regard's own.\n\n";
  if (r.comparisons.empty()) return out + "Not measured: no CUDNN here, or no time left.\n";
  out += "| case | pass | regard, ms | cuDNN, ms | ratio | |\n|---|---|---|---|---|---|\n";
  for (const ComparisonRow& row : r.comparisons) {
    const Comparison& c = row.comparison;
    out += "| `" + row.words + "` | " + (row.backward ? "backward | " : "forward | ");
    out += c.error.empty() ? text("%.4f | %.4f | %.3f | %s |\n", c.regard.ms, c.direct.ms,
                                  c.ratio(), verdict(r, c.ratio() <= kMaxRatio))
                           : c.error + " | | | |\n";
  }
  return out;
}

std::string overheads_table(const Report& r) {
  std::string out = text(
      "\n## The host's time for a call (target: %.0f us)\n\n| case | backend | attention(), us | "
      "execute(), us | |\n|---|---|---|---|---|\n",
      kMaxOverheadUs);
  for (const OverheadRow& row : r.overheads) {
    const Overhead& o = row.overhead;
    out += "| `" + row.words + "` | " + row.backend + " | ";
    out += o.error.empty() ? text("%.2f | %.2f | %s |\n", o.attention_us, o.execute_us,
                                  verdict(r, o.attention_us <= kMaxOverheadUs))
                           : o.error + " | | |\n";
  }
  return out;
}

std::string markdown(const Report& r) {
  std::string out =
      "# regard on " + (r.dry_run ? std::string("no device: a dry run") : r.facts.name);
  out +=
      text("\n\n%s, compute capability %d.%d, driver for CUDA %d.%d, cuDNN %d%s.\n",
           today().c_str(), r.facts.sm_version / 10, r.facts.sm_version % 10, r.facts.driver / 1000,
           r.facts.driver % 1000 / 10, r.facts.cudnn, r.complete ? "" : "; cut off by its time");
  if (r.dry_run) {
    out +=
        "Times are this host's, of cases cut to a few positions: they say nothing of a device.\n";
  }
  out += text("The device's bf16 product %.0f TFLOPS at %d MHz, its copies %.0f GB/s.\n",
              r.matmul_tflops, r.clock_mhz, r.copy_gbps);
  out +=
      "\n| backend | passed | refused | failed | worst error / tolerance "
      "|\n|---|---|---|---|---|\n";
  for (const auto& [backend, t] : r.tallies) {
    out += text("| %s | %ld | %ld | %ld | %.2f |\n", backend.c_str(), t.passed, t.refused, t.failed,
                t.worst_share);
  }
  if (!r.failures.empty()) out += "\n";
  for (const std::string& failure : r.failures) out += "```\n" + failure + "\n```\n";
  return out + speeds_table(r) + comparisons_table(r) + overheads_table(r);
}

}  // namespace

void Report::write() const {
  std::ofstream(prefix + ".json") << json(*this);
  std::ofstream(prefix + ".md") << markdown(*this);
}

}  // namespace regard::gpu_check
