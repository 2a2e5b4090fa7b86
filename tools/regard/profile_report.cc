#include "tools/regard/profile_report.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

namespace regard::cli {
namespace {

struct Stage {
  const char* name;
  std::optional<double> seconds;
  const char* what;
};

std::vector<Stage> stages_of(const Profile& profile) {
  return {
      {"describe", profile.describe, "checks the request, makes it canonical"},
      {"plan", profile.plan, "looks the plan up in the cache"},
      {"prepare", profile.prepare, "leases the workspace, checks lengths"},
      {"execute", profile.execute,
       profile.prepare ? "the workers" : "leases the workspace, computes on the caller's thread"}};
}

/// `work` a second in units of 1e9; 0 for calls that the clock cannot measure.
double giga_per_second(double work, double seconds) {
  return seconds > 0.0 ? work / seconds * 1e-9 : 0.0;
}

double share_of(double seconds, double whole) { return whole > 0.0 ? seconds / whole : 0.0; }

void print_workers(Output& output, const Profile& profile) {
  if (profile.workers.empty()) return;
  std::string times;
  for (const double seconds : profile.workers) {
    times += (times.empty() ? "" : ", ") + seconds_text(seconds);
  }
  output.print(fmt::format(
      "workers     {} on {} {}: {}; the longest is {:.2f} of the mean, {:.0f} % of their time "
      "busy\n",
      profile.workers.size(), profile.threads, profile.threads == 1 ? "thread" : "threads", times,
      profile.imbalance, 100.0 * profile.busy));
}

}  // namespace

Json json_of(const Profile& profile, const RunInput& input) {
  Json stages = Json::array();
  for (const Stage& stage : stages_of(profile)) {
    if (!stage.seconds) continue;
    stages.push_back({{"stage", stage.name},
                      {"seconds", *stage.seconds},
                      {"share", share_of(*stage.seconds, profile.call)}});
  }
  return {{"calls", profile.calls},
          {"call_seconds", profile.call},
          {"stages", std::move(stages)},
          {"gflops", giga_per_second(flop_count(input), profile.call)},
          {"kv_gigabytes_per_second", giga_per_second(kv_bytes(input), profile.call)},
          {"threads", profile.threads},
          {"worker_seconds", profile.workers},
          {"imbalance", profile.imbalance},
          {"busy", profile.busy}};
}

void print_profile(Output& output, const Profile& profile, const BackendRun& run,
                   const RunInput& input) {
  output.print(fmt::format("\nprofile   {}, {}: {} a call, median of {}\n", to_string(run.backend),
                           run.kernel.kernel, seconds_text(profile.call), profile.calls));
  Table table({"stage", "median", "share", ""});
  for (const Stage& stage : stages_of(profile)) {
    if (!stage.seconds) continue;
    table.add({stage.name, seconds_text(*stage.seconds),
               fmt::format("{:.1f} %", 100.0 * share_of(*stage.seconds, profile.call)),
               stage.what});
  }
  output.print(table.text(output));
  print_workers(output, profile);
  output.print(fmt::format("rates     {:.2f} GFLOP/s, {:.2f} GB/s of K and V\n",
                           giga_per_second(flop_count(input), profile.call),
                           giga_per_second(kv_bytes(input), profile.call)));
}

}  // namespace regard::cli
