// What a CUDA device says of this library, in phases whose results outlive the program.
// scripts/gpu_check.sh runs it.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "tools/gpu_check/child.h"
#include "tools/gpu_check/report.h"
#include "tools/gpu_check/supervisor.h"

namespace regard::gpu_check {
namespace {

enum ExitStatus { kPassed = 0, kFailed = 1, kWrongUse = 2, kNoDevice = 3, kNoResults = 4 };

std::string own_path() {
  char buffer[4096];
  const ssize_t length = readlink("/proc/self/exe", buffer, sizeof(buffer));
  return length > 0 ? std::string(buffer, static_cast<std::size_t>(length)) : "";
}

/// FNV-1a of the bytes of this program and its scripts.
std::string build_id(const std::string& program) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> buffer(1 << 20);
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())),
           file.gcount() > 0) {
      for (std::streamsize i = 0; i < file.gcount(); ++i) {
        hash = (hash ^ static_cast<unsigned char>(buffer[static_cast<std::size_t>(i)])) *
               0x100000001b3u;
      }
    }
  };
  add(program);
  const std::string folder = program.substr(0, program.rfind('/') + 1);
  for (const char* script : {"gpu_check_cases.py", "gpu_check_torch.py", "gpu_check_python.py"}) {
    add(folder + script);
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

Setup make_setup(const Options& options) {
  Setup setup;
  setup.rehearse = options.rehearse;
  setup.random_cases = options.cases;
  setup.program = own_path();
  const DeviceType device = options.rehearse ? DeviceType::kCpu : DeviceType::kCuda;
  for (const BackendInfo& info : Context().backends()) {
    if (info.built && info.device == device) setup.backends.push_back(info);
  }
  return setup;
}

void print_list(const Setup& setup, const Filter& only) {
  for (const Phase& phase : phases()) {
    const std::vector<Item> items = selected(phase, setup, only);
    if (items.empty()) continue;
    std::printf("%s: %s (at most %.0f s)\n", phase.name, phase.answers, phase.seconds);
    for (const Item& item : items) {
      std::printf("  %s | %s %s\n", item.words.c_str(), item.backend.c_str(), item.variant.c_str());
    }
  }
}

int wrong(const Status& status, ExitStatus exit_status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return exit_status;
}

int run_all(const Options& options, const Setup& setup) {
  RunId id{build_id(setup.program), "rehearsal"};
  if (!options.rehearse) {
    const Env env = with_devices(read_env());
    if (env.cuda_devices.empty()) {
      std::fputs("[gpu_check] no CUDA device; --rehearse runs every phase without one\n", stderr);
      return kNoDevice;
    }
    id.device = env.device_name;
  }
  ResultsFile results;
  Status status = results.open(options.out + ".jsonl");
  if (status.ok()) status = run_phases(options, setup, id, &results);
  if (!status.ok()) return wrong(status, kNoResults);
  const std::vector<JsonLine> lines = lines_of(results, id);
  std::ofstream report(options.out + ".md");
  report << markdown(lines, options.rehearse) << std::flush;
  if (!report) {
    std::fprintf(stderr, "[gpu_check] report (%s.md) cannot be written\n", options.out.c_str());
    return kNoResults;
  }
  return failures(lines) == 0 ? kPassed : kFailed;
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 1 && (words[0] == "--help" || words[0] == "-h")) {
    std::fputs(kUsage, stdout);
    return kPassed;
  }
  const Expected<Options> options = parse_options(words);
  if (!options) {
    std::fprintf(stderr, "%s\n%s", options.status().message().c_str(), kUsage);
    return kWrongUse;
  }
  const Setup setup = make_setup(*options);
  if (!options->child.empty()) return run_child(options->child, setup);
  if (Status status = check_filter(setup, options->only); !status.ok()) {
    return wrong(status, kWrongUse);
  }
  if (options->list) {
    print_list(setup, options->only);
    return kPassed;
  }
  return run_all(*options, setup);
}

}  // namespace
}  // namespace regard::gpu_check

int main(int argc, char** argv) {
  try {
    return regard::gpu_check::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[gpu_check] %s\n", error.what());
    return regard::gpu_check::kFailed;
  }
}
