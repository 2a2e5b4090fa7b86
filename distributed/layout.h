#pragma once

#include <cstdint>
#include <vector>

#include "regard/status.h"

namespace regard::distributed {

enum class LayoutKind : std::uint8_t { kContiguous = 0, kZigzag, kPerDocument };

/// "contiguous", "zigzag", "per_document"
const char* to_string(LayoutKind kind) noexcept;

/// Positions [begin, begin + length) of the whole sequence; length > 0.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// What one rank holds, in the order of its tensors; empty where it holds nothing. Adjacent pieces
/// are one.
using Pieces = std::vector<Piece>;

/// The pieces of each rank, which are a partition of [0, length): any length, any number of ranks.
///
/// kContiguous: rank r has the r-th of `ranks` parts, whose lengths differ by one at most. kZigzag:
/// chunks r and 2 * ranks - 1 - r of twice as many, so that causal attention gives every rank as
/// much to compute. kPerDocument: the same of every document; of documents shorter than 2 * ranks
/// the whole to the rank with the fewest positions so far.
///
/// cu_seqlens: where documents begin, ascending from 0, and the end of the last, which is `length`;
/// empty: one document. kPerDocument needs it, the others ignore it.
Expected<std::vector<Pieces>> make_layout(LayoutKind kind, std::int64_t length, int ranks,
                                          const std::vector<std::int64_t>& cu_seqlens = {});

/// The sum of lengths.
std::int64_t positions_of(const Pieces& pieces) noexcept;

/// A piece within one document, and where it lies in the tensors of its rank.
struct DocumentPiece {
  std::int64_t begin = 0;     // counted within its document
  std::int64_t length = 0;    //
  std::int64_t document = 0;  // its index
  std::int64_t row = 0;       // its first row in the tensors of the rank
};

/// The same positions, cut where a document begins. Without documents there is one, of `pieces`.
std::vector<DocumentPiece> within_documents(const Pieces& pieces,
                                            const std::vector<std::int64_t>& cu_seqlens);

}  // namespace regard::distributed
