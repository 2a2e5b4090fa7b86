#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>

#include "inputs.h"
#include "regard/policy.h"
#include "regard/request.h"

namespace regard::python {

/// What a backward needs of its forward: regard.Saved. A plan is there where a forward of this
/// process made it; a pickled one, or one that a caller made of an lse, has at most a backend's
/// name.
struct Saved {
  nb::object stats;  // an array of the caller's kind
  SavedContext::Kind kind = SavedContext::Kind::kNone;
  std::uint64_t rng_seed = 0, rng_offset = 0;
  Plan plan;
  std::optional<BackendRef> backend;
  std::optional<double> max_error;  // of the forward's policy: on a CPU it chooses the kernels, too
  std::string layer;                // of the forward, where it was traced
};

/// The rules of a plan, as `regard explain --json` gives them.
nb::dict plan_fields(const KernelPlan& kernel);

void bind_saved(nb::module_& module);

}  // namespace regard::python
