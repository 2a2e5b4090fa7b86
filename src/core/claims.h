#pragma once

#include "regard/backend.h"

namespace regard {

/// What `claims` say of the types of `params`, or null.
const DtypeClaim* find_dtypes(const Claims& claims, const AttentionParams& params) noexcept;

}  // namespace regard
