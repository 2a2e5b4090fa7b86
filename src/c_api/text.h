#pragma once

#include <cstddef>
#include <string>

#include "regard/status.h"

namespace regard::c_api {

/// The caller's memory for a text, as three arguments of a function give it.
struct TextOut {
  char* buffer;
  std::size_t capacity;
  std::size_t* needed;  // may be null
};

/// Refuses memory that no text fits in; checked before anything is computed.
Status check_text_out(const char* where, const TextOut& out);

/// Writes text and its final zero by regard.h's rules for texts.
Status write_text(const char* where, const std::string& text, const TextOut& out);

}  // namespace regard::c_api
