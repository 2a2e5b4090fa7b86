// Rows over many keys: the keys come in splits (split.h), each with a softmax of its own, merged in
// their order. A split is one worker's task where whole sequences, or blocks of their rows, are too
// few for the workers; the bits are the same. Included by a backend's isa_<isa>.cc, which takes its
// kernels from here.

#include <cstdint>

#include "cpu/decode/tile_rows.h"
#include "cpu/forward/tiled_forward.inl"

namespace regard::cpu {

/// What a split, or the sum of some, is: the states of the row blocks, and their outs.
template <class Tiles>
struct Split {
  using V = typename Tiles::Vocabulary;
  RowState<V>* states;
  typename V::Scalar* outs;
};

template <class Tiles>
static Split<Tiles> split_at(char* states, char* outs) {
  using V = typename Tiles::Vocabulary;
  return {reinterpret_cast<RowState<V>*>(states), reinterpret_cast<typename V::Scalar*>(outs)};
}

/// Splits of a sequence's keys.
REGARD_KERNEL_FN std::int64_t count_splits(const TiledArgs& a, const Sequence& s) {
  return num_splits(s.len_q * a.problem.group_size, s.band.len_kv);
}

/// The place of a task's split among those of all workers.
template <class Tiles>
static Split<Tiles> shared_split(const RowBlockSet<Tiles>& set, std::int64_t task,
                                 std::int64_t index) {
  const TiledArgs& a = set.a;
  char* const states = a.splits + (task * a.splits_per_task + index) * a.split_bytes;
  return split_at<Tiles>(states, states + set.count() * sizeof(*Split<Tiles>::states));
}

/// Computes a split from nothing: the sink comes with the merge.
template <class Tiles>
static void compute_split(const RowBlockSet<Tiles>& set, std::int64_t index,
                          const Split<Tiles>& split) {
  const auto keys = split_keys(set.s.band.len_kv, set.a.tile_kv, count_splits(set.a, set.s), index);
  for (std::int64_t x = 0; x < set.count(); ++x) clear_state(&set.row_blocks()[x].state);
  sum_keys(set, keys, split.outs);
  for (std::int64_t x = 0; x < set.count(); ++x) split.states[x] = set.row_blocks()[x].state;
}

/// total += split.
template <class Tiles>
static void merge_split(const RowBlockSet<Tiles>& set, const Split<Tiles>& split,
                        const Split<Tiles>& total) {
  using V = typename Tiles::Vocabulary;
  const Problem& p = set.a.problem;
  const std::int64_t size = Tiles::Out::size(p);
  for (std::int64_t x = 0; x < set.count(); ++x) {
    const RowBlock<V>& row_block = set.row_blocks()[x];
    alignas(64) typename V::Scalar rescale[V::kWidth];
    alignas(64) typename V::Scalar split_rescale[V::kWidth];
    merge_state<V>(p, row_block.vectors, split.states[x], total.states + x, rescale, split_rescale);
    Tiles::Out::merge(p, row_block, rescale, split_rescale, split.outs + x * size,
                      total.outs + x * size);
  }
}

/// Sums the splits in their order, from the sinks on, and writes; split_of(index) gives a split.
template <class Tiles, class SplitOf>
static void merge_splits(const RowBlockSet<Tiles>& set, SplitOf split_of) {
  const auto total = split_at<Tiles>(set.scratch + set.a.at_states, set.scratch + set.a.at_out);
  for (std::int64_t x = 0; x < set.count(); ++x) total.states[x] = set.row_blocks()[x].state;
  clear_outs(set, total.outs);
  const std::int64_t count = count_splits(set.a, set.s);
  for (std::int64_t index = 0; index < count; ++index) merge_split(set, split_of(index), total);
  for (std::int64_t x = 0; x < set.count(); ++x) set.row_blocks()[x].state = total.states[x];
  write_outs(set, total.outs);
}

/// All rows, split after split.
template <class Tiles>
static void forward_splits(RowBlockSet<Tiles>& set) {
  if (count_splits(set.a, set.s) == 1) return forward_rows(set);
  char* const states = set.scratch + set.a.at_states;
  const auto split = split_at<Tiles>(states + set.count() * sizeof(*Split<Tiles>::states),
                                     set.scratch + set.a.at_split);
  merge_splits(set, [&](std::int64_t index) {
    compute_split(set, index, split);
    return split;
  });
}

/// Calls f(row blocks) with all rows of the sequence, in the form for their number.
template <class Tiles, class F>
static void with_decode_rows(const TiledArgs& a, const Sequence& s, const HeadRows& heads,
                             char* scratch, F f) {
  const HeadRows rows = {heads.head_kv, heads.heads, 0, s.len_q * a.problem.group_size, heads.next};
  if (rows.end == 0) return;
  if (rows.end <= Tiles::kMaxDecodeRows) {
    auto set = make_row_blocks<typename Tiles::Dot>(a, s, rows, scratch);
    f(set);
  } else {
    auto set = make_row_blocks<Tiles>(a, s, rows, scratch);
    f(set);
  }
}

/// Task (b, group of heads) of decode rows.
struct DecodeTask {
  Sequence s;
  HeadRows rows;
};

REGARD_KERNEL_FN DecodeTask decode_task(const TiledArgs& a, std::int64_t task) {
  const Problem& p = a.problem;
  const std::int64_t b = task / a.head_groups,
                     first = (task - b * a.head_groups) * a.heads_per_task;
  const std::int64_t left = p.num_heads_kv - first;
  return {sequence_of(p, b), {first, left < a.heads_per_task ? left : a.heads_per_task, 0, 0}};
}

/// The rows of the first head of the task after this one, which the same worker mostly computes
/// next.
REGARD_KERNEL_FN TaskRows task_after(const TiledArgs& a, const DecodeTask& task) {
  const Problem& p = a.problem;
  std::int64_t b = task.s.b, head_kv = task.rows.head_kv + a.heads_per_task;
  if (head_kv >= p.num_heads_kv) {
    head_kv = 0;
    if (++b == p.batch) return {};
  }
  return {b, head_kv, 0, sequence_of(p, b).len_q * p.group_size};
}

template <class V>
static void write_decode_padding(const TiledArgs& a, const DecodeTask& task) {
  const Problem& p = a.problem;
  for (std::int64_t head = 0; head < task.rows.heads; ++head) {
    const TaskRows rows{task.s.b, task.rows.head_kv + head, 0, task.s.rows_q * p.group_size};
    write_padding<V>(p, rows, padding_begin(p, task.s, rows));
  }
}

template <class Tiles>
static void forward_decode(const void* opaque, std::int64_t index, char* scratch) {
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  DecodeTask task = decode_task(a, index);
  task.rows.next = task_after(a, task);
  write_decode_padding<typename Tiles::Vocabulary>(a, task);
  with_decode_rows<Tiles>(a, task.s, task.rows, scratch, [](auto& set) { forward_splits(set); });
}

/// A single split is left to the merge. Splits are the slower index: where heads of a key are
/// neighbours in memory, workers then read close to each other.
template <class Tiles>
static void forward_decode_split(const void* opaque, std::int64_t index, char* scratch) {
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const std::int64_t tasks = a.problem.batch * a.head_groups;
  const DecodeTask task = decode_task(a, index % tasks);
  const std::int64_t count = count_splits(a, task.s);
  const std::int64_t split = split_of_step(a.splits_per_task, a.split_runs, index / tasks);
  if (count == 1 || split >= count) return;
  with_decode_rows<Tiles>(a, task.s, task.rows, scratch, [&](const auto& set) {
    compute_split(set, split, shared_split(set, index % tasks, split));
  });
}

template <class Tiles>
static void forward_decode_merge(const void* opaque, std::int64_t index, char* scratch) {
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const DecodeTask task = decode_task(a, index);
  write_decode_padding<typename Tiles::Vocabulary>(a, task);
  with_decode_rows<Tiles>(a, task.s, task.rows, scratch, [&](auto& set) {
    if (count_splits(a, task.s) == 1) return forward_rows(set);
    merge_splits(set, [&](std::int64_t split) { return shared_split(set, index, split); });
  });
}

/// Whether workers share the splits of a sequence whose rows come in blocks. There is room for
/// those of the call's own extents; a sequence of fewer rows may have more.
REGARD_KERNEL_FN bool shares_block_splits(const TiledArgs& a, const Sequence& s) {
  const std::int64_t count = count_splits(a, s);
  return a.splits != nullptr && s.len_q * a.problem.group_size > kSplitRows && count > 1 &&
         count <= a.splits_per_task;
}

/// A split of a task of the grid; tasks are the faster index.
template <class Tiles>
static void forward_block_split(const void* opaque, std::int64_t index, char* scratch) {
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const std::int64_t tasks = a.problem.num_heads_kv * a.grid.all_blocks;
  const std::int64_t task = index % tasks, split = index / tasks;
  const TaskRows rows = task_rows(a.problem, a.grid, task);
  const Sequence s = sequence_of(a.problem, rows.b);
  const std::int64_t end = padding_begin(a.problem, s, rows);
  if (end == rows.begin || !shares_block_splits(a, s) || split >= count_splits(a, s)) return;
  const auto set = make_row_blocks<Tiles>(a, s, {rows.head_kv, 1, rows.begin, end}, scratch);
  compute_split(set, split, shared_split(set, task, split));
}

/// The rows of the task after this one, which the same worker mostly computes next.
REGARD_KERNEL_FN TaskRows task_rows_after(const TiledArgs& a, std::int64_t task) {
  const TaskGrid& grid = a.grid;
  const std::int64_t blocks = a.problem.num_heads_kv * grid.all_blocks;
  if (task + 1 >= grid.whole + (blocks - grid.whole) * grid.sub_blocks) return {};
  return task_rows(a.problem, grid, task + 1);
}

/// Task of the grid: a block of rows; where workers share its splits, what they left is merged. A
/// sequence of decode rows goes whole with its first block, so that it has the bits that it has
/// alone.
template <class Tiles>
static void forward_block(const void* opaque, std::int64_t task, char* scratch) {
  using V = typename Tiles::Vocabulary;
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const TaskRows rows = task_rows(a.problem, a.grid, task);
  const Sequence s = sequence_of(a.problem, rows.b);
  const std::int64_t end = padding_begin(a.problem, s, rows);
  write_padding<V>(a.problem, rows, end);
  if (end == rows.begin) return;
  const HeadRows block{rows.head_kv, 1, rows.begin, end, task_rows_after(a, task)};
  if (s.len_q * a.problem.group_size > kSplitRows) {
    auto set = make_row_blocks<Tiles>(a, s, block, scratch);
    if (!shares_block_splits(a, s)) return forward_splits(set);
    merge_splits(set, [&](std::int64_t split) { return shared_split(set, task, split); });
  } else if (rows.begin == 0) {
    with_decode_rows<Tiles>(a, s, block, scratch, [](auto& set) { forward_splits(set); });
  }
}

/// The kernels of one instruction set.
template <class Tiles>
constexpr TiledKernel kTiledKernel = {forward_block<Tiles>,
                                      forward_block_split<Tiles>,
                                      forward_decode<Tiles>,
                                      forward_decode_split<Tiles>,
                                      forward_decode_merge<Tiles>,
                                      Tiles::Vocabulary::kWidth,
                                      Tiles::Vocabulary::kLanes,
                                      Tiles::kTileFactor,
                                      Tiles::kMaxDecodeRows,
                                      Tiles::kAddsRows,
                                      sizeof(RowBlock<typename Tiles::Vocabulary>),
                                      sizeof(RowState<typename Tiles::Vocabulary>),
                                      Tiles::Dot::kReadsU4,
                                      kConvertsF8<typename Tiles::Vocabulary>,
                                      kHasF16OfF8<typename Tiles::Vocabulary>};

}  // namespace regard::cpu
