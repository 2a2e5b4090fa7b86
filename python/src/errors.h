#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "regard/status.h"

namespace regard::python {

namespace nb = nanobind;

// Each sets a Python error and throws nb::python_error.
[[noreturn]] void raise_type(const std::string& message);
[[noreturn]] void raise_value(const std::string& message);
[[noreturn]] void raise_not_implemented(const std::string& message);

/// A failed Status as the Python error of its kind; regard.NoBackendError carries the selection.
[[noreturn]] void raise_status(const Status& status);

/// Clears the Python error that is set, but throws one that no caller may swallow:
/// KeyboardInterrupt, SystemExit.
void clear_error();

/// repr(object), shortened to what fits a message.
std::string repr(PyObject* object);

/// The error that a C++ exception in flight stands for is set; for functions that nanobind does not
/// wrap. Returns null.
PyObject* set_error_of_exception() noexcept;

/// The result of f() as a new reference, or null with a Python error set.
template <class F>
PyObject* guarded(F&& f) noexcept {
  try {
    return f().release().ptr();
  } catch (...) {
    return set_error_of_exception();
  }
}

}  // namespace regard::python
