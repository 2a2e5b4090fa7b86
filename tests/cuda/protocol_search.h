#pragma once

#include <cstdint>
#include <string>

#include "tests/cuda/host_wgmma.h"

namespace regard::cuda_test {

/// What was found in all orders of a block's events.
struct SearchResult {
  std::string fault;  // "": none
  std::int64_t states = 0;
};

/// Runs the events of a block's warpgroups in every order that barriers allow, and lets copies land
/// in every order. Faults: no one can go on; a product before its copy has landed, or of another
/// tile; a copy into what some warpgroup has still to read; a wait that a phase other than its own
/// ends; an arrival too many; copies that nobody waits for. A warpgroup is taken as one: its four
/// warps arrive together, and its boxes of one tile are one copy.
SearchResult search_protocol(const Trace& trace);

}  // namespace regard::cuda_test
