#pragma once

#include <cstdint>

#include "cuda/element.cuh"
#include "problem/grad_problem.h"
#include "semantics/tiles.h"

// Which rows a block works on, and what it must know of each.

namespace regard::cuda {

using problem::Problem;
using problem::Sequence;

inline constexpr int kThreads = 256;  // of every block
inline constexpr int kTile = 64;      // rows, and keys, that a block takes together

/// row / by. A division of 64 bits takes longer than all else in a block.
REGARD_KERNEL_FN std::int64_t quotient(std::int64_t row, std::int64_t by) {
  if (((row | by) >> 32) != 0) return row / by;
  return static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(by);
}

/// Rows [begin, begin + count) of one sequence: row r is query r / heads of head
/// first_head + r % heads. With all heads of a group, one read of K and V serves them all.
struct RowBlock {
  std::int64_t b = 0;
  std::int64_t first_head = 0;
  std::int64_t heads = 1;
  std::int64_t begin = 0;
  std::int64_t count = 0;  // at most kTile, or kRows of group_rows()

  /// The first query, and one behind the last.
  REGARD_KERNEL_FN std::int64_t first(const RowBlock& r) { return query(r, r.begin); }
  REGARD_KERNEL_FN std::int64_t end(const RowBlock& r) {
    return query(r, r.begin + r.count - 1) + 1;
  }
  /// A division takes longer than all else in a block of one head.
  REGARD_KERNEL_FN std::int64_t query(const RowBlock& r, std::int64_t row) {
    return r.heads == 1 ? row : quotient(row, r.heads);
  }
};

/// Blocks of rows of one (b, kv head), as many as the longest sequence has.
template <int kRows = kTile>
REGARD_KERNEL_FN std::int64_t count_row_blocks(const Problem& p) {
  return (p.seqlen_q * p.group_size + kRows - 1) / kRows;
}
REGARD_KERNEL_FN std::int64_t count_key_tiles(const Problem& p) {
  return (p.seqlen_kv + kTile - 1) / kTile;
}

/// The rows of a sequence in a tensor of queries: fewer than the longest has, where they are
/// packed.
struct QueriesOf {
  std::int64_t b = 0;
  std::int64_t rows = 0;
};
REGARD_KERNEL_FN QueriesOf queries_of(const Sequence& s) { return {s.b, s.rows_q}; }

/// Block `index` of the rows of all heads that read a kv head; none behind the sequence's last.
template <int kRows = kTile>
REGARD_KERNEL_FN RowBlock group_rows(const Problem& p, const QueriesOf& queries,
                                     std::int64_t head_kv, std::int64_t index) {
  const std::int64_t rows = queries.rows * p.group_size, begin = index * kRows;
  return {queries.b, head_kv * p.group_size, p.group_size, begin,
          semantics::clamp(rows - begin, 0, kRows)};
}

/// Block `index` of the rows of one head.
template <int kRows = kTile>
REGARD_KERNEL_FN RowBlock head_rows(const QueriesOf& queries, std::int64_t head,
                                    std::int64_t index) {
  const std::int64_t begin = index * kRows;
  return {queries.b, head, 1, begin, semantics::clamp(queries.rows - begin, 0, kRows)};
}

/// What a block's rows see by arithmetic.
struct Reach {
  semantics::KeyRange first, last;  // of the first and the last live row; both ends grow with rows
  bool is_live = false;             // some row lies within its sequence's length
  bool has_data_mask = false;       // some see less than arithmetic allows

