#pragma once

#include <nanobind/nanobind.h>

namespace regard::python {

/// record, freeze, replay and diff: what a program calls, and decisions as text.
void bind_frozen(nanobind::module_& module);

}  // namespace regard::python
