#pragma once

#include <string>

#include "regard/regard.h"
#include "regard/status.h"

// How failures cross the C boundary: a code, and a message that the thread keeps.

namespace regard::c_api {

/// An invalid_argument "[where] message".
[[gnu::cold, gnu::noinline]] Status invalid(const char* where, const std::string& message);

/// Keeps the message of a failure for regard_last_error() and returns its code.
[[gnu::cold, gnu::noinline]] regard_status report(const Status& failure) noexcept;

/// The same for the exception that is being handled, in `where`.
[[gnu::cold, gnu::noinline]] regard_status report_exception(const char* where) noexcept;

/// Runs body(where), which returns a Status, as a function of the C ABI: nothing is thrown past it.
template <class Body>
regard_status guarded(const char* where, Body&& body) noexcept {
  try {
    const Status status = body(where);
    return status.ok() ? REGARD_STATUS_OK : report(status);
  } catch (...) {
    return report_exception(where);
  }
}

/// Refuses a null argument.
inline Status require(const char* where, const char* name, const void* argument) {
  if (argument != nullptr) return {};
  return invalid(where, std::string(name) + " (null) must be given");
}

}  // namespace regard::c_api
