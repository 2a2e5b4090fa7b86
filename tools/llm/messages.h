#pragma once

#include <string>
#include <string_view>

#include "regard/status.h"

namespace llm {

/// Text from a file made fit for a message: quoted, control characters and non-ASCII escaped, long
/// text cut. A hostile name must not reach a terminal as it is.
std::string quote(std::string_view text);

/// "[where] message", an invalid argument.
regard::Status invalid(const char* where, const std::string& message);

}  // namespace llm
