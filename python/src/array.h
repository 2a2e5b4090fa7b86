#pragma once

#include "errors.h"
#include "numpy_api.h"
#include "regard/tensor.h"

namespace regard::python {

/// Somebody's memory as a NumPy array. bf16 may stand in a uint16 array, floats of 8 bits in uint8:
/// NumPy alone has no such types, so `dtype` is the one that counts.
struct Array {
  PyArrayObject* array = nullptr;
  Dtype dtype = Dtype::kF32;
  nb::object owner;  // keeps `array` alive; null where the caller's own argument does
};

inline constexpr const char* kArrayTypes =
    "one that regard has: float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, bool, "
    "int32 or int64";

/// A NumPy array as it is, or a view of an object with __dlpack__ on a CPU. Raises for everything
/// else, naming the argument. `types`: what a message says of the dtype.
Array array_from(PyObject* object, const char* name, const char* types = kArrayTypes);

/// True where the object is a NumPy array or offers DLPack.
bool is_array(PyObject* object);

/// "float32 (2, 8, 128, 64)", for messages.
std::string describe_array(const Array& array);

/// The NumPy type number that stores a Dtype: unsigned integers for the bits of what NumPy lacks.
int typenum_of(Dtype dtype);

/// The same of a result beside an argument: where that is a NumPy array, ml_dtypes' types.
int typenum_beside(PyObject* like, Dtype dtype);

/// A new C-ordered array, its elements not set.
nb::object new_array(int rank, const npy_intp* shape, int typenum);

/// A copy with elements of that type: C-ordered, native, aligned.
nb::object converted(const Array& array, int typenum);

/// A result as the kind of `like`: NumPy stays, torch and array-API libraries get their own.
nb::object as_kind_of(PyObject* like, const nb::object& array, Dtype dtype);

}  // namespace regard::python
