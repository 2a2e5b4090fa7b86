#pragma once

#include <string>
#include <vector>

#include "tools/gpu_check/json_line.h"

namespace regard::gpu_check {

/// Of a run's lines, for people: a table of the phases, then one of each phase's cases.
std::string markdown(const std::vector<JsonLine>& lines, bool rehearse);

/// How many cases failed, crashed or timed out.
long failures(const std::vector<JsonLine>& lines);

}  // namespace regard::gpu_check
