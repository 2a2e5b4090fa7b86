#pragma once

#include <string>

#include "regard/status.h"
#include "tools/files/quote.h"

namespace llm {

using regard::files::quote;

/// "[where] message", an invalid argument.
regard::Status invalid(const char* where, const std::string& message);

}  // namespace llm
