#pragma once

#include "tools/regard/output.h"
#include "tools/regard/profile.h"
#include "tools/regard/run_input.h"

namespace regard::cli {

/// The profile as it stands in the document.
Json json_of(const Profile& profile, const RunInput& input);

/// Its table: the stages, the workers, the rates.
void print_profile(Output& output, const Profile& profile, const BackendRun& run,
                   const RunInput& input);

}  // namespace regard::cli