  /// The keys that any of the rows may see.
  REGARD_KERNEL_FN semantics::KeyRange keys(const Reach& r) {
    return r.is_live ? semantics::KeyRange{r.first.lo, r.last.hi} : semantics::KeyRange{0, 0};
  }
};

REGARD_KERNEL_FN Reach reach_of(const Problem& p, const RowBlock& rows, const Sequence& s) {
  const std::int64_t begin = RowBlock::first(rows), end = RowBlock::end(rows);
  const std::int64_t live = end < s.len_q ? end : s.len_q;
  Reach reach;
  reach.is_live = begin < live;
  reach.has_data_mask = problem::has_data_mask(p) || live < end;  // rows of padding see nothing
  if (!reach.is_live) return reach;
  reach.first = semantics::visible_keys(s.band, begin);
  reach.last = semantics::visible_keys(s.band, live - 1);
  return reach;
}

/// How a tile of kKeys keys looks to the rows. A tile that is cut short is never FULL.
template <int kKeys = kTile>
REGARD_KERNEL_FN semantics::TileClass classify(const Reach& reach, semantics::Tile tile) {
  if (!reach.is_live || tile.size <= 0) return semantics::TileClass::kEmpty;
  return semantics::classify_tile(reach.first, reach.last, tile.begin, tile.begin + tile.size,
                                  reach.has_data_mask || tile.size < kKeys);
}

/// The first block of kRows rows from `index` on of which some may see a key of the tile; the
/// number of blocks where none may. Rows that come too early are passed over at once: each query
/// sees at most one key more than the one before.
template <int kRows, int kKeys>
REGARD_KERNEL_FN std::int64_t next_row_block(const Problem& p, const Sequence& s,
                                             std::int64_t head_kv, semantics::Tile tile,
                                             std::int64_t index) {
  const std::int64_t blocks = count_row_blocks<kRows>(p);
  while (index < blocks) {
    const RowBlock rows = group_rows<kRows>(p, queries_of(s), head_kv, index);
    const Reach reach = reach_of(p, rows, s);
    if (classify<kKeys>(reach, tile) != semantics::TileClass::kEmpty) return index;
    // No later row sees less far to the left, or is live behind one that is not.
    if (!reach.is_live || reach.first.lo >= tile.begin + tile.size) return blocks;
    const std::int64_t query = RowBlock::end(rows) - 1 + (tile.begin + 1 - reach.last.hi);
    const std::int64_t block = query * rows.heads / kRows;
    index = block > index ? block : index + 1;
  }
  return blocks;
}

/// What the edits of a row's scores need. A row of padding, or none at all, sees no key.
template <class T>
struct RowFacts {
  std::int64_t query = 0;
  std::int64_t head = 0;
  std::int64_t lo = 0, hi = 0;  // keys visible by arithmetic
  std::int64_t position = 0;    // on the diagonal
  semantics::DropoutRow stream{};
  T slope = 0;
  T sink = 0;  // -inf: none
  std::int32_t segment = 0;
  bool exists = false;  // in the tensors
};

template <class T>
REGARD_DEVICE_FN RowFacts<T> row_facts(const Problem& p, const Sequence& s, const RowBlock& rows,
                                       std::int64_t r) {
  RowFacts<T> facts;
  facts.sink = minus_infinity<T>();
  facts.exists = r < rows.count;
  if (!facts.exists) return facts;
  const std::int64_t row = rows.begin + r;
  facts.query = RowBlock::query(rows, row);
  facts.head = rows.first_head + (row - facts.query * rows.heads);
  if (facts.query >= s.len_q) return facts;
  const semantics::KeyRange keys = semantics::visible_keys(s.band, facts.query);
  facts.lo = keys.lo;
  facts.hi = keys.hi;
  facts.position = semantics::diagonal_position(facts.query, s.band.shift);
  facts.stream =
      semantics::dropout_row(p.dropout, facts.query, s.band.shift, s.b, facts.head, p.num_heads_q);
  if (p.slopes.present) {
    const std::int64_t at = s.b * p.slopes.stride[0] + facts.head * p.slopes.stride[1];
    facts.slope = static_cast<T>(*problem::element_at<float>(p.slopes, at));
  }
  if (p.segments_q.present) {
    const std::int64_t at = problem::row_index(p.segments_q, s.b, 0, facts.query);
    facts.segment = *problem::element_at<std::int32_t>(p.segments_q, at);
  }
  if (p.sinks.present) {
    facts.sink =
        static_cast<T>(*problem::element_at<float>(p.sinks, facts.head * p.sinks.stride[0]));
  }
  return facts;
}

/// Any number of rows of q, out, d_out or d_q as products read and write them, null behind the
/// last.
struct QueryRows {
  Element type;
  std::int64_t columns;
  char* base;
  std::int64_t head_bytes, query_bytes;
  std::int64_t heads, begin, count;

