#pragma once

#include <string>
#include <vector>

#include "regard/status.h"

namespace regard::gpu_check {

/// What --only names. An empty list names everything.
struct Filter {
  std::vector<std::string> phases, backends, cases;  // cases: parts of their words
};

struct Options {
  double seconds = 540;
  double phase_seconds = 0;  // 0: each phase's own limit
  double case_seconds = 0;   // 0: the phase's own
  long cases = 2000;
  std::string out = "gpu_check";
  std::string python = "python3";
  bool rehearse = false;
  bool list = false;
  std::string child;  // the phase that this process runs for its parent
  Filter only;
};

/// The options, or an error that names the option, its value and what is expected.
Expected<Options> parse_options(const std::vector<std::string>& words);

extern const char* const kUsage;

}  // namespace regard::gpu_check
