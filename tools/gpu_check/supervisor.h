#pragma once

#include <string>
#include <vector>

#include "tools/gpu_check/options.h"
#include "tools/gpu_check/phase.h"
#include "tools/gpu_check/results_file.h"

namespace regard::gpu_check {

/// What results belong to: those of another program or device are kept and not counted.
struct RunId {
  std::string build;   // of the program's and its scripts' bytes
  std::string device;  // its name, or "rehearsal"
};

/// The cases of a phase that --only leaves.
std::vector<Item> selected(const Phase& phase, const Setup& setup, const Filter& only);
/// An error where --only names a phase, a backend or a case that is not there.
Status check_filter(const Setup& setup, const Filter& only);

/// Runs every phase in processes of their own, each with its time limit, and appends what they
/// report. A case that crashes or hangs is a result, and another process goes on behind it. An
/// error where the results cannot be written.
Status run_phases(const Options& options, const Setup& setup, const RunId& id,
                  ResultsFile* results);

/// The lines of that run, the last one of each case and phase, in their order.
std::vector<JsonLine> lines_of(const ResultsFile& results, const RunId& id);

}  // namespace regard::gpu_check
