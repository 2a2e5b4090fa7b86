#pragma once

#include <exception>
#include <optional>
#include <string>

namespace regard {

/// Runs `call`; the text of the exception that it threw, or nothing.
template <class Call>
std::optional<std::string> thrown_by(Call&& call) {
  try {
    call();
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "no std::exception";
  }
}

}  // namespace regard
