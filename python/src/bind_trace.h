#pragma once

#include <nanobind/nanobind.h>

namespace regard::python {

void bind_trace(nanobind::module_& module);

}  // namespace regard::python
