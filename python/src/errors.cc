#include "errors.h"

#include <new>

#include "python_selection.h"
#include "regard/selection.h"

namespace regard::python {
namespace {

[[noreturn]] void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

PyObject* type_of(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOverflow:
    case StatusCode::kNotFound: return PyExc_ValueError;
    case StatusCode::kWorkspace:
    case StatusCode::kOutOfMemory: return PyExc_MemoryError;
    default: return PyExc_RuntimeError;
  }
}

}  // namespace

void raise_type(const std::string& message) { raise(PyExc_TypeError, message); }
void raise_value(const std::string& message) { raise(PyExc_ValueError, message); }
void raise_not_implemented(const std::string& message) {
  raise(PyExc_NotImplementedError, message);
}

void raise_status(const Status& status) {
  if (const auto selection = status.selection(); selection != nullptr) {
    const nb::object type = nb::module_::import_("regard._errors").attr("NoBackendError");
    const nb::object error = type(status.message(), python_selection(*selection));
    PyErr_SetObject(type.ptr(), error.ptr());
    throw nb::python_error();
  }
  raise(type_of(status.code()), status.message());
}

void clear_error() {
  nb::python_error error;
  if (!error.matches(PyExc_Exception)) throw error;
}

std::string repr(PyObject* object) {
  constexpr std::size_t kLongest = 80;
  const nb::object text = nb::steal(PyObject_Repr(object));
  if (!text.is_valid()) {
    clear_error();
    return Py_TYPE(object)->tp_name;
  }
  std::string result = nb::str(text).c_str();
  if (result.size() <= kLongest) return result;
  // Cut between characters: a byte 10xxxxxx continues one.
  std::size_t length = kLongest;
  while (length > 0 && (static_cast<unsigned char>(result[length]) & 0xc0u) == 0x80u) --length;
  return result.substr(0, length) + "...";
}

PyObject* set_error_of_exception() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace regard::python
