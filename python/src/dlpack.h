#pragma once

#include <nanobind/ndarray.h>

#include <vector>

#include "array.h"

namespace regard::python {

// DLPack's codes of 8-bit floats, which not every nanobind names.
inline constexpr auto kFloat8E4M3Fn = static_cast<nb::dlpack::dtype_code>(10);
inline constexpr auto kFloat8E5M2 = static_cast<nb::dlpack::dtype_code>(12);

/// A view of an object with __dlpack__. Raises where its memory is not a CPU's, its type is none
/// that regard has, or it is a tensor whose gradient would be lost.
Array array_from_dlpack(PyObject* object, const char* name);

/// The same as a view, of a CPU's or a CUDA device's memory, with the strides that it has. `owners`
/// keeps the memory alive. A gradient that the tensor wants is the caller's to record.
TensorView view_from_dlpack(PyObject* object, const char* name, std::vector<nb::object>* owners);

/// An object with __dlpack__ over the memory of a C-ordered NumPy array, with that element type.
nb::object dlpack_export(const nb::object& array, nb::dlpack::dtype dtype);

/// The same memory as a tensor of the library that `like` is of, by DLPack's C functions; null
/// where that library has none.
nb::object exchanged(PyObject* like, const nb::object& array, nb::dlpack::dtype dtype);

}  // namespace regard::python
