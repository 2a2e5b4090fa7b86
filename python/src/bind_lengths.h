#pragma once

#include "errors.h"
#include "regard/lengths.h"

namespace regard::python {

/// Raises TypeError where the object is no regard.Lengths.
const Lengths& read_lengths(PyObject* object, const char* name);

void bind_lengths(nb::module_& module);

}  // namespace regard::python
