#pragma once

#include <nanobind/nanobind.h>

namespace regard::python {

/// Attention over ranks: regard::distributed with messages that Python sends.
void bind_ranks(nanobind::module_& module);

}  // namespace regard::python
