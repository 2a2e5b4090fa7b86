// The backward in one pass; see args.h. Included by isa_<isa>.cc.

#include <cstdint>

#include "cpu/backward/bias.inl"
#include "cpu/backward/keys.inl"
#include "cpu/threads/progress.h"

namespace regard::cpu {

/// A tile of K and V as begin_block copied it: every group of rows meets it again.
template <class V>
struct PackedTile {
  GradTile<V> tile;
  bool keys_are_finite;
};

/// One kv head of one sequence, and its memory.
template <class V>
struct GradHead {
  using T = typename V::Scalar;
  static constexpr std::int64_t kTaskRowBlocks = task_row_blocks(V::kWidth);

  const BackwardArgs& a;
  Sequence s;
  std::int64_t head_kv;
  char* head_workspace;
  char* scratch;

  const Problem& problem() const { return a.grad.problem; }
  std::int64_t rows() const { return s.len_q * problem().group_size; }
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
    return *reinterpret_cast<PackedTile<V>*>(tile_memory(index) + a.at_packed);
  }
  HeadProgress& progress() const {
    return *reinterpret_cast<HeadProgress*>(head_workspace + a.at_progress);
  }
  std::int64_t* met() const { return reinterpret_cast<std::int64_t*>(head_workspace + a.at_met); }
  T* sum_q(std::int64_t row) const {
    return reinterpret_cast<T*>(head_workspace + a.at_sum_q) +
           row * padded_head_dim(problem().head_dim_qk);
  }
  std::int64_t key_rows() const { return tiles_in(problem().seqlen_kv, a.tile_kv) * a.tile_kv; }
  KeySums<T> sums_k(std::int64_t key) const {
    return {true, a.at_q_rows, reinterpret_cast<T*>(head_workspace + a.at_sum_k), key_rows(), key};
  }
  KeySums<T> sums_v(std::int64_t key) const {
    return {false, a.at_d_out_rows, reinterpret_cast<T*>(head_workspace + a.at_sum_v), key_rows(),
            key};
  }
};

template <class V>
static GradHead<V> grad_head(const BackwardArgs& a, std::int64_t index, char* head_workspace,
                             char* scratch) {
  const Problem& p = a.grad.problem;
  return {a, sequence_of(p, index / p.num_heads_kv), index % p.num_heads_kv, head_workspace,
          scratch};
}

/// Calls f(first row, rows) for the row blocks of block `block` within the sequence.
template <class V, class F>
REGARD_KERNEL_FN void for_row_blocks(const GradHead<V>& head, std::int64_t block, F f) {
  const std::int64_t rows = head.rows();
  std::int64_t row = block * GradHead<V>::kTaskRowBlocks * V::kWidth;
  for (std::int64_t x = 0; x < GradHead<V>::kTaskRowBlocks && row < rows; ++x, row += V::kWidth) {
    f(row, row + V::kWidth < rows ? V::kWidth : rows - row);
  }
}

/// The keys of a block, of `keys` in all.
REGARD_KERNEL_FN semantics::KeyRange block_keys(std::int64_t block, std::int64_t keys) {
  const std::int64_t end = (block + 1) * kBlockKeys;
  return {semantics::clamp(block * kBlockKeys, 0, keys), semantics::clamp(end, 0, keys)};
}

/// Packs the tiles of a block of keys.
template <class V>
static void pack_tiles(const GradHead<V>& head, std::int64_t block) {
  const BackwardArgs& a = head.a;
  const TileSpan span = tiles_of(block_keys(block, head.keys()), a.tile_kv);
  for (std::int64_t index = span.begin; index < span.end; ++index) {
    const Tile tile = tile_at(index, a.tile_kv, head.keys());
    const GradTile<V> packed = load_grad_tile(head.row_block(0), tile, head.tile_memory(index));
    const std::int64_t dim = depth<V>(head.problem().head_dim_qk);
    head.tile(index) = {packed, V::is_finite(packed.keys, tile.size, dim)};
  }
}

