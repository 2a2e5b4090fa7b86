#pragma once

#include <nanobind/nanobind.h>

namespace regard::python {

/// Facts: backends, environment, counters.
void bind_info(nanobind::module_& module);

}  // namespace regard::python
