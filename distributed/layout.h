#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "regard/status.h"

// Which rows of a sequence each rank holds.

namespace regard::distributed {

enum class LayoutKind : std::uint8_t {
  kContiguous = 0,  // rank r holds one run of rows
  kZigzag,          // 2 P runs; rank r holds runs r and 2 P - 1 - r: causal work is balanced
  kPerDocument      // each document of a packed sequence in zigzag by itself
};
const char* to_string(LayoutKind kind) noexcept;  // "contiguous", "zigzag", "per_document"
std::optional<LayoutKind> parse_layout(std::string_view name) noexcept;

/// Rows [begin, begin + length) of the whole sequence.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// For each rank its pieces in ascending order, which lie one after the other in its tensors. No
/// piece is empty; a rank may have none. Every row belongs to one rank. Any length and any number
/// of ranks: runs differ by one row at most, the longer ones first. `cu_seqlens` (ascending from 0,
/// the last is `seqlen`) is read by kPerDocument alone, which takes the whole as one document
/// without it.
Expected<std::vector<std::vector<Piece>>> make_layout(
    LayoutKind kind, std::int64_t seqlen, int ranks, std::span<const std::int64_t> cu_seqlens = {});

/// The rows of all pieces.
std::int64_t rows_of(const std::vector<Piece>& pieces) noexcept;

}  // namespace regard::distributed
