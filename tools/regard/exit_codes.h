#pragma once

namespace regard::cli {

/// What the program returns to its caller (docs/cli.md). An interrupted run exits with 128 +
/// signal.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,    // a check failed, or the system refused (disk full)
  kExitUsage = 2,     // bad usage or input
  kExitNoBackend = 3  // no backend can run the problem
};

struct ExitMeaning {
  const char* code;
  const char* meaning;
};
inline constexpr ExitMeaning kExitMeanings[] = {
    {"0", "Everything went well."},
    {"1", "A check failed, or the system refused: a full disk, memory that could not be had."},
    {"2", "The line or its input is wrong."},
    {"3", "No backend can run the problem; every reason is printed."},
    {"130", "Interrupted by SIGINT (143 by SIGTERM, 129 by SIGHUP)."}};

}  // namespace regard::cli
