// The backward in one pass; see args.h. Included by isa_<isa>.cc.

#include <cstdint>

#include "cpu/backward/bias.inl"
#include "cpu/backward/captured.inl"
#include "cpu/backward/keys.inl"
#include "cpu/threads/progress.h"

namespace regard::cpu {

/// A tile of K and V as pack_key_block copied it, for every group of rows.
template <class V>
struct PackedTile {
  GradTile<V> tile;
  bool keys_are_finite;
};

/// The flag of a block that is packed; while it is not, the flag counts the workers that came for
/// it.
inline constexpr std::int64_t kPacked = std::int64_t{1} << 32;

/// One kv head of one sequence, and its memory.
template <class V>
struct GradHead {
  using T = typename V::Scalar;
  static constexpr std::int64_t kMostBlockRows = task_row_blocks(V::kWidth) * V::kWidth;

  const BackwardArgs& a;
  Sequence s;
  std::int64_t head_kv;
  HeadGrid grid;
  char* head_workspace;
  char* scratch;

  const Problem& problem() const { return a.grad.problem; }
  std::int64_t rows() const { return s.len_q * problem().group_size; }
  /// Blocks of rows or of keys that it has in memory, whichever are more.
  std::int64_t blocks() const {
    const std::int64_t rows_q = s.rows_q * problem().group_size;
    const std::int64_t row_blocks = (rows_q + kMostBlockRows - 1) / kMostBlockRows;
    const std::int64_t key_blocks = (s.rows_kv + kBlockKeys - 1) / kBlockKeys;
    return row_blocks > key_blocks ? row_blocks : key_blocks;
  }
  std::int64_t keys() const { return s.band.len_kv; }
  /// The row block whose first row is `row`, first of a group.
  BackwardTask<V> row_block(std::int64_t row) const {
    return {a, s, head_kv, scratch,
            head_workspace + a.at_row_blocks + row / V::kWidth * a.row_block_bytes};
  }
  char* tile_memory(std::int64_t index) const {
    return head_workspace + a.at_tiles + index * a.tile_bytes;
  }
  PackedTile<V>& tile(std::int64_t index) const {
    return *reinterpret_cast<PackedTile<V>*>(tile_memory(index) + a.at_tile_state);
  }
  HeadProgress& progress() const { return progress_of(a, head_workspace); }
  /// Of a row block, and of a key block: kPacked, less until it is packed.
  std::int64_t* row_flag(std::int64_t block) const {
    return reinterpret_cast<std::int64_t*>(head_workspace + a.at_flags) + block;
  }
  std::int64_t* key_flag(std::int64_t block) const { return row_flag(a.blocks + block); }
  /// Of the key blocks within a row range.
  std::int64_t* done(std::int64_t row_range) const {
    return reinterpret_cast<std::int64_t*>(head_workspace + a.at_done) +
           row_range * grid.key_blocks;
  }
  /// d_q^T of a row over a key range.
  T* sum_q(std::int64_t row, std::int64_t key_range) const {
    const std::int64_t first = key_range * grid.row_blocks * grid.block_rows;
    return reinterpret_cast<T*>(head_workspace + a.at_sum_q) +
           (first + row) * padded_head_dim(problem().head_dim_qk);
  }
  /// d_k from a key on, over a row range.
  KeySums<T> sums_k(std::int64_t key, std::int64_t row_range) const {
    return key_sums(true, key, row_range);
  }
  KeySums<T> sums_v(std::int64_t key, std::int64_t row_range) const {
    return key_sums(false, key, row_range);
  }

