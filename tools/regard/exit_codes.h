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

}  // namespace regard::cli
