#pragma once

#include <nanobind/nanobind.h>

#include <nanobind/stl/string.h>

#include <optional>
#include <vector>

#include "regard/policy.h"

namespace regard::python {

/// regard.Policy and the scopes that regard.use_policy opens.
void bind_policy(nanobind::module_& module);

/// The value of a regard.Policy, or null for any other object.
const Policy* policy_in(PyObject* object) noexcept;

/// A backend's name; raises naming the argument.
BackendRef read_backend(PyObject* object, const char* name);

/// One name, or a list or tuple of them; raises naming the argument.
std::vector<BackendRef> read_backends(nanobind::handle object, const char* name);

/// `policy=` and `backends=` of a call, null where one was not given, as one policy.
Policy read_policy(PyObject* given_policy, PyObject* given_backends);

/// The scopes of the caller's contextvars context, opened on this thread for as long as it lives. A
/// call never awaits, so the C++ stack of scopes, which is the thread's, holds nobody else's.
class AmbientScopes {
 public:
  AmbientScopes();

 private:
  std::optional<ScopedPolicy> open_;
};

}  // namespace regard::python
