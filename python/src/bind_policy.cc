#include "bind_policy.h"

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "errors.h"

namespace regard::python {
namespace {

using nb::literals::operator""_a;

PyObject* scopes_variable;  // the ContextVar; its value is a Scopes

/// The policies of all scopes that are open in a contextvars context.
struct Scopes {
  CapturedPolicy captured;
};

constexpr const char* kFields =
    "only, deny, prefer, require, max_error, max_workspace_bytes, on_fallback, assume_finite, "
    "self_check, self_check_deny, self_check_dir";

Determinism read_require(PyObject* object) {
  constexpr const char* kAccepted =
      "'none', 'run_to_run', 'thread_count_invariant' or 'batch_invariant'";
  const auto level = parse_determinism(read_text(object, "require", kAccepted));
  if (!level) raise_value("require (" + repr(object) + ") must be " + kAccepted);
  return *level;
}

OnFallback read_on_fallback(PyObject* object) {
  constexpr const char* kAccepted = "'allow', 'warn' or 'error'";
  const std::string word = read_text(object, "on_fallback", kAccepted);
  for (const OnFallback value : {OnFallback::kAllow, OnFallback::kWarn, OnFallback::kError}) {
    if (word == to_string(value)) return value;
  }
  raise_value("on_fallback (" + repr(object) + ") must be " + kAccepted);
}

void set_field(Policy& policy, const std::string& name, nb::handle value) {
  PyObject* const object = value.ptr();
  if (name == "only") {
    policy.only = read_backends(value, "only");
  } else if (name == "deny") {
    policy.deny = read_backends(value, "deny");
  } else if (name == "prefer") {
    policy.prefer = read_backends(value, "prefer");
  } else if (name == "require") {
    policy.require = read_require(object);
  } else if (name == "max_error") {
    policy.max_error = read_double(object, "max_error");
  } else if (name == "max_workspace_bytes") {
    policy.max_workspace_bytes = read_int64(object, "max_workspace_bytes");
  } else if (name == "on_fallback") {
    policy.on_fallback = read_on_fallback(object);
  } else if (name == "assume_finite") {
    policy.assume_finite = read_bool(object, "assume_finite");
  } else if (name == "self_check") {
    policy.self_check = read_int64(object, "self_check");
  } else if (name == "self_check_deny") {
    policy.self_check_deny = read_bool(object, "self_check_deny");
  } else if (name == "self_check_dir") {
    policy.self_check_dir = read_text(object, "self_check_dir", "a folder's name");
  } else {
    raise_type("Policy() got an unexpected keyword '" + name + "'; accepted are " + kFields);
  }
}

bool is_field(const std::string& name) {
  bool found = false;
  const Policy policy;
  for_each_policy_field(policy, [&](const char* field, const auto&) { found |= name == field; });
  return found;
}

Policy policy_from(const nb::dict& fields) {
  Policy policy;
  for (auto [name, value] : fields) {
    const std::string word = read_text(name.ptr(), "keyword of Policy()", kFields);
    // None is "not set"; under an unknown name it stays an error.
    if (!value.is_none() || !is_field(word)) set_field(policy, word, value);
  }
  if (const Status status = validate(policy, "Policy"); !status.ok()) raise_status(status);
  return policy;
}

nb::object backend_names(const std::vector<BackendRef>& refs) {
  nb::list names;
  for (const BackendRef& ref : refs) names.append(to_string(ref).c_str());
  return names;
}

nb::object python_value(const std::vector<BackendRef>& refs) { return backend_names(refs); }
nb::object python_value(double value) { return nb::float_(value); }
nb::object python_value(std::int64_t value) { return nb::int_(value); }
nb::object python_value(const std::string& value) { return nb::str(value.c_str()); }
nb::object python_value(bool value) { return nb::bool_(value); }
nb::object python_value(Determinism level) { return nb::str(to_string(level)); }
nb::object python_value(OnFallback value) { return nb::str(to_string(value)); }
template <class T>
nb::object python_value(const std::optional<T>& value) {
  return value.has_value() ? python_value(*value) : nb::none();
}

nb::dict fields_of(const Policy& policy) {
  nb::dict fields;
  for_each_policy_field(
      policy, [&](const char* name, const auto& value) { fields[name] = python_value(value); });
  return fields;
}

std::string repr_of(const Policy& policy) {
  std::string text;
  for (auto [name, value] : fields_of(policy)) {
    if (value.is_none() || (nb::isinstance<nb::list>(value) && nb::len(value) == 0 &&
                            std::string(nb::str(name).c_str()) == "deny")) {
      continue;
    }
    text += (text.empty() ? "" : ", ") + std::string(nb::str(name).c_str()) + "=" +
            nb::repr(value).c_str();
  }
  return "regard.Policy(" + text + ")";
}

/// The scopes `outer` (or none) with one more inside.
Scopes with_scope(nb::object outer, const Policy& policy, bool replace) {
  const CapturedPolicy before =
      outer.is_none() ? CapturedPolicy{} : nb::cast<const Scopes&>(outer).captured;
  const ScopedPolicy open(before);
  const ScopedPolicy inner(policy, replace ? ScopedPolicy::kReplace : ScopedPolicy::kNarrow);
  return {capture_policy()};
}

}  // namespace

const Policy* policy_in(PyObject* object) noexcept {
  const Policy* policy = nullptr;
  return nb::try_cast<const Policy*>(nb::handle(object), policy, false) ? policy : nullptr;
}

BackendRef read_backend(PyObject* object, const char* name) {
  constexpr const char* kAccepted =
      "a backend's name: 'math', 'flash', 'efficient', 'cudnn' or 'custom:<name>'";
  const auto ref = parse_backend(read_text(object, name, kAccepted));
  if (!ref) raise_value(std::string(name) + " (" + repr(object) + ") must be " + kAccepted);
  return *ref;
}

std::vector<BackendRef> read_backends(nb::handle object, const char* name) {
  if (PyUnicode_Check(object.ptr())) return {read_backend(object.ptr(), name)};
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) {
    raise_type(std::string(name) + " (" + repr(object.ptr()) +
               ") must be a backend's name or a list of names, as ['math', 'efficient']");
  }
  std::vector<BackendRef> refs;
  for (nb::handle item : nb::borrow<nb::sequence>(object)) {
    refs.push_back(read_backend(item.ptr(), name));
  }
  return refs;
}

