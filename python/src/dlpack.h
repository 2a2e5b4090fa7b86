#pragma once

#include <nanobind/ndarray.h>

#include "array.h"

namespace regard::python {

/// A view of an object with __dlpack__. Raises where its memory is not a CPU's, its type is none
/// that regard has, or it is a tensor whose gradient would be lost.
Array array_from_dlpack(PyObject* object, const char* name);

/// An object with __dlpack__ over the memory of a C-ordered NumPy array, with that element type.
nb::object dlpack_export(const nb::object& array, nb::dlpack::dtype dtype);

/// The same memory as a tensor of the library that `like` is of, by DLPack's C functions; null
/// where that library has none.
nb::object exchanged(PyObject* like, const nb::object& array, nb::dlpack::dtype dtype);

}  // namespace regard::python
