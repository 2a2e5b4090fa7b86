#pragma once

#include <nanobind/nanobind.h>

namespace regard::python {

/// attention and explain.
void bind_attention(nanobind::module_& module);

}  // namespace regard::python
