#pragma once

#include <span>
#include <string>
#include <vector>

namespace regard::test {

/// Hand-picked forward cases without a dtype: each feature, odd sizes round the tiles, dead rows,
/// poison, empty sizes.
std::span<const char* const> forward_cases();

/// Cases of 16 bits with enough values for the mean of their rounding's errors, each with its
/// dtype.
std::span<const char* const> rounding_cases();

/// Chosen gradient cases round blocks and edges, each with its dtype.
std::span<const char* const> grad_cases();

/// Gradient cases of several of the backward's blocks: of rows alone, of keys alone, and of both.
std::span<const char* const> block_cases();

/// The types in which a fixed case runs: half of `types`, one behind another, where the text of the
/// case says. All of them, in more than twice the time, with REGARD_DEV_EVERY=1.
std::vector<std::string> types_of(const std::string& text, std::span<const char* const> types);

}  // namespace regard::test
