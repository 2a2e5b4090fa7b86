#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <utility>

namespace regard::python {

// Before Python 3.14 a thread that requests the GIL while the interpreter ends is ended by
// unwinding its stack. Unwinding passes functions that may not be left so, and destructors that
// need the GIL: the process aborts. Here such a thread waits until the process has ended, as of
// Python 3.14.

/// In a function that the compiler lets unwind: not noexcept, nor a destructor that is.
class WaitWhereUnwound {
 public:
  WaitWhereUnwound() = default;
  ~WaitWhereUnwound() {
    while (!is_past_) pause();
  }
  WaitWhereUnwound(const WaitWhereUnwound&) = delete;
  WaitWhereUnwound& operator=(const WaitWhereUnwound&) = delete;
  void pass() noexcept { is_past_ = true; }

 private:
  bool is_past_ = false;
};

/// Releases the GIL in its scope.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() noexcept(false) {
    WaitWhereUnwound wait;
    PyEval_RestoreThread(state_);
    wait.pass();
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

/// Takes the GIL in its scope, on a thread that has released it.
class GilAcquire {
 public:
  GilAcquire() {
    WaitWhereUnwound wait;
    state_ = PyGILState_Ensure();
    wait.pass();
  }
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

/// The result of `call`, one function of Python's C API that runs Python code and returns a new
/// reference; its error is thrown.
template <class Call>
nanobind::object run_python(Call&& call) {
  WaitWhereUnwound wait;
  PyObject* const result = std::forward<Call>(call)();
  wait.pass();
  if (result == nullptr) throw nanobind::python_error();
  return nanobind::steal(result);
}

/// module.function(arguments...); `format` is that of PyObject_CallFunction.
template <class... Arguments>
nanobind::object run_function(const char* module, const char* function, const char* format,
                              Arguments... arguments) {
  const nanobind::object found = run_python([&] { return PyImport_ImportModule(module); });
  return run_python(
      [&] { return PyObject_CallMethod(found.ptr(), function, format, arguments...); });
}

}  // namespace regard::python
