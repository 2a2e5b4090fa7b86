#pragma once

#include <string>
#include <string_view>

#include "regard/case.h"

// The case words of score and mask functions. A text that is no expression becomes one that
// remembers why: validate reports it.

namespace regard {

bool print_score_function(const Case& c, std::string* out);
bool parse_score_function(std::string_view value, Case* c);
bool print_mask_function(const Case& c, std::string* out);
bool parse_mask_function(std::string_view value, Case* c);
bool print_block_mask(const Case& c, std::string* out);
bool parse_block_mask(std::string_view value, Case* c);

}  // namespace regard
