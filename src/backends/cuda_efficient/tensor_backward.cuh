#pragma once

#include <cstdint>

#include "backends/cuda_efficient/tensor_forward.cuh"
#include "cuda/grad_lanes.cuh"

// EFFICIENT's backward of bf16 and f16 on tensor cores: a pass each for d_q, d_k and d_v. A block
// has 128 rows (queries of all heads that read one kv head, or keys), 16 to a warp, which stay in
// registers with their gradient, and passes over units of 32 of the others; while one is computed
// the next comes. Eight products where one pass would need five, but no atomics, as in
// backward.cuh. Probabilities and gradients of scores are rounded to the inputs' type before they
// are multiplied with rows.

namespace regard::cuda_efficient {

using cuda::RowNumbers;
using problem::GradProblem;

inline constexpr int kUnit = 32;

struct TensorGradArgs {
  BackwardArgs call{};
  bool q_in_steps = false, k_in_steps = false, v_in_steps = false;
  bool d_out_in_steps = false;  // of 16 bytes
};

inline TensorGradArgs tensor_grad_args(const BackwardArgs& args) {
  const Problem& p = args.grad.problem;
  const auto in_chunks = [](const problem::View& view, std::int64_t columns) {
    return is_in_steps(view, columns, cuda::kChunk);
  };
  return {args, in_chunks(p.q, p.head_dim_qk), in_chunks(p.k, p.head_dim_qk),
          in_chunks(p.v, p.head_dim_v), in_chunks(args.grad.d_out, p.head_dim_v)};
}

/// Facts, places and numbers of kRows rows in shared memory.
template <int kRows>
struct GradRowsLayout {
  static constexpr int kAtQ = kRows * static_cast<int>(sizeof(cuda::RowFacts<float>));
  static constexpr int kAtDOut = kAtQ + kRows * static_cast<int>(sizeof(std::int64_t));
  static constexpr int kAtNumbers = kAtDOut + kRows * static_cast<int>(sizeof(std::int64_t));
  static constexpr int kBytes = kAtNumbers + kRows * static_cast<int>(sizeof(RowNumbers));
};

template <class Facts, class Places, class Numbers>
struct GradRows {
  Facts facts;
  Places in_q, in_d_out;
  Numbers numbers;
};
template <class Facts, class Places, class Numbers>
GradRows(Facts, Places, Places, Numbers) -> GradRows<Facts, Places, Numbers>;

template <int kRows, class Block>
REGARD_DEVICE_FN auto grad_rows(const Block& block, int at) {
  using Layout = GradRowsLayout<kRows>;
  return GradRows{block.template shared<cuda::RowFacts<float>>(at, kRows),
                  block.template shared<std::int64_t>(at + Layout::kAtQ, kRows),
                  block.template shared<std::int64_t>(at + Layout::kAtDOut, kRows),
                  block.template shared<RowNumbers>(at + Layout::kAtNumbers, kRows)};
}

/// Read them behind a barrier.
template <int kRows, class Block, class Rows>
REGARD_DEVICE_FN void write_grad_rows(const Block& block, const TensorGradArgs& args,
                                      const Sequence& s, const cuda::RowBlock& rows,
                                      const Rows& to) {
  const GradProblem& g = args.call.grad;
  for (int r = block.thread(); r < kRows; r += cuda::kThreads) {
    const auto facts = cuda::row_facts<float>(g.problem, s, rows, r);
    const RowNumbers numbers = cuda::row_numbers(args.call, s, facts);
    to.facts[r] = facts;
    to.in_q[r] = cuda::place_in(g.problem.q, s.b, facts);
    to.in_d_out[r] = cuda::place_in(g.d_out, s.b, facts);
    to.numbers[r] = numbers;
  }
}

/// Scores of a warp's elements, and gradients of dropped probabilities, become what rows are
/// multiplied by: gradients of scaled scores, or, without kOfScores, dropped probabilities.
/// row_of(i, n, x) and key_of(i, n, x) give where an element stands.
template <bool kOfScores, class Rows, class RowOf, class KeyOf>
REGARD_DEVICE_FN void differentiate(const GradProblem& g, std::int64_t b, bool is_full,
                                    const Rows& rows, RowOf row_of, KeyOf key_of,
                                    const WarpSums<kUnit>& d_probs, WarpSums<kUnit>* scores) {
  const Problem& p = g.problem;
  const bool edits = !cuda::needs_scale_alone(p, is_full);
  const auto keep = problem::keep_scale<float>(p);
  REGARD_DEVICE_UNROLL
  for (int element = 0; element < kUnit / 2; ++element) {
    const int n = element / 4, x = element % 2, i = element / 2 % 2;
    const int r = row_of(i, n, x);
    const std::int64_t j = key_of(i, n, x);
    float& value = scores->at[n][2 * i + x];
    float slope = 1.0f;
    const float prob = cuda::prob_again(p, b, edits, is_full, rows, r, j, value, &slope);
    const bool kept = cuda::keeps(p, rows, r, j);
    float result = prob;
    if constexpr (kOfScores) {
      const float d_prob = kept ? d_probs.at[n][2 * i + x] * keep : 0.0f;
      const RowNumbers numbers = rows.numbers[r];
      result *= (d_prob - numbers.delta) * slope;
    } else {
      result = kept ? result : 0.0f;
    }
    value = cuda::is_hidden(prob) ? cuda::hidden_value<float>() : result;
  }
}

/// sums += weights rows, rounded to the inputs' type: those of f16 in a scale of each row.
template <Element kType, int kDims, class Block, class Shared>
REGARD_DEVICE_FN void add_product(const Block& block, const WarpSums<kUnit>& weights, Shared rows,
                                  std::int64_t columns, WarpSums<kDims>* sums) {
  if constexpr (kType == Element::kF16) {
    cuda::RowScales scales;
    const auto operand = cuda::as_scaled_operand<kType>(block, weights, &scales);
    cuda::add_scaled_tile_product<kType>(block, operand, rows, columns, scales.inverse, sums);
  } else {
    const cuda::WarpRows<kUnit> operand = cuda::as_operand<kType>(weights, 1.0f);
    cuda::add_tile_product<kType>(block, operand, rows, columns, sums);
  }
}

/// Two stages, each of a unit's rows of two tensors.
template <int kDims>
struct Stages {
  static constexpr int kElements = kUnit * cuda::kTensorPitch<kDims>;
  static constexpr int kPartBytes = kElements * static_cast<int>(sizeof(std::uint16_t));
  static constexpr int kBytes = 4 * kPartBytes;

