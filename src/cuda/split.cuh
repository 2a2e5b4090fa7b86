#pragma once

#include "cuda/edit.cuh"
#include "cuda/forward_args.h"
#include "cuda/tasks.cuh"
#include "semantics/splits.h"

// A forward of decode rows: a block has them all and a split of the keys, and leaves its
// sums for a launch that merges them. Splits are a rule of the sequence's length, merged in their
// order.

namespace regard::cuda {

/// The keys that a block's rows may see, and among them, with kSplit, those of its split.
template <bool kSplit>
REGARD_DEVICE_FN semantics::KeyRange keys_of_block(const Reach& reach, const Sequence& s,
                                                   const HeadTask& task) {
  const semantics::KeyRange keys = Reach::keys(reach);
  if (!kSplit) return keys;
  const std::int64_t len_kv = s.band.len_kv;
  return semantics::common_keys(keys, semantics::split_keys(len_kv, kTile, task.block));
}

/// Where row 0 of split `split` stands in Splits::stats and, times head_dim_v, in sums.
REGARD_KERNEL_FN std::int64_t place_of_split(const ForwardArgs& args, const HeadTask& task,
                                             std::int64_t split) {
  const Problem& p = args.problem;
  const std::int64_t head = task.b * p.num_heads_kv + task.head_kv;
  return (head * args.splits.row_max + split) * p.seqlen_q * p.group_size;
}

/// The sums of a block's split, to be written.
REGARD_DEVICE_FN DenseRows rows_of_split(const ForwardArgs& args, const HeadTask& task) {
  const Problem& p = args.problem;
  float* const sums = args.splits.sums + place_of_split(args, task, task.block) * p.head_dim_v;
  return {problem::Element::kF32, p.head_dim_v, reinterpret_cast<char*>(sums),
          p.head_dim_v * static_cast<std::int64_t>(sizeof(float)), p.seqlen_q * p.group_size};
}

REGARD_DEVICE_FN void leave_stats(const ForwardArgs& args, const HeadTask& task, std::int64_t row,
                                  float max, float sum) {
  float* const stats = args.splits.stats + 2 * (place_of_split(args, task, task.block) + row);
  stats[0] = max;
  stats[1] = sum;
}

/// A block has one row.
struct MergeKernel {
  struct Args {
    ForwardArgs forward{};
    float weight = 1.0f;  // of a probability of 1 in the sums
  };
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSharedBytes = 16;  // not used

  REGARD_KERNEL_FN HeadGrid grid(const Problem& p) { return {p.seqlen_q * p.group_size, 1}; }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.forward.problem;
    for_each_head_task(block, p, grid(p), [&](const HeadTask& task) {
      const Sequence s = problem::sequence_of(p, task.b);
      const std::int64_t count = semantics::split_count(s.band.len_kv);
      const bool exists = task.block < s.rows_q * p.group_size;
      if (count > 1 && exists) merge(block, args, task, count);
    });
  }

  template <class Block>
  REGARD_DEVICE_FN void merge(const Block& block, const Args& args, const HeadTask& task,
                              std::int64_t count) {
    const Problem& p = args.forward.problem;
    const Splits& splits = args.forward.splits;
    const auto place = [&](std::int64_t split) {
      return place_of_split(args.forward, task, split) + task.block;
    };
    float max = minus_infinity<float>();
    for (std::int64_t split = 0; split < count; ++split) {
      const float other = splits.stats[2 * place(split)];
      max = other > max ? other : max;
    }
    /// What a split's sums shrink by, exactly 1 where it has the maximum.
    const auto rescale = [&](std::int64_t split) {
      const float before = splits.stats[2 * place(split)];
      if (before == minus_infinity<float>()) return 0.0f;
      return exp2_of((before - max) * static_cast<float>(p.exp2_scale));
    };
    float sum = 0.0f;
    for (std::int64_t split = 0; split < count; ++split) {
      sum += splits.stats[2 * place(split) + 1] * rescale(split);
    }
    const auto descale = static_cast<float>(problem::descale_of(p.descale_v, task.b, task.head_kv));
    const float share = inverse_sum(p, sum) * (descale / args.weight);
    const std::int64_t head = task.head_kv * p.group_size + task.block % p.group_size;
    const std::int64_t query = task.block / p.group_size;
    char* const to = problem::row_address(p.out, task.b, head, query);
    for (std::int64_t column = block.thread(); column < p.head_dim_v; column += kThreads) {
      float out = 0.0f;
      for (std::int64_t split = 0; split < count; ++split) {
        out += splits.sums[place(split) * p.head_dim_v + column] * rescale(split);
      }
      store_element(p.out.type, to, column, out * share);
    }
    if (block.thread() != 0) return;
    problem::write_row_stats(p, task.b, head, query, static_cast<double>(max) * p.score_unit, sum);
  }
};

}  // namespace regard::cuda
