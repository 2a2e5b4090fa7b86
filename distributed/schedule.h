#pragma once

#include <cstdint>
#include <vector>

#include "distributed/attention.h"

// Which rows travel, from whom to whom, and which pairs of pieces are computed. Plans count what
// these functions return, and calls run it: both are the same by construction.

namespace regard::distributed {

/// Rows of one document that lie together, in the whole sequence and in a member's tensors.
struct Segment {
  std::int64_t begin = 0;   // in the whole sequence
  std::int64_t length = 0;  //
  std::int64_t local = 0;   // the first one's row in the member's tensors
  std::size_t document = 0;
};

struct Document {
  std::int64_t q_begin = 0, q_end = 0, kv_begin = 0, kv_end = 0;
  std::int64_t shift = 0;  // query i of it stands at its key i + shift
};

/// What relates queries to keys.
struct Visibility {
  std::vector<Document> documents;
  std::int64_t left = kUnlimited, right = kUnlimited;
};

/// Keys [begin, begin + length) of one segment of their owner.
struct KeyRange {
  std::size_t segment = 0;
  std::int64_t begin = 0;  // in the whole sequence
  std::int64_t length = 0;
};

/// A group of members that exchange keys: ranks, or one rank of each node.
struct Sharding {
  std::vector<std::vector<Segment>> q, kv;  // of each member
  Visibility visibility;
  int members() const noexcept { return static_cast<int>(q.size()); }
};

/// Pieces of one member to its segments, each within one document.
std::vector<Segment> make_segments(const std::vector<Piece>& pieces, const Visibility& visibility,
                                   bool of_queries);
/// The pieces of all members of a node in ascending order, adjacent ones joined.
std::vector<Piece> join_pieces(const std::vector<std::vector<Piece>>& pieces);

/// Keys of `k` that some query of `q` sees; its length is 0 where there is none.
KeyRange visible_range(const Visibility& visibility, const Segment& q, const Segment& k);
/// Whether every query of `q` sees every key of `range`.
bool sees_all(const Visibility& visibility, const Segment& q, const KeyRange& range);
/// Score elements of `q` over the keys of `k` that are within the window.
double visible_elements(const Visibility& visibility, const Segment& q, const Segment& k);

/// The keys of `owner` that members [first, first + count) (mod members) need, one range for each
/// segment that any needs, ascending.
std::vector<KeyRange> needed_ranges(const Sharding& sharding, int owner, int first, int count);
/// What the member at ring distance `step` - 1 behind the owner passes on: what the members from
/// distance `step` on need.
std::vector<KeyRange> ring_ranges(const Sharding& sharding, int owner, int step);

std::int64_t rows_of(const std::vector<KeyRange>& ranges) noexcept;

}  // namespace regard::distributed