  /// Rows of tensor `part` in a stage.
  template <class Block>
  REGARD_DEVICE_FN auto part(const Block& block, int at, int stage, int part) {
    const int index = stage * 2 + part;
    return block.template shared<std::uint16_t>(at + index * kPartBytes, kElements);
  }
};

/// d_q of 128 rows; units are keys.
template <Element kType, int kDims>
struct TensorQueriesKernel {
  using Args = TensorGradArgs;
  using Space = Stages<kDims>;
  static constexpr int kMinSm = 80;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kAtStages = GradRowsLayout<kTensorRows>::kBytes;
  static constexpr int kSharedBytes = kAtStages + Space::kBytes;
  static_assert(kAtStages % 16 == 0);

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    return {cuda::count_row_blocks<kTensorRows>(p), 1};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.call.grad.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const GradProblem& g = args.call.grad;
    const Problem& p = g.problem;
    const Sequence s = problem::sequence_of(p, task.b);
    const cuda::RowBlock rows =
        cuda::group_rows<kTensorRows>(p, cuda::queries_of(s), task.head_kv, task.block);
    const auto own = grad_rows<kTensorRows>(block, 0);
    write_grad_rows<kTensorRows>(block, args, s, rows, own);
    block.sync();
    cuda::WarpRows<kDims> q, d_out;
    load_rows(block, cuda::listed_rows(p.q, own.in_q, p.head_dim_qk), 0, args.q_in_steps, &q);
    load_rows(block, cuda::listed_rows(g.d_out, own.in_d_out, p.head_dim_v), 0, args.d_out_in_steps,
              &d_out);