/// Packs a block of rows and one of keys, and clears their sums.
template <class V>
static void begin_block(const GradHead<V>& head, std::int64_t block) {
  using T = typename V::Scalar;
  const Problem& p = head.problem();
  for_row_blocks(
      head, block, [&](std::int64_t row, std::int64_t count) __attribute__((always_inline)) {
        const BackwardTask<V> t = head.row_block(row);
        set_grad_rows(t, row, count);
        set_row_stats(t);
        pack_grad_rows(t);
        const std::int64_t size = padded_head_dim(p.head_dim_qk) * V::kWidth;
        __builtin_memset(head.sum_q(row), 0, static_cast<std::size_t>(size) * sizeof(T));
      });
  pack_tiles(head, block);
  const semantics::KeyRange keys = block_keys(block, head.key_rows());
  clear_key_sums<V>(head.sums_k(0).sums, head.key_rows(), keys.lo, keys.hi - keys.lo,
                    p.head_dim_qk);
  clear_key_sums<V>(head.sums_v(0).sums, head.key_rows(), keys.lo, keys.hi - keys.lo, p.head_dim_v);
}

/// Rows [begin, end), a group of row blocks at most, meet a tile of keys.
template <class V>
static void process_tile(const GradHead<V>& head, std::int64_t begin, std::int64_t end,
                         const PackedTile<V>& packed) {
  const BackwardArgs& a = head.a;
  const GradTile<V>& loaded = packed.tile;
  const Tile tile = loaded.tile;
  const std::int64_t row_blocks = (end - begin + V::kWidth - 1) / V::kWidth;
  RowBlockGroup<V> group{head.row_block(begin), row_blocks, 0};
  for (std::int64_t x = 0; x < row_blocks; ++x) {
    const BackwardTask<V> t = group.row_block(x);
    GradRowBlock<V>& row_block = t.row_block();
    if (is_out_of_reach(head.s, row_block.rows.i_begin, row_block.rows.i_end, tile)) {
      continue;  // so are those before it, or those after it
    }
    recompute_tile(t, loaded);
    if (row_block.seen.size == 0) continue;  // between others it adds -0
    if (group.begin == row_blocks) group.begin = x;
    group.end = x + 1;
    differentiate_softcap(t);
    const auto* const d_scores =
        V::round_weights(row_block.rows, tile.size, t.d_scores(), t.operands(a.at_weights));
    if (!a.grad.d_q.present) continue;
    add_to_queries(t, loaded, d_scores, packed.keys_are_finite, head.sum_q(begin + x * V::kWidth));
  }
  if (group.end > 0) {
    add_group_to_keys(group, tile, head.sums_k(tile.begin), head.sums_v(tile.begin));
  }
}

/// Rows [begin, end), a group of row blocks at most, meet `keys`.
template <class V>
static void process_keys(const GradHead<V>& head, std::int64_t begin, std::int64_t end,
                         semantics::KeyRange keys) {
  const BackwardArgs& a = head.a;
  const std::int64_t group_size = head.problem().group_size;
  const semantics::KeyRange seen =
      semantics::visible_keys(head.s.band, begin / group_size, (end - 1) / group_size + 1);
  const TileSpan span = tiles_of(
      {seen.lo > keys.lo ? seen.lo : keys.lo, seen.hi < keys.hi ? seen.hi : keys.hi}, a.tile_kv);
  for (std::int64_t index = span.begin; index < span.end; ++index) {
    process_tile(head, begin, end, head.tile(index));
  }
}

/// Block `q_block` of rows meets block `kv_block` of keys.
template <class V>
static void process_block(const GradHead<V>& head, std::int64_t q_block, std::int64_t kv_block) {
  const std::int64_t size = GradHead<V>::kTaskRowBlocks * V::kWidth, all = head.rows();
  const std::int64_t end = (q_block + 1) * size < all ? (q_block + 1) * size : all;
  const semantics::KeyRange keys = block_keys(kv_block, head.keys());
  if (semantics::is_empty(keys)) return;
  const std::int64_t step = head.a.row_blocks * V::kWidth;
  for (std::int64_t row = q_block * size; row < end; row += step) {
    process_keys(head, row, row + step < end ? row + step : end, keys);
  }
}

/// Writes the gradients of a block of rows.
template <class V>
static void end_rows(const GradHead<V>& head, std::int64_t block) {
  const BackwardArgs& a = head.a;
  const Problem& p = head.problem();
  if (!a.grad.d_q.present) return;
  for_row_blocks(
      head, block, [&](std::int64_t row, std::int64_t) __attribute__((always_inline)) {
        write_d_queries(head.row_block(row), head.sum_q(row));
      });
  const std::int64_t size = GradHead<V>::kTaskRowBlocks * V::kWidth;
  const std::int64_t all = p.seqlen_q * p.group_size;
  const TaskRows rows{head.s.b, head.head_kv, semantics::clamp(block * size, 0, all),
                      semantics::clamp((block + 1) * size, 0, all)};
  clear_padding(a.grad, rows, padding_begin(p, head.s, rows));
}

