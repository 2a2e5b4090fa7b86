#pragma once

#include <optional>
#include <vector>

#include "conformance/compare.h"
#include "conformance/compare_gradients.h"
#include "tools/regard/output.h"
#include "tools/regard/profile.h"
#include "tools/regard/run_backend.h"
#include "tools/regard/run_gradients.h"
#include "tools/regard/run_input.h"

namespace regard::cli {

/// A backend's run with what was found out about it.
struct Checked {
  BackendRun run;
  std::optional<conformance::Comparison> comparison;  // none with --no-check
  PaddingCheck padding;
  std::optional<Profile> profile;                        // with --profile
  std::optional<GradRun> back;                           // with --grad
  std::optional<conformance::GradComparison> gradients;  // of it; none with --no-check

  bool ok() const {
    return (!comparison || comparison->ok) && padding.wrong == 0 && (!gradients || gradients->ok);
  }
};

/// Prints errors, times, padding, gradients, how far the backends agree and profiles, and puts them
/// into the document.
/// False when a result is outside of its tolerance or padding is not zero.
bool show_results(Output& output, const RunInput& input, const std::vector<Checked>& results);

}  // namespace regard::cli
