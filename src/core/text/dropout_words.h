#pragma once

#include <string>
#include <string_view>

#include "regard/case.h"

namespace regard {

/// The word dropout_origin of a case: "dropout_origin=16,8,3,4".
bool print_dropout_origin(const Case& c, std::string* out);
bool parse_dropout_origin(std::string_view value, Case* c);

}  // namespace regard
