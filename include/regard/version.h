#pragma once

// Valid C, too: regard.h includes it.
#define REGARD_VERSION_MAJOR 0
#define REGARD_VERSION_MINOR 1
#define REGARD_VERSION_PATCH 0
/// Grows with every version: 10203 for 1.2.3.
#define REGARD_VERSION_NUMBER \
  (REGARD_VERSION_MAJOR * 10000 + REGARD_VERSION_MINOR * 100 + REGARD_VERSION_PATCH)

#include "regard/export.h"

#if defined(__cplusplus)
namespace regard {

/// The version of the library that is linked, "0.1.0" (the macros give that of the headers).
REGARD_EXPORT const char* version() noexcept;

}  // namespace regard
#endif