/// Writes the gradients of a block of keys.
template <class V>
static void end_keys(const GradHead<V>& head, std::int64_t block) {
  const semantics::KeyRange keys = block_keys(block, head.problem().seqlen_kv);
  write_key_gradients(head.row_block(0), keys, head.sums_k(keys.lo), head.sums_v(keys.lo));
}

/// Block `block` of keys meets blocks [begin, end) of rows, of `blocks` in all, each after the next
/// block of keys did.
template <class V>
static void process_rows(const GradHead<V>& head, std::int64_t block, std::int64_t begin,
                         std::int64_t end, std::int64_t blocks) {
  std::int64_t* const met = head.met();
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t phase = (row - block + blocks) % blocks;
    wait_for_count(met + block, phase);
    if (phase > 0) wait_for_count(met + (block + 1) % blocks, phase);
    if (!is_interrupted(head.a.interrupt)) process_block(head, row, block);
    set_count(met + block, phase + 1);
  }
}

/// One of head_items, of the sequence's blocks: what is behind its end meets nothing.
template <class V>
static void run_item(const GradHead<V>& head, std::int64_t item) {
  const std::int64_t all = head.a.blocks;
  const bool is_first = item < all;
  const std::int64_t block = (is_first ? all - 1 : head_items(all)) - item;
  const std::int64_t blocks = count_blocks(head.rows(), head.keys(), V::kWidth);
  const bool is_within = block < blocks;
  // The blocks of an interrupted call are counted, for others wait for them, but not computed.
  if (is_first && !is_interrupted(head.a.interrupt)) begin_block(head, block);
  if (is_within && is_first) process_rows(head, block, block, blocks, blocks);
  if (is_within && !is_first) process_rows(head, block, 0, block, blocks);
  // The last that these keys met were the rows before theirs, which met all keys with that.
  const bool is_last = is_within ? !is_first || block == 0 : is_first;
  if (!is_last || is_interrupted(head.a.interrupt)) return;
  end_keys(head, block);
  end_rows(head, is_within ? (block + blocks - 1) % blocks : block);
}

/// Takes work items of the head in `head_workspace` while some are left. A work item waits for
/// earlier ones alone: those are with workers that run.
template <class V>
static void run_items(const BackwardArgs& a, char* head_workspace, char* scratch) {
  HeadProgress& progress = *reinterpret_cast<HeadProgress*>(head_workspace + a.at_progress);
  const std::int64_t items = head_items(a.blocks);
  while (read_count(&progress.taken) < items) {
    const std::int64_t item = add_to_count(&progress.taken, 1);
    if (item >= items) return;
    if (item == items - 1) add_to_count(a.heads_left, -1);
    run_item(grad_head<V>(a, progress.head, head_workspace, scratch), item);
    add_to_count(&progress.ended, 1);
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
    for (std::int64_t x = 0; x < a.blocks; ++x) head.met()[x] = 0;
    head.progress().head = task;
    head.progress().ended = 0;
    set_count(&head.progress().taken, 0);
    run_items<V>(a, head_workspace, scratch);
    wait_for_count(&head.progress().ended, head_items(a.blocks));
    return;
  }
  while (read_count(a.heads_left) > 0) {
    for (std::int64_t x = 0; x < a.head_workspaces; ++x) {
      run_items<V>(a, a.heads + (worker + 1 + x) % a.head_workspaces * a.head_bytes, scratch);
    }
    let_others_run();
  }
}

template <class V>
constexpr BackwardKernel kOnePass = {
    .head = backward_head<V>,
    .d_bias = backward_bias<V>,
    .d_sinks = backward_sinks<V>,
    .width = V::kWidth,
    .lanes = V::kLanes,
    .row_block_bytes = sizeof(GradRowBlock<V>),
    .packed_bytes = sizeof(PackedTile<V>),
    .scalar_bytes = sizeof(typename V::Scalar),
    .pack = V::kPack,
};

}  // namespace regard::cpu
