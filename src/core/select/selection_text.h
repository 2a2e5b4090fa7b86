#pragma once

#include <string>

#include "regard/selection.h"

namespace regard {

/// What to change so that something runs: "reduce head_dim_qk to 576 to run flash, or allow math".
/// "" where a backend is chosen, and where no change of case or policy helps.
std::string advice(const Selection& selection);

/// The case with every reason that the table shows, in one line.
std::string no_backend_message(const Selection& selection);

}  // namespace regard
