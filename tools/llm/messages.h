#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "regard/status.h"
#include "tools/files/quote.h"

namespace llm {

using regard::files::quote;

/// "[where] message", an invalid argument.
regard::Status invalid(const char* where, const std::string& message);

/// "[2,3]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace llm
