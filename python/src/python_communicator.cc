#include "python_communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "errors.h"
#include "gil.h"

namespace regard::python {

using distributed::Clock;
using distributed::Transfer;

PythonCommunicator::PythonCommunicator(nb::object link)
    : link_(std::move(link)),
      rank_(nb::cast<int>(link_.attr("rank"))),
      size_(nb::cast<int>(link_.attr("size"))) {}

Expected<Transfer> PythonCommunicator::isend(int to, int tag, std::span<const std::byte> data) {
  // Transports take writable buffers alone, and read this one.
  return begin("isend", to, tag, {const_cast<std::byte*>(data.data()), data.size()});
}

Expected<Transfer> PythonCommunicator::irecv(int from, int tag, std::span<std::byte> data) {
  return begin("irecv", from, tag, data);
}

Expected<Transfer> PythonCommunicator::begin(const char* method, int peer, int tag,
                                             std::span<std::byte> data) {
  const GilAcquire locked;
  try {
    const nb::object view = nb::steal(PyMemoryView_FromMemory(
        reinterpret_cast<char*>(data.data()), static_cast<Py_ssize_t>(data.size()), PyBUF_WRITE));
    if (!view.is_valid()) throw nb::python_error();
    nb::object transfer = run_python(
        [&] { return PyObject_CallMethod(link_.ptr(), method, "iiO", peer, tag, view.ptr()); });
    open_.emplace(next_, std::move(transfer));
    return next_++;
  } catch (const nb::python_error& error) {
    return failed(error);
  }
}

Status PythonCommunicator::wait(Transfer transfer, Clock::time_point deadline) {
  const GilAcquire locked;
  const auto found = open_.find(transfer);
  if (found == open_.end()) return Status(StatusCode::kInternal, "no such transfer");
  try {
    const std::chrono::duration<double> left = deadline - Clock::now();
    run_python([&] {
      return PyObject_CallMethod(link_.ptr(), "wait", "Od", found->second.ptr(),
                                 std::max(left.count(), 0.0));
    });
  } catch (const nb::python_error& error) {
    return failed(error);
  }
  open_.erase(found);
  return {};
}

void PythonCommunicator::abandon() noexcept {
  const nb::gil_scoped_acquire locked;
  const nb::error_scope kept;  // of a signal's handler, which the call's end raises
  open_.clear();
}

/// Nothing of the error remains but its text, or itself: its frames hold transfers, whose memory
/// the call frees.
Status PythonCommunicator::failed(const nb::python_error& error) {
  if (error.matches(PyExc_RuntimeError)) {
    return Status(StatusCode::kUnavailable, nb::str(error.value()).c_str());
  }
  raised_ = nb::borrow(error.value());
  PyException_SetTraceback(raised_.ptr(), Py_None);
  return Status(StatusCode::kInterrupted, "an exception of Python");
}

void PythonCommunicator::rethrow() {
  if (!raised_.is_valid()) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised_.ptr())), raised_.ptr());
  raised_.reset();
  throw nb::python_error();
}

}  // namespace regard::python
