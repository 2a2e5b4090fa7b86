// Few rows over many keys: the keys come in parts (split.h), each with a softmax of its own, merged
// in their order. A part is one slot's task where whole sequences are too few for the slots; the
// bits are the same. Included by a backend's isa_<isa>.cc, which takes its kernels from here.

#include <cstdint>

#include "cpu/tiled_forward.inl"

namespace regard::cpu {

/// What a part, or the sum of some, is: the states of the strips, and their outs.
template <class Tiles>
struct Part {
  using V = typename Tiles::Vocabulary;
  RowState<V>* states;
  typename V::Scalar* outs;
};

template <class Tiles>
static Part<Tiles> part_at(char* states, char* outs) {
  using V = typename Tiles::Vocabulary;
  return {reinterpret_cast<RowState<V>*>(states), reinterpret_cast<typename V::Scalar*>(outs)};
}

/// The place of a part among those of all slots.
template <class Tiles>
static Part<Tiles> shared_part(const StripSet<Tiles>& set, std::int64_t index) {
  const TiledArgs& a = set.a;
  const std::int64_t task = set.s.b * head_groups(a) + set.head_kv / a.heads_per_task;
  char* const states = a.parts + (task * a.parts_per_task + index) * a.part_bytes;
  return part_at<Tiles>(states, states + set.count() * sizeof(*Part<Tiles>::states));
}

/// Computes a part from nothing: the sink comes with the merge.
template <class Tiles>
static void compute_part(const StripSet<Tiles>& set, std::int64_t index, const Part<Tiles>& part) {
  const auto keys = split_keys(set.s.band.len_kv, set.a.tile_kv, index);
  for (std::int64_t x = 0; x < set.count(); ++x) clear_state(&set.strips()[x].state);
  sum_keys(set, keys, part.outs);
  for (std::int64_t x = 0; x < set.count(); ++x) part.states[x] = set.strips()[x].state;
}

/// total += part.
template <class Tiles>
static void merge_part(const StripSet<Tiles>& set, const Part<Tiles>& part,
                       const Part<Tiles>& total) {
  using V = typename Tiles::Vocabulary;
  const Problem& p = set.a.problem;
  const std::int64_t size = Tiles::Out::size(p);
  for (std::int64_t x = 0; x < set.count(); ++x) {
    const Strip<V>& strip = set.strips()[x];
    alignas(64) typename V::Scalar carry[V::kWidth];
    alignas(64) typename V::Scalar shrink[V::kWidth];
    merge_state<V>(p, strip.vectors, part.states[x], total.states + x, carry, shrink);
    Tiles::Out::merge(p, strip, carry, shrink, part.outs + x * size, total.outs + x * size);
  }
}

/// Sums the parts in their order, from the sinks on, and writes; part_of(index) gives a part.
template <class Tiles, class PartOf>
static void merge_parts(const StripSet<Tiles>& set, PartOf part_of) {
  const auto total = part_at<Tiles>(set.scratch + set.a.at_states, set.scratch + set.a.at_out);
  for (std::int64_t x = 0; x < set.count(); ++x) total.states[x] = set.strips()[x].state;
  clear_outs(set, total.outs);
  const std::int64_t count = split_count(set.s.band.len_kv);
  for (std::int64_t index = 0; index < count; ++index) merge_part(set, part_of(index), total);
  for (std::int64_t x = 0; x < set.count(); ++x) set.strips()[x].state = total.states[x];
  write_outs(set, total.outs);
}

/// All rows, part after part.
template <class Tiles>
static void forward_parts(const StripSet<Tiles>& set) {
  if (split_count(set.s.band.len_kv) == 1) return forward_rows(set);
  char* const states = set.scratch + set.a.at_states;
  const auto part = part_at<Tiles>(states + set.count() * sizeof(*Part<Tiles>::states),
                                   set.scratch + set.a.at_part);
  merge_parts(set, [&](std::int64_t index) {
    compute_part(set, index, part);
    return part;
  });
}

/// Calls f(strips) with all rows of the sequence, in the form that their number asks for.
template <class Tiles, class F>
static void with_few_rows(const TiledArgs& a, const Sequence& s, HeadRows rows, char* scratch,
                          F f) {
  rows.begin = 0;
  rows.end = s.len_q * a.problem.group_size;
  if (rows.end == 0) return;
  if (rows.end <= Tiles::kDotRows) {
    f(make_strips<typename Tiles::Dot>(a, s, rows, scratch));
  } else {
    f(make_strips<Tiles>(a, s, rows, scratch));
  }
}

/// Task (b, group of heads) of few rows.
struct FewTask {
  Sequence s;
  HeadRows rows;
};

REGARD_KERNEL_FN FewTask few_task(const TiledArgs& a, std::int64_t task) {
  const Problem& p = a.problem;
  const std::int64_t first = task % head_groups(a) * a.heads_per_task;
  const std::int64_t left = p.num_heads_kv - first;
  return {sequence_of(p, task / head_groups(a)),
          {first, left < a.heads_per_task ? left : a.heads_per_task, 0, 0}};
}

template <class V>
static void write_few_padding(const TiledArgs& a, const FewTask& task) {
  const Problem& p = a.problem;
  for (std::int64_t head = 0; head < task.rows.heads; ++head) {
    const TaskRows rows{task.s.b, task.rows.head_kv + head, 0, p.seqlen_q * p.group_size};
    write_padding<V>(p, rows, padding_begin(p, task.s, rows));
  }
}

template <class Tiles>
static void forward_few(const void* opaque, std::int64_t index, char* scratch) {
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const FewTask task = few_task(a, index);
  write_few_padding<typename Tiles::Vocabulary>(a, task);
  with_few_rows<Tiles>(a, task.s, task.rows, scratch, [](const auto& set) { forward_parts(set); });
}

/// A single part is left to the merge. Parts are the slower index: where heads of a key are
/// neighbours in memory, slots then read close to each other.
template <class Tiles>
static void forward_few_part(const void* opaque, std::int64_t index, char* scratch) {
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const std::int64_t tasks = a.problem.batch * head_groups(a);
  const FewTask task = few_task(a, index % tasks);
  const std::int64_t count = split_count(task.s.band.len_kv);
  const std::int64_t part = part_of_step(a.parts_per_task, a.part_runs, index / tasks);
  if (count == 1 || part >= count) return;
  with_few_rows<Tiles>(a, task.s, task.rows, scratch,
                       [&](const auto& set) { compute_part(set, part, shared_part(set, part)); });
}

template <class Tiles>
static void forward_few_merge(const void* opaque, std::int64_t index, char* scratch) {
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const FewTask task = few_task(a, index);
  write_few_padding<typename Tiles::Vocabulary>(a, task);
  with_few_rows<Tiles>(a, task.s, task.rows, scratch, [&](const auto& set) {
    if (split_count(task.s.band.len_kv) == 1) return forward_rows(set);
    merge_parts(set, [&](std::int64_t part) { return shared_part(set, part); });
  });
}

/// Task of the grid: a block of rows. A sequence of few rows goes whole with its first block, so
/// that it has the bits that it has alone.
template <class Tiles>
static void forward_block(const void* opaque, std::int64_t task, char* scratch) {
  using V = typename Tiles::Vocabulary;
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const TaskRows rows = task_rows(a.problem, a.grid, task);
  const Sequence s = sequence_of(a.problem, rows.b);
  const std::int64_t end = padding_begin(a.problem, s, rows);
  write_padding<V>(a.problem, rows, end);
  if (end == rows.begin) return;
  const HeadRows block{rows.head_kv, 1, rows.begin, end};
  if (s.len_q * a.problem.group_size > kSplitRows) {
    forward_rows(make_strips<Tiles>(a, s, block, scratch));
  } else if (rows.begin == 0) {
    with_few_rows<Tiles>(a, s, block, scratch, [](const auto& set) { forward_parts(set); });
  }
}

/// The kernels of one instruction set.
template <class Tiles>
constexpr TiledKernel kTiledKernel = {forward_block<Tiles>,
                                      forward_few<Tiles>,
                                      forward_few_part<Tiles>,
                                      forward_few_merge<Tiles>,
                                      Tiles::Vocabulary::kWidth,
                                      Tiles::kDotRows,
                                      sizeof(Strip<typename Tiles::Vocabulary>),
                                      sizeof(RowState<typename Tiles::Vocabulary>)};

}  // namespace regard::cpu
