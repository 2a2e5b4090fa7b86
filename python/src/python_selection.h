#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "regard/plan.h"
#include "regard/selection.h"

namespace regard::python {

/// A regard.Selection: the tables, the JSON, what the binding had to copy, and the plan (null where
/// there is none).
nanobind::object python_selection(const Selection& selection,
                                  const std::vector<std::string>& notes = {},
                                  const Plan* plan = nullptr);

}  // namespace regard::python
