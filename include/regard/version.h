#pragma once

#define REGARD_VERSION_MAJOR 0
#define REGARD_VERSION_MINOR 1
#define REGARD_VERSION_PATCH 0

#include "regard/export.h"

namespace regard {

/// The version of the library that is linked, "0.1.0" (the macros give that of the headers).
REGARD_EXPORT const char* version() noexcept;

}  // namespace regard
