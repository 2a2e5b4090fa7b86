#pragma once

// NumPy's C interface: reading an array's fields costs nothing, the buffer protocol and DLPack cost
// some hundred nanoseconds an array. module.cc imports it; every other file shares its table.
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL regard_numpy_api
#ifndef REGARD_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif

#include <Python.h>
#include <numpy/arrayobject.h>
