#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>

#include "regard/status.h"

namespace regard {

/// Runs `call`; the text of the exception that it threw, or nothing. std::bad_alloc passes: a
/// shortage of memory is no property of a backend, and no decision may rest on it.
template <class Call>
std::optional<std::string> thrown_by(Call&& call) {
  try {
    call();
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "no std::exception";
  }
}

/// The Status of the exception that is being handled: kOutOfMemory of std::bad_alloc, kInternal of
/// every other one. Public functions that return a Status or an Expected end in it.
Status status_of_exception(const char* where) noexcept;

/// Throws std::bad_alloc for kOutOfMemory, which within the library is an exception until the
/// public function ends; any other Status is returned.
inline const Status& unless_out_of_memory(const Status& status) {
  if (status.code() == StatusCode::kOutOfMemory) throw std::bad_alloc();
  return status;
}

}  // namespace regard