    const cuda::Reach reach = cuda::reach_of(p, rows, s);
    const semantics::TileSpan units = semantics::tiles_of(cuda::Reach::keys(reach), kUnit);
    const auto seen = [&](std::int64_t unit) {
      return cuda::classify<kUnit>(reach, semantics::tile_at(unit, kUnit, s.band.len_kv));
    };
    const auto next = [&](std::int64_t unit) {
      while (unit < units.end && seen(unit) == semantics::TileClass::kEmpty) ++unit;
      return unit;
    };
    WarpSums<kDims> d_q;
    cuda::clear(&d_q);
    int stage = 0;
    std::int64_t unit = next(units.begin);
    if (unit < units.end) begin_unit(block, args, task, s, unit, stage);
    while (unit < units.end) {
      const bool is_full = seen(unit) == semantics::TileClass::kFull;
      const auto keys = Space::part(block, kAtStages, stage, 0);
      const auto values = Space::part(block, kAtStages, stage, 1);
      block.wait_copies();
      bool is_unsafe = cuda::has_non_finite<kType, kUnit, kDims>(block, keys);
      is_unsafe = block.sync_or(is_unsafe);  // the unit is there, and no thread reads the last one
      const std::int64_t following = next(unit + 1);
      if (following < units.end) begin_unit(block, args, task, s, following, 1 - stage);

      WarpSums<kUnit> scores, d_probs;
      cuda::clear(&scores);
      cuda::add_row_products<kType>(block, q, keys, p.head_dim_qk, &scores);
      cuda::clear(&d_probs);
      cuda::add_row_products<kType>(block, d_out, values, p.head_dim_v, &d_probs);
      const std::int64_t first = unit * kUnit + cuda::lane_column(block);
      differentiate<true>(
          g, task.b, is_full, own, [&](int i, int, int) { return cuda::lane_row(block) + i * 8; },
          [&](int, int n, int x) { return first + n * 8 + x; }, d_probs, &scores);
      if (is_unsafe) {
        cuda::add_visible_terms<kType, cuda::Pitched>(block, scores, keys, 1.0f, &d_q);
      } else {
        add_product<kType>(block, scores, keys, p.head_dim_qk, &d_q);
      }
      unit = following;
      stage = 1 - stage;
    }
    const float scale = p.softmax_scale_f32;
    cuda::write_sums<kType>(block, cuda::query_rows(g.d_q, rows, p.head_dim_qk),
                            cuda::lane_row(block), 0, d_q, {scale, scale});
  }

  template <class Block>
  REGARD_DEVICE_FN void begin_unit(const Block& block, const Args& args, const cuda::HeadTask& task,
                                   const Sequence& s, std::int64_t unit, int stage) {
    const Problem& p = args.call.grad.problem;
    const semantics::Tile tile = semantics::tile_at(unit, kUnit, s.band.len_kv);
    const auto keys = cuda::key_rows(p.k, task.b, task.head_kv, tile, p.head_dim_qk);
    const auto values = cuda::key_rows(p.v, task.b, task.head_kv, tile, p.head_dim_v);
    cuda::begin_tile<kUnit, kDims>(block, keys, 0, args.k_in_steps,
                                   Space::part(block, kAtStages, stage, 0));
    cuda::begin_tile<kUnit, kDims>(block, values, 0, args.v_in_steps,
                                   Space::part(block, kAtStages, stage, 1));
  }
};