  REGARD_KERNEL_FN char* row(const QueryRows& rows, std::int64_t r) {
    if (r >= rows.count) return nullptr;
    const std::int64_t row = rows.begin + r;
    if (rows.heads == 1) return rows.base + row * rows.query_bytes;
    return rows.base + row % rows.heads * rows.head_bytes + row / rows.heads * rows.query_bytes;
  }
};

REGARD_KERNEL_FN QueryRows query_rows(const View& view, const RowBlock& rows,
                                      std::int64_t columns) {
  const std::int64_t bytes = problem::element_bytes(view.type);
  return {view.type,
          columns,
          problem::row_address(view, rows.b, rows.first_head, 0),
          view.stride[1] * bytes,
          view.stride[2] * bytes,
          rows.heads,
          rows.begin,
          rows.count};
}

/// A block's rows of q or d_out, whose places are listed in shared memory: dividing them into
/// queries and heads again costs more than the products.
template <class Places>
struct ListedRows {
  Element type;
  std::int64_t columns;
  char* base;
  Places places;  // bytes from base; negative: no such row
  std::int64_t count;

  REGARD_DEVICE_FN char* row(const ListedRows& rows, std::int64_t r) {
    const std::int64_t place = rows.places[r];
    return place < 0 ? nullptr : rows.base + place;
  }
};

template <class Places>
REGARD_DEVICE_FN ListedRows<Places> listed_rows(const View& view, Places places,
                                                std::int64_t columns) {
  return {view.type, columns, view.data, places, kTile};
}

/// Where row (b, facts) of a view lies, for ListedRows.
template <class T>
REGARD_DEVICE_FN std::int64_t place_in(const View& view, std::int64_t b, const RowFacts<T>& row) {
  if (!row.exists) return -1;
  return problem::row_index(view, b, row.head, row.query) * problem::element_bytes(view.type);
}

/// The facts of the block's rows, and where they lie in q, in shared memory; read them behind
/// a barrier.
template <class T, class Block, class Facts, class Places>
REGARD_DEVICE_FN void write_row_facts(const Block& block, const Problem& p, const Sequence& s,
                                      const RowBlock& rows, Facts facts, Places in_q) {
  for (int r = block.thread(); r < kTile; r += kThreads) {
    const auto row = row_facts<T>(p, s, rows, r);
    facts[r] = row;
    in_q[r] = place_in(p.q, s.b, row);
  }
}

/// Rows at one stride: of K, V, d_k or d_v, or of a matrix in the workspace.
struct DenseRows {
  Element type;
  std::int64_t columns;
  char* base;
  std::int64_t row_bytes;
  std::int64_t count;