 private:
  KeySums<T> key_sums(bool is_k, std::int64_t key, std::int64_t row_range) const {
    const std::int64_t all = grid.key_blocks * kBlockKeys;
    const std::int64_t dim = is_k ? problem().head_dim_qk : problem().head_dim_v;
    T* const sums = reinterpret_cast<T*>(head_workspace + (is_k ? a.at_sum_k : a.at_sum_v));
    return {is_k, is_k ? a.at_q_rows : a.at_d_out_rows, sums + row_range * all * columns_of<V>(dim),
            all, key};
  }
};

template <class V>
static GradHead<V> grad_head(const BackwardArgs& a, std::int64_t index, char* head_workspace,
                             char* scratch) {
  const Problem& p = a.grad.problem;
  const Sequence s = sequence_of(p, index / p.num_heads_kv);
  return {a,
          s,
          index % p.num_heads_kv,
          head_grid(s.len_q * p.group_size, s.band.len_kv, V::kWidth),
          head_workspace,
          scratch};
}

/// Those of a block of `size`, of `count` rows or keys in all.
REGARD_KERNEL_FN semantics::KeyRange block_range(std::int64_t block, std::int64_t size,
                                                 std::int64_t count) {
  return {semantics::clamp(block * size, 0, count), semantics::clamp((block + 1) * size, 0, count)};
}
template <class V>
REGARD_KERNEL_FN semantics::KeyRange block_rows(const GradHead<V>& head, std::int64_t block) {
  return block_range(block, head.grid.block_rows, head.rows());
}

/// Calls f(first row, rows) for the row blocks of a block within the sequence.
template <class V, class F>
REGARD_KERNEL_FN void for_row_blocks(const GradHead<V>& head, std::int64_t block, F f) {
  const semantics::KeyRange rows = block_rows(head, block);
  for (std::int64_t row = rows.lo; row < rows.hi; row += V::kWidth) {
    f(row, row + V::kWidth < rows.hi ? V::kWidth : rows.hi - row);
  }
}

/// Packs a block of rows and clears its sums.
template <class V>
static void pack_row_block(const GradHead<V>& head, std::int64_t block) {
  const std::int64_t size = padded_head_dim(head.problem().head_dim_qk) * V::kWidth;
  for_row_blocks(
      head, block, [&](std::int64_t row, std::int64_t count) __attribute__((always_inline)) {
        const BackwardTask<V> t = head.row_block(row);
        set_grad_rows(t, row, count);
        set_row_stats(t);
        pack_grad_rows(t);
        for (std::int64_t range = 0; range < head.grid.key_ranges; ++range) {
          auto* const sum = head.sum_q(row, range);
          __builtin_memset(sum, 0, static_cast<std::size_t>(size) * sizeof(*sum));
        }
      });
}

/// Packs a block of keys, which is a tile, and clears its sums.
template <class V>
static void pack_key_block(const GradHead<V>& head, std::int64_t block) {
  const Problem& p = head.problem();
  const Tile tile = tile_at(block, kBlockKeys, head.keys());
  const GradTile<V> packed = load_grad_tile(head.row_block(0), tile, head.tile_memory(block));
  head.tile(block) = {packed, V::is_finite(packed.keys, tile.size, depth<V>(p.head_dim_qk))};
  const std::int64_t key = block * kBlockKeys;
  for (std::int64_t range = 0; range < head.grid.row_ranges; ++range) {
    const auto k = head.sums_k(key, range), v = head.sums_v(key, range);
    clear_key_sums<V>(k.sums, k.keys, key, kBlockKeys, p.head_dim_qk);
    clear_key_sums<V>(v.sums, v.keys, key, kBlockKeys, p.head_dim_v);
  }
}

/// Returns once a block is packed: the first worker to come packs it.
template <class F>
REGARD_KERNEL_FN void need_block(std::int64_t* flag, F pack) {
  if (read_count(flag) == 0 && add_to_count(flag, 1) == 0) {
    pack();
    set_count(flag, kPacked);
  }
  wait_for_count(flag, kPacked);
}

template <class V>
static void need_blocks(const GradHead<V>& head, std::int64_t q_block, std::int64_t kv_block) {
  need_block(head.row_flag(q_block), [&] { pack_row_block(head, q_block); });
  need_block(head.key_flag(kv_block), [&] { pack_key_block(head, kv_block); });
}

/// A grid of one head: a row range and a key range.
template <class V>
struct RangePair {
  const GradHead<V>& head;
  std::int64_t row_range;
  std::int64_t key_range;

  /// Blocks [lo, hi) of the head.
  semantics::KeyRange rows() const {
    return share_of_blocks(head.grid.row_blocks, head.grid.row_ranges, row_range);
  }
  semantics::KeyRange keys() const {
    return share_of_blocks(head.grid.key_blocks, head.grid.key_ranges, key_range);
  }

