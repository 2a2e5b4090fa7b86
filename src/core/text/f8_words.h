#pragma once

#include <string>
#include <string_view>

#include "regard/case.h"

// The case words of 8-bit floats and of scales.

namespace regard {

/// What d_out, and d_q, d_k and d_v, are where a case does not say it.
Dtype dtype_of_d_out(const AttentionParams& params);
Dtype dtype_of_gradients(const AttentionParams& params);
bool print_recipe(const Case& c, std::string* out);
bool parse_recipe(std::string_view value, Case* c);
bool print_descales(const Case& c, std::string* out);
bool parse_descales(std::string_view value, Case* c);
bool print_scales(const Case& c, std::string* out);
bool parse_scales(std::string_view value, Case* c);
bool print_scales_q(const Case& c, std::string* out);
bool parse_scales_q(std::string_view value, Case* c);

}  // namespace regard