/// d_v of 128 keys, or d_k; units are rows of queries. Their facts are written two units ahead, for
/// copies need the places.
template <Element kType, int kDims, bool kOfValues>
struct TensorKeysKernel {
  using Args = TensorGradArgs;
  using Space = Stages<kDims>;
  static constexpr int kMinSm = 80;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSlots = 3;
  static constexpr int kSlotBytes = GradRowsLayout<kUnit>::kBytes;
  static constexpr int kAtStages = kSlots * kSlotBytes;
  static constexpr int kSharedBytes = kAtStages + Space::kBytes;
  static_assert(kSlotBytes % 16 == 0);

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    return {(p.seqlen_kv + kTensorRows - 1) / kTensorRows, 1};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.call.grad.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const GradProblem& g = args.call.grad;
    const Problem& p = g.problem;
    const Sequence s = problem::sequence_of(p, task.b);
    const semantics::Tile tile = semantics::tile_at(task.block, kTensorRows, s.band.len_kv);
    cuda::WarpRows<kDims> keys, values;
    load_rows(block, cuda::key_rows(p.k, task.b, task.head_kv, tile, p.head_dim_qk), 0,
              args.k_in_steps, &keys);
    if constexpr (!kOfValues) {
      load_rows(block, cuda::key_rows(p.v, task.b, task.head_kv, tile, p.head_dim_v), 0,
                args.v_in_steps, &values);
    }
    const auto rows_of = [&](std::int64_t unit) {
      return cuda::group_rows<kUnit>(p, cuda::queries_of(s), task.head_kv, unit);
    };
    const auto seen = [&](std::int64_t unit) {
      return cuda::classify<kTensorRows>(cuda::reach_of(p, rows_of(unit), s), tile);
    };
    const std::int64_t units = cuda::count_row_blocks<kUnit>(p);
    const auto next = [&](std::int64_t unit) {
      return cuda::next_row_block<kUnit, kTensorRows>(p, s, task.head_kv, tile, unit);
    };
    const auto write_rows = [&](std::int64_t unit, int slot) {
      if (unit >= units) return;
      write_grad_rows<kUnit>(block, args, s, rows_of(unit),
                             grad_rows<kUnit>(block, slot * kSlotBytes));
    };
    WarpSums<kDims> sums;
    cuda::clear(&sums);
    std::int64_t unit = next(0), following = next(unit + 1);
    int slot = 0, stage = 0;
    write_rows(unit, 0);
    write_rows(following, 1);
    block.sync();
    if (unit < units) begin_unit(block, args, slot, stage);
    while (unit < units) {
      const bool is_full = seen(unit) == semantics::TileClass::kFull;
      const auto queries = Space::part(block, kAtStages, stage, 0);
      const auto d_outs = Space::part(block, kAtStages, stage, 1);
      const auto operand = kOfValues ? d_outs : queries;
      block.wait_copies();
      bool is_unsafe = cuda::has_non_finite<kType, kUnit, kDims>(block, operand);
      is_unsafe = block.sync_or(is_unsafe);  // the unit is there, and no thread reads the last one
      if (following < units) begin_unit(block, args, (slot + 1) % kSlots, 1 - stage);
      const std::int64_t last = next(following + 1);
      write_rows(last, (slot + 2) % kSlots);

      WarpSums<kUnit> scores, d_probs;
      cuda::clear(&scores);
      cuda::add_row_products<kType>(block, keys, queries, p.head_dim_qk, &scores);
      cuda::clear(&d_probs);
      if constexpr (!kOfValues) {
        cuda::add_row_products<kType>(block, values, d_outs, p.head_dim_v, &d_probs);
      }
      const std::int64_t first = tile.begin + cuda::lane_row(block);
      differentiate<!kOfValues>(
          g, task.b, is_full, grad_rows<kUnit>(block, slot * kSlotBytes),
          [&](int, int n, int x) { return cuda::lane_column(block) + n * 8 + x; },
          [&](int i, int, int) { return first + i * 8; }, d_probs, &scores);
      const std::int64_t columns = kOfValues ? p.head_dim_v : p.head_dim_qk;
      if (is_unsafe) {
        cuda::add_visible_terms<kType, cuda::Pitched>(block, scores, operand, 1.0f, &sums);
      } else {
        add_product<kType>(block, scores, operand, columns, &sums);
      }
      unit = following;
      following = last;
      slot = (slot + 1) % kSlots;
      stage = 1 - stage;
    }
    write(block, g, task, sums);
  }

  /// Begins to copy the rows of q and d_out whose places are in a slot.
  template <class Block>
  REGARD_DEVICE_FN void begin_unit(const Block& block, const Args& args, int slot, int stage) {
    const GradProblem& g = args.call.grad;
    const Problem& p = g.problem;
    const auto rows = grad_rows<kUnit>(block, slot * kSlotBytes);
    cuda::begin_tile<kUnit, kDims>(block, cuda::listed_rows(p.q, rows.in_q, p.head_dim_qk), 0,
                                   args.q_in_steps, Space::part(block, kAtStages, stage, 0));
    cuda::begin_tile<kUnit, kDims>(block, cuda::listed_rows(g.d_out, rows.in_d_out, p.head_dim_v),
                                   0, args.d_out_in_steps, Space::part(block, kAtStages, stage, 1));
  }

  template <class Block>
  REGARD_DEVICE_FN void write(const Block& block, const GradProblem& g, const cuda::HeadTask& task,
                              const WarpSums<kDims>& sums) {
    const Problem& p = g.problem;
    const semantics::Tile all = semantics::tile_at(task.block, kTensorRows, p.seqlen_kv);
    const problem::View& view = kOfValues ? g.d_v : g.d_k;
    const std::int64_t columns = kOfValues ? p.head_dim_v : p.head_dim_qk;
    const auto scale =
        static_cast<float>(kOfValues ? problem::keep_scale<double>(p) : p.softmax_scale);
    const auto to = cuda::key_rows(view, task.b, task.head_kv, all, columns);
    cuda::write_sums<kType>(block, to, cuda::lane_row(block), 0, sums, {scale, scale});
  }
};

}  // namespace regard::cuda_efficient