 private:
  static semantics::KeyRange share_of_blocks(std::int64_t blocks, std::int64_t ranges,
                                             std::int64_t index) {
    return {share_begin(blocks, ranges, index), share_begin(blocks, ranges, index + 1)};
  }
};

/// Adds what rows [begin, end), a group of row blocks at most, give to the gradients of a tile of
/// keys, and what it gives to theirs.
template <class V>
static void add_pair(const RangePair<V>& ranges, std::int64_t begin, std::int64_t end,
                     const PackedTile<V>& packed) {
  const GradHead<V>& head = ranges.head;
  const BackwardArgs& a = head.a;
  const GradTile<V>& loaded = packed.tile;
  const Tile tile = loaded.tile;
  const std::int64_t row_blocks = (end - begin + V::kWidth - 1) / V::kWidth;
  RowBlockGroup<V> group{head.row_block(begin), row_blocks, 0};
  for (std::int64_t x = 0; x < row_blocks; ++x) {
    const BackwardTask<V> t = group.row_block(x);
    const GradRowBlock<V>& row_block = t.row_block();
    if (is_out_of_reach(head.s, row_block.rows.i_begin, row_block.rows.i_end, tile)) {
      continue;  // so are those before it, or those after it
    }
    recompute_tile(t, loaded);
    if (t.seen().size == 0) continue;  // between others it adds -0
    if (group.begin == row_blocks) group.begin = x;
    group.end = x + 1;
    differentiate_edits(t, tile.begin);
    const auto* const d_scores =
        V::round_weights(row_block.rows, tile.size, t.d_scores(), t.operands(a.at_weights));
    if (!a.grad.d_q.present) continue;
    add_to_queries(t, loaded, d_scores, packed.keys_are_finite,
                   head.sum_q(begin + x * V::kWidth, ranges.key_range));
  }
  if (group.end > 0) {
    add_group_to_keys(group, tile, head.sums_k(tile.begin, ranges.row_range),
                      head.sums_v(tile.begin, ranges.row_range));
  }
}

/// The same of a whole block of rows.
template <class V>
static void add_blocks(const RangePair<V>& ranges, std::int64_t q_block, std::int64_t kv_block) {
  const semantics::KeyRange rows = block_rows(ranges.head, q_block);
  const std::int64_t step = ranges.head.a.row_blocks * V::kWidth;
  for (std::int64_t row = rows.lo; row < rows.hi; row += step) {
    add_pair(ranges, row, row + step < rows.hi ? row + step : rows.hi, ranges.head.tile(kv_block));
  }
}

/// The key blocks that a block of rows sees some of.
template <class V>
static semantics::KeyRange seen_blocks(const GradHead<V>& head, std::int64_t q_block) {
  const semantics::KeyRange rows = block_rows(head, q_block);
  const std::int64_t group_size = head.problem().group_size;
  const TileSpan tiles = tiles_of(
      semantics::visible_keys(head.s.band, rows.lo / group_size, (rows.hi - 1) / group_size + 1),
      kBlockKeys);
  return {tiles.begin, tiles.end};
}

/// Neighbouring key blocks of a grid, counted from its first, and the half of the phases at hand:
/// in the first, row blocks from a key block's own on; in the second, those before.
struct KeyRun {
  std::int64_t begin;
  std::int64_t end;
  bool is_first_half;
};

/// A work item: each of the run's key blocks takes the row blocks of its half in turn. Row block r
/// takes key blocks from its own downwards, then from the last one downwards; those that it sees
/// nothing of are left out.
template <class V>
static void run_pairs(const RangePair<V>& ranges, KeyRun run) {
  const GradHead<V>& head = ranges.head;
  const semantics::KeyRange rows = ranges.rows(), keys = ranges.keys();
  const std::int64_t row_count = rows.hi - rows.lo, key_count = keys.hi - keys.lo;
  const std::int64_t phases = row_count > key_count ? row_count : key_count;
  std::int64_t* const done = head.done(ranges.row_range) + keys.lo;
  const auto phase = [&](std::int64_t row, std::int64_t key) __attribute__((always_inline)) {
    return (row - key + phases) % phases;
  };
  const auto end_row = [&](std::int64_t key) __attribute__((always_inline)) {
    return run.is_first_half || row_count < key ? row_count : key;
  };
  if (!run.is_first_half) {
    for (std::int64_t key = run.begin; key < run.end && key < row_count; ++key) {
      wait_for_count(done + key, row_count - key);
    }
  }
  const std::int64_t last = run.is_first_half ? row_count : end_row(run.end - 1);
  for (std::int64_t row = run.is_first_half ? run.begin : 0; row < last; ++row) {
    const semantics::KeyRange seen = common_keys(seen_blocks(head, rows.lo + row), keys);
    const std::int64_t lo = seen.lo - keys.lo, hi = seen.hi - keys.lo;
    for (std::int64_t key = run.end - 1; key >= run.begin; --key) {
      if (key < lo || key >= hi || (row >= key) != run.is_first_half) continue;
      const std::int64_t before = key + 1 < hi ? key + 1 : lo;  // of this row block, if any
      if (phase(row, before) < phase(row, key)) {
        wait_for_count(done + before, phase(row, before) + 1);
      }
      if (!is_interrupted(head.a.interrupt)) {
        need_blocks(head, rows.lo + row, keys.lo + key);
        add_blocks(ranges, rows.lo + row, keys.lo + key);
      }
      set_count(done + key, phase(row, key) + 1);
    }
  }
  for (std::int64_t key = run.begin; key < run.end; ++key) {
    const std::int64_t end = end_row(key);
    if (end <= (run.is_first_half ? key : 0)) continue;
    // Where the last row block sees the key block, its pair has set this; the other half may have
    // begun then, and its phases are later.
    const std::int64_t phases_done = phase(end - 1, key) + 1;
    if (read_count(done + key) < phases_done) set_count(done + key, phases_done);
  }
}

/// Part `index` of a head's pairs: grids take turns, so that workers find chains that wait for
/// nothing.
template <class V>
static void run_pairs_of_item(const GradHead<V>& head, std::int64_t index) {
  const std::int64_t grids = count_grids(head.grid), per_item = head.a.blocks_per_item;
  const std::int64_t runs = count_runs(head.grid, per_item);
  const std::int64_t grid = index % grids, round = index / grids % runs;
  const RangePair<V> ranges{head, grid / head.grid.key_ranges, grid % head.grid.key_ranges};
  const std::int64_t keys = ranges.keys().hi - ranges.keys().lo;
  const std::int64_t begin = ((keys + per_item - 1) / per_item - 1 - round) * per_item;
  if (begin < 0) return;
  const std::int64_t end = begin + per_item < keys ? begin + per_item : keys;
  run_pairs(ranges, {begin, end, index / grids < runs});
}

/// sums += more, n of them.
template <class V>
static void add_sums(typename V::Scalar* sums, const typename V::Scalar* more, std::int64_t n) {
  for (std::int64_t x = 0; x < n; x += V::kLanes) {
    V::store(sums + x, V::load(sums + x) + V::load(more + x));
  }
}

/// Adds up the sums of a block of rows and writes its gradients: 0 for rows past the length, of
/// which each block clears as many as a block may have, and in a block that no pair needed.
template <class V>
static void end_row_block(const GradHead<V>& head, std::int64_t block) {
  const BackwardArgs& a = head.a;
  const Problem& p = head.problem();
  if (!a.grad.d_q.present) return;
  const auto clear = [&](semantics::KeyRange rows) {
    clear_padding(a.grad, {head.s.b, head.head_kv, rows.lo, rows.hi}, rows.lo);
  };
  const semantics::KeyRange own = block_rows(head, block);
  if (read_count(head.row_flag(block)) >= kPacked) {
    const std::int64_t size = padded_head_dim(p.head_dim_qk) * V::kWidth;
    for_row_blocks(
        head, block, [&](std::int64_t row, std::int64_t) __attribute__((always_inline)) {
          auto* const sum = head.sum_q(row, 0);
          for (std::int64_t range = 1; range < head.grid.key_ranges; ++range) {
            add_sums<V>(sum, head.sum_q(row, range), size);
          }
          write_d_queries(head.row_block(row), sum);
        });
  } else {
    clear(own);
  }
  const semantics::KeyRange all =
      block_range(block, GradHead<V>::kMostBlockRows, head.s.rows_q * p.group_size);
  clear({semantics::clamp(head.rows(), all.lo, all.hi), all.hi});
}

/// The same of a block of keys.
template <class V>
static void end_key_block(const GradHead<V>& head, std::int64_t block) {
  const Problem& p = head.problem();
  const semantics::KeyRange keys = block_range(block, kBlockKeys, head.s.rows_kv);
  if (read_count(head.key_flag(block)) < kPacked) {
    clear_key_gradients(head.a.grad, head.s.b, head.head_kv, keys);
    return;
  }
  const auto k = head.sums_k(keys.lo, 0), v = head.sums_v(keys.lo, 0);
  for (std::int64_t range = 1; range < head.grid.row_ranges; ++range) {
    add_key_sums<V>(k, head.sums_k(keys.lo, range), kBlockKeys, p.head_dim_qk);
    add_key_sums<V>(v, head.sums_v(keys.lo, range), kBlockKeys, p.head_dim_v);
  }
  write_key_gradients(head.row_block(0), keys, k, v);
}

/// One of head_items. The blocks of an interrupted call are counted, for others wait for them, but
/// not computed.
template <class V>
static void run_item(const GradHead<V>& head, const HeadItems& items, std::int64_t index) {
  if (index < items.pairs) return run_pairs_of_item(head, index);
  wait_for_count(&head.progress().ended, items.pairs);
  if (is_interrupted(head.a.interrupt)) return;
  end_row_block(head, index - items.pairs);
  end_key_block(head, index - items.pairs);
}

/// Takes a work item of the head in `head_workspace`; false where none is left. A work item waits
/// for earlier ones alone: those are with workers that run.
template <class V>
static bool run_next_item(const BackwardArgs& a, char* head_workspace, char* scratch) {
  HeadProgress& progress = progress_of(a, head_workspace);
  if (read_count(&progress.left) <= 0) return false;
  const std::int64_t left = take_from_count(&progress.left);
  if (left <= 0) return false;
  if (left == 1) add_to_count(a.heads_left, -1);
  const GradHead<V> head = grad_head<V>(a, progress.head, head_workspace, scratch);
  const HeadItems items = head_items(head.grid, head.blocks(), a.blocks_per_item);
  run_item(head, items, count_items(items) - left);
  add_to_count(&progress.ended, 1);
  return true;
}

/// The head workspace with the fewest workers of those that have work items left and fewer workers
/// than its share; null: none. `first`: from which on it looks, so that two look at others first.
static char* head_to_help(const BackwardArgs& a, std::int64_t first) {
  const std::int64_t left = read_count(a.heads_left);
  const std::int64_t shared = left < a.head_workspaces ? left : a.head_workspaces;
  char* found = nullptr;
  std::int64_t fewest = shared > 0 ? (a.workers + shared - 1) / shared : 0;
  for (std::int64_t x = 0; x < a.head_workspaces; ++x) {
    char* const head_workspace = a.heads + (first + x) % a.head_workspaces * a.head_bytes;
    const HeadProgress& progress = progress_of(a, head_workspace);
    const std::int64_t workers = read_count(&progress.workers);
    if (workers >= fewest || read_count(&progress.left) <= 0) continue;
    fewest = workers;
    found = head_workspace;
  }
  return found;
}

/// Takes work items of heads under way, one at a time, until all are taken. Helpers that stayed
/// with a head until its end all met at the first that was begun: 16 heads of 1,024 tokens kept 32
/// workers busy to 0.54.
template <class V>
static void help(const BackwardArgs& a, std::int64_t worker, char* scratch) {
  while (read_count(a.heads_left) > 0) {
    if (char* const head_workspace = head_to_help(a, worker + 1)) {
      std::int64_t* const workers = &progress_of(a, head_workspace).workers;
      add_to_count(workers, 1);
      run_next_item<V>(a, head_workspace, scratch);
      add_to_count(workers, -1);
    } else {
      let_others_run();
    }
  }
}

/// A head, in the worker's memory; or, once all are taken, work items of those under way.
template <class V>
static void backward_head(const void* opaque, std::int64_t task, char* scratch) {
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const std::int64_t worker = (scratch - a.scratch) / a.scratch_bytes;
  if (task < a.all_heads) {
    const std::int64_t index = a.all_heads > a.head_workspaces ? worker : task;
    char* const head_workspace = a.heads + index * a.head_bytes;
    const GradHead<V> head = grad_head<V>(a, task, head_workspace, scratch);
    const std::int64_t blocks = head.blocks();
    const std::int64_t items = count_items(head_items(head.grid, blocks, a.blocks_per_item));
    for (std::int64_t x = 0; x < blocks; ++x) *head.row_flag(x) = *head.key_flag(x) = 0;
    for (std::int64_t x = 0; x < head.grid.row_ranges * head.grid.key_blocks; ++x) {
      head.done(0)[x] = 0;
    }
    if (items == 0) {  // a packed sequence without rows and keys
      add_to_count(a.heads_left, -1);
      return;
    }
    head.progress().head = task;
    head.progress().ended = 0;
    add_to_count(&head.progress().workers, 1);
    set_count(&head.progress().left, items);
    while (run_next_item<V>(a, head_workspace, scratch)) {
    }
    add_to_count(&head.progress().workers, -1);
    wait_for_count(&head.progress().ended, items);
    return;
  }
  help<V>(a, worker, scratch);
}

template <class V>
constexpr BackwardKernel kOnePass = {
    .head = backward_head<V>,
    .d_bias = backward_bias<V>,
    .d_sinks = backward_sinks<V>,
    .d_captured = backward_captured<V>,
    .width = V::kWidth,
    .lanes = V::kLanes,
    .row_block_bytes = sizeof(GradRowBlock<V>),
    .packed_bytes = sizeof(PackedTile<V>),
    .scalar_bytes = sizeof(typename V::Scalar),
    .pack = V::kPack,
    .step = V::kStep,
};

}  // namespace regard::cpu
