#pragma once

#include <string>
#include <vector>

#include "tools/gpu_check/phase.h"

// A phase's process: it takes cases from its standard input, a JSON line each, and prints for the
// i-th of them "begin i" and then its result as a JSON line; or "missing WHY" and ends. The scripts
// of Python do the same.

namespace regard::gpu_check {

/// The exit status of a child that lost its device: another process goes on.
inline constexpr int kLostDevice = 9;

JsonLine to_line(const Item& item);
Item to_item(const JsonLine& line);

/// Runs the phase of that name; the exit status.
int run_child(const std::string& phase, const Setup& setup);

}  // namespace regard::gpu_check
