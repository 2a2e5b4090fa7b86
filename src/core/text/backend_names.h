#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "regard/policy.h"

namespace regard {

bool contains(const std::vector<BackendRef>& refs, const BackendRef& ref) noexcept;

/// "flash,math"
std::string join_backends(const std::vector<BackendRef>& refs);

/// Names separated by commas; duplicates are dropped.
Expected<std::vector<BackendRef>> parse_backend_list(std::string_view text);

}  // namespace regard
