#pragma once

#include <nanobind/nanobind.h>

namespace regard::python {

/// What regard.benchmark is made of: plan_benchmark and the Measurement that it returns.
void bind_benchmark(nanobind::module_& module);

}  // namespace regard::python
