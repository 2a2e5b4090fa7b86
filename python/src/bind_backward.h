#pragma once

#include <nanobind/nanobind.h>

namespace regard::python {

/// regard.attention_backward.
void bind_backward(nanobind::module_& module);

}  // namespace regard::python
