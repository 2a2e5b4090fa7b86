#pragma once

#include <span>

namespace regard::test {

/// Hand-picked cases of score and mask functions without a dtype: every operator and variable,
/// every kind of captured tensor, and every kernel. What is recognised as a feature is written so
/// that it is not, but for the forms that are there to be.
std::span<const char* const> function_cases();

/// The same with gradients.
std::span<const char* const> function_grad_cases();

}  // namespace regard::test
