#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "regard/selection.h"

namespace regard::python {

/// A regard.Selection: the table, the JSON, what the binding had to copy, and the plan (None where
/// there is none).
nanobind::object python_selection(const Selection& selection, const std::vector<std::string>& notes,
                                  nanobind::object plan);

}  // namespace regard::python
