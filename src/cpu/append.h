#pragma once

#include <cstdint>

#include "problem/problem.h"
#include "regard/backend.h"

namespace regard::cpu {

/// Writes the rows of k_new and v_new behind those that each sequence has in K and V, before any of
/// them is read. Nothing is done where a call appends nothing.
void append_keys(const problem::Problem& problem, std::int32_t workers, const Launch& launch);

}  // namespace regard::cpu
