#include "distributed/schedule.h"

#include <algorithm>

namespace regard::distributed {

std::vector<Segment> make_segments(const std::vector<Piece>& pieces, const Visibility& visibility,
                                   bool of_queries) {
  std::vector<Segment> segments;
  std::int64_t local = 0;
  for (const Piece& piece : pieces) {
    const auto& documents = visibility.documents;
    // The first document that ends behind the piece's begin.
    auto at = std::upper_bound(documents.begin(), documents.end(), piece.begin,
                               [&](std::int64_t begin, const Document& d) {
                                 return begin < (of_queries ? d.q_end : d.kv_end);
                               });
    for (; at != documents.end(); ++at) {
      const std::int64_t first = of_queries ? at->q_begin : at->kv_begin;
      const std::int64_t last = of_queries ? at->q_end : at->kv_end;
      const std::int64_t begin = std::max(first, piece.begin);
      const std::int64_t end = std::min(last, piece.begin + piece.length);
      if (first >= piece.begin + piece.length) break;
      if (begin >= end) continue;
      segments.push_back({begin, end - begin, local + begin - piece.begin,
                          static_cast<std::size_t>(at - documents.begin())});
    }
    local += piece.length;
  }
  return segments;
}

std::vector<Piece> join_pieces(const std::vector<std::vector<Piece>>& pieces) {
  std::vector<Piece> all;
  for (const auto& of_member : pieces) all.insert(all.end(), of_member.begin(), of_member.end());
  std::sort(all.begin(), all.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::vector<Piece> joined;
  for (const Piece& piece : all) {
    if (!joined.empty() && joined.back().begin + joined.back().length == piece.begin) {
      joined.back().length += piece.length;
    } else {
      joined.push_back(piece);
    }
  }
  return joined;
}

namespace {

/// Where the first query of a segment stands, as a key of the whole sequence.
std::int64_t position_of(const Document& d, const Segment& q) {
  return q.begin - d.q_begin + d.shift + d.kv_begin;
}

/// The keys that a query at `position` sees of [begin, end).
std::int64_t count_visible(const Visibility& v, std::int64_t position, std::int64_t begin,
                           std::int64_t end) {
  if (v.left >= 0) begin = std::max(begin, position - v.left);
  if (v.right >= 0) end = std::min(end, position + v.right + 1);
  return std::max<std::int64_t>(end - begin, 0);
}

}  // namespace

KeyRange visible_range(const Visibility& v, const Segment& q, const Segment& k) {
  if (q.document != k.document || q.length == 0) return {};
  const std::int64_t first = position_of(v.documents[q.document], q);
  std::int64_t begin = k.begin, end = k.begin + k.length;
  if (v.left >= 0) begin = std::max(begin, first - v.left);
  if (v.right >= 0) end = std::min(end, first + q.length - 1 + v.right + 1);
  return {0, begin, std::max<std::int64_t>(end - begin, 0)};
}

bool sees_all(const Visibility& v, const Segment& q, const KeyRange& range) {
  const std::int64_t first = position_of(v.documents[q.document], q);
  const std::int64_t last = first + q.length - 1;
  return (v.left < 0 || last - v.left <= range.begin) &&
         (v.right < 0 || first + v.right + 1 >= range.begin + range.length);
}

double visible_elements(const Visibility& v, const Segment& q, const Segment& k) {
  const KeyRange range = visible_range(v, q, k);
  if (range.length == 0) return 0.0;
  if (sees_all(v, q, range)) {
    return static_cast<double>(q.length) * static_cast<double>(range.length);
  }
  // The count is piecewise linear in the row; sums over up to 4,096 sampled rows are exact for
  // shorter segments and within their step for longer ones.
  const std::int64_t first = position_of(v.documents[q.document], q);
  const std::int64_t step = std::max<std::int64_t>(q.length / 4096, 1);
  double sum = 0.0;
  for (std::int64_t i = 0; i < q.length; i += step) {
    const std::int64_t rows = std::min(step, q.length - i);
    sum += 0.5 * static_cast<double>(rows) *
           static_cast<double>(
               count_visible(v, first + i, range.begin, range.begin + range.length) +
               count_visible(v, first + i + rows - 1, range.begin, range.begin + range.length));
  }
  return sum;
}

std::vector<KeyRange> needed_ranges(const Sharding& sharding, int owner, int first, int count) {
  std::vector<KeyRange> ranges;
  const auto& keys = sharding.kv[static_cast<std::size_t>(owner)];
  for (std::size_t s = 0; s < keys.size(); ++s) {
    std::int64_t begin = INT64_MAX, end = INT64_MIN;
    for (int x = 0; x < count; ++x) {
      const int member = (first + x) % sharding.members();
      for (const Segment& q : sharding.q[static_cast<std::size_t>(member)]) {
        const KeyRange range = visible_range(sharding.visibility, q, keys[s]);
        if (range.length == 0) continue;
        begin = std::min(begin, range.begin);
        end = std::max(end, range.begin + range.length);
      }
    }
    if (begin < end) ranges.push_back({s, begin, end - begin});
  }
  return ranges;
}

std::vector<KeyRange> ring_ranges(const Sharding& sharding, int owner, int step) {
  return needed_ranges(sharding, owner, (owner + step) % sharding.members(),
                       sharding.members() - step);
}

std::int64_t rows_of(const std::vector<KeyRange>& ranges) noexcept {
  std::int64_t rows = 0;
  for (const KeyRange& range : ranges) rows += range.length;
  return rows;
}

}  // namespace regard::distributed
