#include "array.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "dlpack.h"

namespace regard::python {
namespace {

constexpr const char* kAcceptedArrays = "a NumPy array or an object with __dlpack__ on a CPU";

// ml_dtypes registers its types with NumPy when it is imported; the numbers they get are the
// process's.
struct Registered {
  const char* name;
  Dtype dtype;
  nb::dlpack::dtype_code code;
  std::atomic<int> typenum{-1};
};
Registered registered[] = {{"bfloat16", Dtype::kBf16, nb::dlpack::dtype_code::Bfloat},
                           {"float8_e4m3fn", Dtype::kF8E4M3, kFloat8E4M3Fn},
                           {"float8_e5m2", Dtype::kF8E5M2, kFloat8E5M2}};

Registered* find_registered(Dtype dtype) {
  for (Registered& type : registered) {
    if (type.dtype == dtype) return &type;
  }
  return nullptr;
}

/// False where the array's type is none of them.
bool registered_dtype_of(PyArrayObject* array, int typenum, Dtype* dtype) {
  if (typenum < NPY_USERDEF) return false;
  for (const Registered& type : registered) {
    if (type.typenum.load(std::memory_order_relaxed) != typenum) continue;
    *dtype = type.dtype;
    return true;
  }
  const char* name = PyArray_DESCR(array)->typeobj->tp_name;
  const char* dot = std::strrchr(name, '.');
  for (Registered& type : registered) {
    if (std::strcmp(dot == nullptr ? name : dot + 1, type.name) != 0) continue;
    type.typenum.store(typenum, std::memory_order_relaxed);
    *dtype = type.dtype;
    return true;
  }
  return false;
}

std::string shape_of(PyArrayObject* array) {
  std::string text = "(";
  for (int i = 0; i < PyArray_NDIM(array); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(PyArray_DIM(array, i));
  }
  return text + ")";
}

/// False where regard has no such type.
bool dtype_of(PyArrayObject* array, Dtype* dtype) {
  const int typenum = PyArray_TYPE(array);
  switch (typenum) {
    case NPY_FLOAT: *dtype = Dtype::kF32; return true;
    case NPY_DOUBLE: *dtype = Dtype::kF64; return true;
    case NPY_HALF: *dtype = Dtype::kF16; return true;
    case NPY_BOOL: *dtype = Dtype::kBool; return true;
    case NPY_BYTE: *dtype = Dtype::kI8; return true;
    case NPY_UBYTE: *dtype = Dtype::kU8; return true;
    case NPY_INT: *dtype = Dtype::kI32; return true;
    case NPY_LONG:
    case NPY_LONGLONG: *dtype = Dtype::kI64; return true;
    default: return registered_dtype_of(array, typenum, dtype);
  }
}

// A masked array's mask would be dropped without a word.
void refuse_masked(PyObject* object, const char* name) {
  if (PyArray_CheckExact(object)) return;
  const nb::object masked = nb::module_::import_("numpy.ma").attr("MaskedArray");
  if (PyObject_IsInstance(object, masked.ptr()) == 1) {
    raise_type(std::string(name) +
               " (a masked array) must be a plain array, or its mask is lost; pass " + name +
               ".filled(...) and an attn_mask");
  }
}

/// torch, where `object` is one of its tensors; it is imported already, then.
nb::object torch_of(PyObject* object) {
  const char* type = Py_TYPE(object)->tp_name;
  const nb::object module =
      nb::getattr(nb::handle((PyObject*)Py_TYPE(object)), "__module__", nb::none());
  const bool torch = nb::isinstance<nb::str>(module) &&
                     std::strncmp(nb::borrow<nb::str>(module).c_str(), "torch", 5) == 0;
  if (!torch && std::strcmp(type, "Tensor") != 0) return {};
  PyObject* const modules = PyImport_GetModuleDict();
  PyObject* const found = PyDict_GetItemString(modules, "torch");
  if (found == nullptr) return {};
  const nb::object tensor = nb::getattr(nb::handle(found), "Tensor", nb::none());
  if (PyObject_IsInstance(object, tensor.ptr()) != 1) {
    PyErr_Clear();
    return {};
  }
  return nb::borrow(found);
}

nb::dlpack::dtype dlpack_dtype(Dtype dtype) {
  const Registered* const type = find_registered(dtype);
  auto code = type != nullptr ? type->code : nb::dlpack::dtype_code::Float;
  switch (dtype) {
    case Dtype::kBool: code = nb::dlpack::dtype_code::Bool; break;
    case Dtype::kU8: code = nb::dlpack::dtype_code::UInt; break;
    case Dtype::kI8:
    case Dtype::kI32:
    case Dtype::kI64: code = nb::dlpack::dtype_code::Int; break;
    default: break;
  }
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
}

nb::object import_type(const Registered& type) {
  try {
    return nb::module_::import_("ml_dtypes").attr(type.name);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ImportError)) throw;
  }
  raise_type(std::string("a ") + type.name +
             " result as a NumPy array needs the package ml_dtypes");
}

}  // namespace