  REGARD_KERNEL_FN char* row(const DenseRows& rows, std::int64_t r) {
    return r < rows.count ? rows.base + r * rows.row_bytes : nullptr;
  }
};

/// The tile's rows of K or V, `first` being where row 0 of the kv head lies.
REGARD_KERNEL_FN DenseRows rows_from(const View& view, char* first, semantics::Tile tile,
                                     std::int64_t columns) {
  const std::int64_t row_bytes = view.stride[2] * problem::element_bytes(view.type);
  return {view.type, columns, first + tile.begin * row_bytes, row_bytes, tile.size};
}

/// Where the rows of a sequence's keys lie in k and v.
struct KeyPlace {
  std::int64_t entry = 0;             // of the first dimension; negative: there is none
  const std::int32_t* ids = nullptr;  // of the sequence's pages; null: its rows follow one another
  std::int64_t skipped = 0;           // rows before key 0
};

/// `entries`: extent 0 of k and v. On a device numbers of entries have not been checked.
REGARD_KERNEL_FN KeyPlace place_of_keys(const Problem& p, const Sequence& s, std::int64_t entries) {
  KeyPlace place{s.b, nullptr, s.leftpad};
  if (p.pages.ids != nullptr) {
    place.entry = 0;
    place.ids = p.pages.ids + s.b * p.pages.stride[0];
  } else if (p.cache_entries.present) {
    place.entry =
        *problem::element_at<std::int32_t>(p.cache_entries, s.b * p.cache_entries.stride[0]);
    if (place.entry >= entries) place.entry = -1;
  }
  return place;
}

/// The row of key `key`; of keys in pages, that of page 0's first row.
REGARD_KERNEL_FN char* key_address(const View& view, const KeyPlace& place, std::int64_t head_kv,
                                   std::int64_t key) {
  if (place.entry < 0) return nullptr;
  const std::int64_t row = place.ids != nullptr ? 0 : place.skipped + key;
  return problem::row_address(view, place.entry, head_kv, row);
}

/// Pages of a sequence: row r lies in row r % size of page ids[r / size].
struct KeyPages {
  const std::int32_t* ids = nullptr;
  std::int64_t id_stride = 0;
  std::int64_t size = 0;
  std::int64_t count = 0;  // of pages that there are
};

REGARD_KERNEL_FN KeyPages pages_of(const Problem& p, const KeyPlace& place, std::int64_t entries) {
  return {place.ids, p.pages.stride[1], p.pages.page_size, entries};
}

/// The tile's rows of K or V in pages, null in one that is not there: its id may be -1 where no row
/// sees a key of it. `tile` counts the rows before key 0, too.
struct PagedRows {
  Element type;
  std::int64_t columns;
  char* base;  // page 0's first row
  std::int64_t row_bytes, page_bytes;
  KeyPages pages;
  semantics::Tile tile;

  /// Rows of a sequence are counted in 32 bits: a division of 64 takes registers that a loop with
  /// sums of 256 dims does not have.
  REGARD_KERNEL_FN char* row(const PagedRows& rows, std::int64_t r) {
    if (r >= rows.tile.size) return nullptr;
    const auto at = static_cast<std::uint32_t>(rows.tile.begin + r);
    const auto size = static_cast<std::uint32_t>(rows.pages.size);
    const std::uint32_t page = at / size;
    const std::int64_t id = rows.pages.ids[page * rows.pages.id_stride];
    if (id < 0 || id >= rows.pages.count) return nullptr;
    return rows.base + id * rows.page_bytes + (at - page * size) * rows.row_bytes;
  }
};

REGARD_KERNEL_FN PagedRows paged_rows(const View& view, char* base, const KeyPages& pages,
                                      semantics::Tile tile, std::int64_t columns) {
  const std::int64_t bytes = problem::element_bytes(view.type);
  return {view.type, columns, base, view.stride[2] * bytes, view.stride[0] * bytes, pages, tile};
}

/// The tile's rows of K or V in a cache: in pages, or one after another.
struct CachedRows {
  Element type;
  std::int64_t columns;
  std::int64_t count;
  DenseRows dense;
  PagedRows paged;

  REGARD_KERNEL_FN char* row(const CachedRows& rows, std::int64_t r) {
    return rows.paged.pages.ids != nullptr ? PagedRows::row(rows.paged, r)
                                           : DenseRows::row(rows.dense, r);
  }
};

/// `base`: key_address() of key 0. Of an entry that there is none of, no row.
REGARD_KERNEL_FN CachedRows cached_rows(const View& view, const KeyPlace& place, char* base,
                                        const KeyPages& pages, semantics::Tile tile,
                                        std::int64_t columns) {
  if (place.entry < 0) tile = {0, 0};
  return {view.type, columns, tile.size, rows_from(view, base, tile, columns),
          paged_rows(view, base, pages, {place.skipped + tile.begin, tile.size}, columns)};
}

/// Rows [begin, begin + count) of K or V.
REGARD_KERNEL_FN DenseRows key_rows(const View& view, std::int64_t b, std::int64_t head_kv,
                                    semantics::Tile tile, std::int64_t columns) {
  return {view.type, columns, problem::row_address(view, b, head_kv, tile.begin),
          view.stride[2] * problem::element_bytes(view.type), tile.size};
}

}  // namespace regard::cuda
