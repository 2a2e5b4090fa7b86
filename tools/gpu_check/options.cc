#include "tools/gpu_check/options.h"

#include <cmath>
#include <cstdlib>
#include <sstream>

namespace regard::gpu_check {
namespace {

Status wrong(const std::string& option, const std::string& value, const std::string& expected) {
  return Status(StatusCode::kInvalidArgument,
                "[gpu_check] " + option + " (" + value + ") must be " + expected);
}

Status read_number(const std::string& option, const std::string& value, double min, double* out) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != 0 || !std::isfinite(number) || number < min || number > 1e6) {
    return wrong(option, value, "a number of " + std::string(min > 0 ? "1" : "0") + " to 1000000");
  }
  *out = number;
  return {};
}

/// "phase=a,b", "backend=a,b" or "case=words".
Status read_only(const std::string& value, Filter* only) {
  const auto equals = value.find('=');
  const std::string key = value.substr(0, equals);
  const std::string names = equals == value.npos ? "" : value.substr(equals + 1);
  if (names.empty() || (key != "phase" && key != "backend" && key != "case")) {
    return wrong("--only", value, "phase=NAME,..., backend=NAME,... or case=WORDS");
  }
  if (key == "case") {  // its words have commas
    only->cases.push_back(names);
    return {};
  }
  std::istringstream listed(names);
  for (std::string name; std::getline(listed, name, ',');) {
    (key == "phase" ? only->phases : only->backends).push_back(name);
  }
  return {};
}

Status read_option(const std::string& option, const std::string& value, Options* o) {
  double count = 0;
  if (option == "--seconds") return read_number(option, value, 1, &o->seconds);
  if (option == "--phase-seconds") return read_number(option, value, 1, &o->phase_seconds);
  if (option == "--case-seconds") return read_number(option, value, 1, &o->case_seconds);
  if (option == "--only") return read_only(value, &o->only);
  if (option == "--cases") {
    Status status = read_number(option, value, 0, &count);
    o->cases = static_cast<long>(count);
    return status;
  }
  if (value.empty()) return wrong(option, value, "a name");
  (option == "--out" ? o->out : option == "--python" ? o->python : o->child) = value;
  return {};
}

}  // namespace

const char* const kUsage =
    "usage: regard_gpu_check [option...]\n"
    "  --only phase=NAME,...    run these phases alone; also backend=NAME,... and case=WORDS, a "
    "part\n"
    "                           of a case's words; may be repeated\n"
    "  --out PREFIX             results to PREFIX.jsonl, the report to PREFIX.md [gpu_check]; "
    "cases that\n"
    "                           PREFIX.jsonl has of this program and device are not run again\n"
    "  --seconds N              for everything; what is not done then is left out [540]\n"
    "  --phase-seconds N        for each phase [the phase's own limit]\n"
    "  --case-seconds N         for each case [the phase's own limit]\n"
    "  --cases N                random cases, half of them with gradients [2000]\n"
    "  --python PROGRAM         runs the phases that need PyTorch [python3]\n"
    "  --rehearse               run every phase without a device: host memory and CPU backends "
    "stand in\n"
    "  --list                   print phases and cases, run nothing\n"
    "Exit status: 0 no case failed, 1 a case failed, crashed or timed out, 2 wrong use, 3 no "
    "device,\n"
    "4 the results cannot be read or written.\n";

Expected<Options> parse_options(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--rehearse") {
      options.rehearse = true;
    } else if (word == "--list") {
      options.list = true;
    } else {
      bool is_known = word == "--child";
      for (const char* known : {"--seconds", "--phase-seconds", "--case-seconds", "--cases",
                                "--out", "--python", "--only"}) {
        is_known = is_known || word == known;
      }
      if (!is_known) {
        return Status(StatusCode::kInvalidArgument, "[gpu_check] " + word + " is no option");
      }
      if (i + 1 == words.size()) {
        return Status(StatusCode::kInvalidArgument, "[gpu_check] " + word + " needs a value");
      }
      Status status = read_option(word, words[++i], &options);
      if (!status.ok()) return status;
    }
  }
  return options;
}

}  // namespace regard::gpu_check
