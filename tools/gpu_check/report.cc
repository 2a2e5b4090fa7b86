#include "tools/gpu_check/report.h"

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
      r.matmul_tflops, r.copy_gbps, r.idle_clock_mhz, r.clock_mhz);
  const char* separator = "";
  for (const auto& [backend, t] : r.tallies) {
    out += separator + quoted(backend) +
           text(": {\"passed\": %ld, \"refused\": %ld, \"failed\": %ld, \"worst_share\": %.3f}",
                t.passed, t.refused, t.failed, t.worst_share);
    separator = ", ";
  }
  out += "},\n  \"failures\": [";
  separator = "";
  for (const std::string& failure : r.failures) {
    out += separator + quoted(failure);
    separator = ",\n    ";
  }
  out += "],\n  \"benchmarks\": [";
  separator = "\n    ";
  for (const BenchRow& row : r.rows) {
    const Timing& t = row.timing;
    out += separator + std::string("{\"case\": ") + quoted(row.words) +
           ", \"backend\": " + quoted(row.backend) + ", \"error\": " + quoted(t.error) +
           text(
               ", \"ms\": %.5f, \"spread\": %.3f, \"tflops\": %.2f, \"host_us\": %.2f, "
               "\"clock_mhz\": %d}",
               t.ms, t.spread, t.tflops, t.host_us, t.clock_mhz);
    separator = ",\n    ";
  }
  return out + "]\n}\n";
}

std::string markdown(const Report& r) {
  std::string out =
      "# regard on " + (r.dry_run ? std::string("no device: a dry run") : r.facts.name);
  out +=
      text("\n\n%s, compute capability %d.%d, driver for CUDA %d.%d, cuDNN %d%s.\n",
           today().c_str(), r.facts.sm_version / 10, r.facts.sm_version % 10, r.facts.driver / 1000,
           r.facts.driver % 1000 / 10, r.facts.cudnn, r.complete ? "" : "; cut off by its time");
  out += text("The device's bf16 product %.0f TFLOPS at %d MHz, its copies %.0f GB/s.\n",
              r.matmul_tflops, r.clock_mhz, r.copy_gbps);
  out +=
      "\n| backend | passed | refused | failed | worst share of its bar |\n|---|---|---|---|---|\n";
  for (const auto& [backend, t] : r.tallies) {
    out += text("| %s | %ld | %ld | %ld | %.2f |\n", backend.c_str(), t.passed, t.refused, t.failed,
                t.worst_share);
  }
  if (!r.failures.empty()) out += "\n";
  for (const std::string& failure : r.failures) out += "```\n" + failure + "\n```\n";
  out +=
      "\n| case | backend | ms | TFLOPS | of the product | MHz | host, us a call |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const BenchRow& row : r.rows) {
    const Timing& t = row.timing;
    out += "| `" + row.words + "` | " + row.backend + " | ";
    out += t.error.empty() ? text("%.4f | %.1f | %.0f %% | %d | %.1f |\n", t.ms, t.tflops,
                                  r.matmul_tflops > 0 ? 100 * t.tflops / r.matmul_tflops : 0,
                                  t.clock_mhz, t.host_us)
                           : t.error + " | | | | |\n";
  }
  return out;
}

}  // namespace

void Report::write() const {
  std::ofstream(prefix + ".json") << json(*this);
  std::ofstream(prefix + ".md") << markdown(*this);
}

}  // namespace regard::gpu_check
