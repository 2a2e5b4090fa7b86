#pragma once

#include "regard/backend.h"

namespace regard {

/// What `claims` say of the types of `params` on `isa`, or null.
const DtypeClaim* find_dtypes(const Claims& claims, const AttentionParams& params,
                              Isa isa) noexcept;

}  // namespace regard