bool is_array(PyObject* object) {
  return PyArray_Check(object) || PyObject_HasAttrString(object, "__dlpack__") == 1;
}

Array array_from(PyObject* object, const char* name, const char* types) {
  Array result;
  if (PyArray_Check(object)) {
    refuse_masked(object, name);
    result.array = reinterpret_cast<PyArrayObject*>(object);
    if (dtype_of(result.array, &result.dtype)) return result;
    raise_type("dtype of " + std::string(name) + " (" +
               nb::str(nb::handle((PyObject*)PyArray_DESCR(result.array))).c_str() + ") must be " +
               types);
  }
  if (PyObject_HasAttrString(object, "__dlpack__") == 1) return array_from_dlpack(object, name);
  raise_type(std::string(name) + " (" + Py_TYPE(object)->tp_name + ") must be " + kAcceptedArrays);
}

std::string describe_array(const Array& array) {
  const Registered* const type = find_registered(array.dtype);
  const char* name = type != nullptr ? type->name : "?";
  switch (array.dtype) {
    case Dtype::kF64: name = "float64"; break;
    case Dtype::kF32: name = "float32"; break;
    case Dtype::kF16: name = "float16"; break;
    case Dtype::kBool: name = "bool"; break;
    case Dtype::kI8: name = "int8"; break;
    case Dtype::kU8: name = "uint8"; break;
    case Dtype::kI32: name = "int32"; break;
    case Dtype::kI64: name = "int64"; break;
    default: break;
  }
  return std::string(name) + " " + shape_of(array.array);
}

int typenum_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return NPY_DOUBLE;
    case Dtype::kF32: return NPY_FLOAT;
    case Dtype::kF16: return NPY_HALF;
    default: break;
  }
  return size_of(dtype) == 1 ? NPY_UINT8 : NPY_UINT16;
}

int typenum_beside(PyObject* like, Dtype dtype) {
  Registered* const type = find_registered(dtype);
  if (type == nullptr || !PyArray_Check(like)) return typenum_of(dtype);
  const int known = type->typenum.load(std::memory_order_relaxed);
  if (known >= 0) return known;
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(import_type(*type).ptr(), &descr) != NPY_SUCCEED) {
    throw nb::python_error();
  }
  const int typenum = descr->type_num;
  Py_DECREF(descr);
  type->typenum.store(typenum, std::memory_order_relaxed);
  return typenum;
}

nb::object new_array(int rank, const npy_intp* shape, int typenum) {
  PyObject* const made = PyArray_EMPTY(rank, shape, typenum, 0);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object converted(const Array& array, int typenum) {
  constexpr int kFlags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | NPY_ARRAY_NOTSWAPPED |
                         NPY_ARRAY_FORCECAST | NPY_ARRAY_ENSURECOPY;
  const bool bits = array.dtype == Dtype::kBf16 && PyArray_TYPE(array.array) == NPY_UINT16;
  // FromArray takes the reference to the type.
  PyObject* const made =
      PyArray_FromArray(array.array, PyArray_DescrFromType(bits ? NPY_UINT16 : typenum), kFlags);
  if (made == nullptr) throw nb::python_error();
  nb::object copy = nb::steal(made);
  if (!bits || typenum == NPY_UINT16) return copy;
  nb::object wide = new_array(PyArray_NDIM(array.array), PyArray_DIMS(array.array), NPY_FLOAT);
  auto* const to = reinterpret_cast<PyArrayObject*>(wide.ptr());
  const auto* from =
      static_cast<const std::uint16_t*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(copy.ptr())));
  std::transform(from, from + PyArray_SIZE(to), static_cast<float*>(PyArray_DATA(to)),
                 f32_from_bf16);
  return wide;
}

nb::object as_kind_of(PyObject* like, const nb::object& array, Dtype dtype) {
  if (PyArray_Check(like)) return array;
  if (nb::object made = exchanged(like, array, dlpack_dtype(dtype)); made.is_valid()) return made;
  nb::object library = torch_of(like);
  if (!library.is_valid() && PyObject_HasAttrString(like, "__array_namespace__") == 1) {
    library = nb::handle(like).attr("__array_namespace__")();
  }
  if (!library.is_valid()) {
    const Registered* const type = find_registered(dtype);
    return type != nullptr ? nb::object(array.attr("view")(import_type(*type))) : array;
  }
  return library.attr("from_dlpack")(dlpack_export(array, dlpack_dtype(dtype)));
}

}  // namespace regard::python