Policy read_policy(PyObject* given_policy, PyObject* given_backends) {
  Policy policy;
  if (given_policy != nullptr) {
    const Policy* value = policy_in(given_policy);
    if (value == nullptr) {
      raise_type("policy (" + repr(given_policy) + ") must be a regard.Policy");
    }
    policy = *value;
  }
  if (given_backends != nullptr) {
    const std::vector<BackendRef> backends = read_backends(given_backends, "backends");
    if (backends.empty()) raise_value("backends ([]) must name at least one backend");
    // One name has no order: a policy's preferences may stay.
    const bool is_ordered = backends.size() > 1;
    if (policy.only.has_value() || (is_ordered && policy.prefer.has_value())) {
      raise_value("backends (" + repr(given_backends) + ") and policy." +
                  (policy.only.has_value() ? "only" : "prefer") + " were both given; expected one");
    }
    policy.only = backends;
    if (is_ordered) policy.prefer = backends;
  }
  return policy;
}

AmbientScopes::AmbientScopes() {
  PyObject* value = nullptr;
  if (PyContextVar_Get(scopes_variable, nullptr, &value) != 0) throw nb::python_error();
  if (value == nullptr) return;
  const nb::object scopes = nb::steal(value);
  if (!scopes.is_none()) open_.emplace(nb::cast<const Scopes&>(scopes).captured);
}

void bind_policy(nb::module_& module) {
  scopes_variable = PyContextVar_New("regard_policy", nullptr);
  if (scopes_variable == nullptr) throw nb::python_error();
  module.attr("scopes") = nb::borrow(scopes_variable);

  nb::class_<Policy>(
      module, "Policy",
      R"(What a caller allows and wants; a field that is not set leaves the choice to the next source.

only, deny, prefer: a backend's name or a list of names ('flash', 'efficient', 'math', 'cudnn' or
'custom:<name>'). require: 'none', 'run_to_run', 'thread_count_invariant' or 'batch_invariant'.
max_error: the largest error bound of a backend that may run. max_workspace_bytes: the most scratch
memory. on_fallback: 'allow', 'warn' or 'error', where the first preferred backend cannot run.
assume_finite: True where no NaN or infinity lies behind a mask. self_check: one forward in so many
recomputes some of its rows on MATH, 0 none does; self_check_deny: True: a backend that fails may
not run from then on; self_check_dir: where failures leave files (`python -m regard docs
self_check`). A Policy is a value: it compares, hashes and pickles.

    >>> import regard
    >>> policy = regard.Policy(prefer=['math'], max_workspace_bytes=1 << 20)
    >>> regard.explain('b1 hq8 sq128 d64 f32', policy=policy).chosen
    'math'
    >>> policy
    regard.Policy(prefer=['math'], max_workspace_bytes=1048576)

Raises TypeError or ValueError for a field, with its name, its value and what is accepted.

How policies of a call, a scope and the environment join: `python -m regard docs selection`.)")
      .def("__init__",
           [](Policy* self, const nb::args& unnamed, const nb::kwargs& fields) {
             if (unnamed.size() != 0) {
               raise_type("Policy() takes keywords alone: " + std::string(kFields));
             }
             new (self) Policy(policy_from(fields));
           })
      .def("to_dict", &fields_of, "Every field; None where it is not set.")
      .def("__repr__", &repr_of)
      .def("__eq__",
           [](const Policy& self, nb::handle other) {
             const Policy* policy = policy_in(other.ptr());
             return policy != nullptr && *policy == self;
           })
      .def("__hash__", [](const Policy& self) { return nb::int_(hash_value(self) >> 3); })
      .def("__getstate__", &fields_of)
      .def("__setstate__",
           [](Policy& self, const nb::dict& fields) { new (&self) Policy(policy_from(fields)); })
      .def("__getattr__", [](const Policy& self, const nb::str& name) -> nb::object {
        const nb::dict fields = fields_of(self);
        if (fields.contains(name)) return fields[name];
        PyErr_SetString(PyExc_AttributeError,
                        (std::string("regard.Policy has no ") + name.c_str()).c_str());
        throw nb::python_error();
      });

  nb::class_<Scopes>(module, "Scopes", "The policies that regard.use_policy has open.");
  module.def("with_scope", &with_scope, "outer"_a.none(), "policy"_a, "replace"_a,
             "The scopes of `outer` with one more inside.");
}

}  // namespace regard::python
