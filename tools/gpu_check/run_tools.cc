#include <cstdlib>
#include <map>
#include <regex>
#include <span>
#include <sstream>

#include "tools/gpu_check/cases.h"
#include "tools/gpu_check/child_process.h"
#include "tools/gpu_check/phase.h"

// Cases under the toolkit's compute-sanitizer and ncu: this program again, as their child.

namespace regard::gpu_check {
namespace {

constexpr double kSeconds = 60;  // the parent stops a case earlier where its limit says so

std::string required(const std::string& tool) {
  const char* toolkit = std::getenv("CUDA_PATH");
  const std::string folder = toolkit != nullptr ? toolkit : "/usr/local/cuda";
  std::string found = find_program(tool, {folder + "/bin", folder + "/compute-sanitizer"});
  if (found.empty()) throw NotPresent(tool + " is not on the PATH nor in " + folder);
  return found;
}

Output run_under(std::vector<std::string> command, const Session& session, const char* phase,
                 const Item& item) {
  command.insert(command.end(), {session.setup.program, "--child", phase});
  if (session.setup.rehearse) command.push_back("--rehearse");
  const std::string input = JsonLine()
                                .add("case", item.words)
                                .add("backend", item.backend)
                                .add("variant", std::string_view())
                                .dump();
  return run_command(std::move(command), input + "\n", kSeconds);
}

/// The program's own line of results among what the tool printed.
JsonLine result_in(const Output& output) {
  std::istringstream lines(output.text);
  JsonLine result;
  for (std::string line; std::getline(lines, line);) {
    std::optional<JsonLine> parsed = JsonLine::parse(line);
    if (parsed && parsed->has("result")) result = *std::move(parsed);
  }
  return result;
}

std::string tail(const std::string& text) {
  constexpr std::size_t kMax = 1500;
  return text.size() <= kMax ? text : text.substr(text.size() - kMax);
}

/// The fields of one line of comma-separated values.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool is_quoted = false;
  for (const char c : line) {
    if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

using Metrics = std::map<std::string, double>;

/// Of each kernel that ncu's table has, by "ID" and name.
std::map<std::string, Metrics> metrics_in(const std::string& text) {
  std::map<std::string, std::size_t> columns;
  std::map<std::string, Metrics> kernels;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> fields = fields_of(line);
    if (fields.front() == "ID") {
      for (std::size_t i = 0; i < fields.size(); ++i) columns[fields[i]] = i;
    } else if (!columns.empty() && fields.size() == columns.size()) {
      std::string value = fields[columns["Metric Value"]];
      std::erase(value, ',');  // of thousands
      kernels[fields[columns["ID"]] + " " + fields[columns["Kernel Name"]]]
             [fields[columns["Metric Name"]]] = std::strtod(value.c_str(), nullptr);
    }
  }
  return kernels;
}

}  // namespace

std::vector<Item> list_sanitizer(const Setup& setup) {
  std::vector<Item> items;
  std::span<const char* const> cases = kSanitized;
  if (setup.rehearse) cases = cases.first(2);  // each starts a process
  // memcheck first: its answers are worth most where time ends early.
  for (const char* tool : kSanitizerTools) {
    for (const char* words : cases) {
      for (const BackendInfo& info : setup.backends) {
        // cuDNN's kernels are not ours.
        if (info.ref.id != BackendId::kCudnn) items.push_back({words, to_string(info.ref), tool});
      }
    }
  }
  return items;
}

JsonLine run_sanitizer(Session& session, const Item& item) {
  const std::string sanitizer = required("compute-sanitizer");
  const Output output =
      run_under({sanitizer, "--tool", item.variant}, session, "conformance", item);
  JsonLine line = result_in(output);
  const std::string result = line.text("result");
  if (result == "refused") return line;
  std::smatch found;
  // "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
  const bool has_summary =
      std::regex_search(output.text, found, std::regex("SUMMARY: ([0-9]+) (error|hazard)"));
  const std::string why =
      !has_summary            ? "printed no summary (" + output.ended + ")"
      : found[1].str() != "0" ? "found " + found[1].str() + " " + found[2].str() + "s"
      : result != "passed"    ? "the case ended with '" + result + "' " + output.ended
                              : "";
  if (why.empty()) return JsonLine().add("result", "passed").add("kernel", line.text("kernel"));
  return JsonLine()
      .add("result", "failed")
      .add("detail", item.variant + " " + why + ": " + tail(output.text));
}

std::vector<Item> list_profile(const Setup&) {
  std::vector<Item> items;
  for (const char* words : kProfiled) items.push_back({words, "flash", ""});
  return items;
}

JsonLine run_profile(Session& session, const Item& item) {
  const std::string ncu = required("ncu");
  const Output output =
      run_under({ncu, "--csv", "--print-units", "base", "--section", "SpeedOfLight", "--section",
                 "LaunchStats", "--section", "Occupancy", "--section", "SchedulerStats",
                 "--section", "WarpStateStats"},
                session, "launch", item);
  if (output.text.find("ERR_NVGPUCTRPERM") != output.text.npos) {
    throw NotPresent("this user may not read the device's counters (ERR_NVGPUCTRPERM)");
  }
  // The kernel that takes longest; units are ns, percent and counts.
  std::string longest;
  Metrics metrics;
  for (const auto& [kernel, found] : metrics_in(output.text)) {
    const auto duration = found.find("Duration");
    if (duration == found.end() || duration->second <= metrics["Duration"]) continue;
    longest = kernel.substr(kernel.find(' ') + 1);
    metrics = found;
  }
  if (longest.empty()) {
    return JsonLine()
        .add("result", "failed")
        .add("detail", "ncu printed no kernel (" + output.ended + "): " + tail(output.text));
  }
  JsonLine line;
  line.add("result", "measured").add("kernel", longest);
  for (const auto& [name, column] : std::initializer_list<std::pair<const char*, const char*>>{
           {"Duration", "ns"},
           {"Compute (SM) Throughput", "sm_percent"},
           {"DRAM Throughput", "dram_percent"},
           {"L1/TEX Cache Throughput", "l1_percent"},
           {"Registers Per Thread", "registers"},
           {"Achieved Occupancy", "occupancy_percent"},
           {"Issued Warp Per Scheduler", "issued_warps"},
           {"Warp Cycles Per Issued Instruction", "cycles_per_instruction"}}) {
    if (metrics.contains(name)) line.add(column, metrics[name], 2);
  }
  return line;
}

}  // namespace regard::gpu_check
