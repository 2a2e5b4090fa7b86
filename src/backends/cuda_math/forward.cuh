#pragma once

#include <cstdint>

#include "backends/cuda_math/matrix.cuh"

// MATH's forward, unfused: scores of complete rows, softmax, and the product with V (matrix.cuh).

namespace regard::cuda_math {

/// Edited scores; what a row may not see is -inf. Writes scores_out where it shows scores. kCached:
/// of a call that is_cached().
template <class T, bool kCached>
struct ScoresKernel {
  using Args = ForwardArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSharedBytes = TileLayout<T>::kBytes;

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) { return tile_grid(p); }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const Problem& p = args.problem;
    const auto t = open_tile<T>(block, p, task);
    T scores[kOwn][kOwn], raw[kOwn][kOwn];
    cuda::clear(raw);
    if (t.seen != semantics::TileClass::kEmpty) {
      const auto keys =
          cuda::rows_of_tile<kCached>(p, t.s, args.kv_entries, task.head_kv, t.keys,
                                      {p.k, p.scales_k, p.channel_scales_k, p.head_dim_qk});
      add_scores(block, p, t, keys, raw);
      cuda::scale_by(static_cast<T>(problem::score_descale(p, task.b, task.head_kv)), raw);
    }
    block.sync();
    for (int i = 0; i < kOwn; ++i) {
      for (int c = 0; c < kOwn; ++c) scores[i][c] = raw[i][c];
    }
    const bool is_full = t.seen == semantics::TileClass::kFull;
    cuda::edit_scores(block, p, task.b, t.facts, t.keys.begin, is_full, scores);
    cuda::hide_by_tree(block, p, cuda::tree_columns(p, t.s), t.facts, t.keys.begin, scores);
    for_own_elements(block, p, t.rows, t.keys.begin,
                     [&](std::int64_t row, std::int64_t j, int i, int c) {
                       matrix_row<T>(p, args.scores, task.b, task.head_kv, row)[j] = scores[i][c];
                       show(p, t.rows, row, j, raw[i][c], scores[i][c]);
                     });
  }

  /// An element of scores_out, where that shows scores.
  REGARD_DEVICE_FN void show(const Problem& p, const cuda::RowBlock& rows, std::int64_t row,
                             std::int64_t j, T raw, T edited) {
    using problem::ScoresStage;
    if (p.scores_stage != ScoresStage::kScaled && p.scores_stage != ScoresStage::kEdited) return;
    T shown = edited;
    if (p.scores_stage == ScoresStage::kScaled) {
      const bool hidden = edited == cuda::minus_infinity<T>();
      shown = hidden ? T(0) : raw * cuda::softmax_scale_of<T>(p);
    }
    const std::int64_t h = rows.first_head + row % rows.heads;
    const std::int64_t at = problem::row_index(p.scores, rows.b, h, row / rows.heads);
    *problem::element_at<T>(p.scores, at + j * p.scores.stride[3]) = shown;
  }
};

/// A warp for each row: its scores become the probabilities that values are weighted with. Writes
/// lse, saved_stats, and scores_out where it shows probabilities.
template <class T>
struct SoftmaxKernel {
  using Args = ForwardArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 4;
  static constexpr int kSharedBytes = 16;  // none is used

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.problem;
    for_each_row(block, p, [&](const cuda::RowBlock& row, int lane) {
      const Sequence s = problem::sequence_of(p, row.b);
      const auto facts = cuda::row_facts<T>(p, s, row, 0);
      const std::int64_t head_kv = semantics::kv_head(row.first_head, p.group_size);
      T* const scores = matrix_row<T>(p, args.scores, row.b, head_kv, row.begin);
      const T sum = exponentiate(block, p, s, facts, lane, scores);
      exponentiate_scores(p, s, facts, lane, sum, scores);
    });
  }

  /// Scores become 2^((score - maximum) * factor), hidden ones the hidden value. Their sum, with
  /// the sink, a first key without a value.
  template <class Block>
  REGARD_DEVICE_FN T exponentiate(const Block& block, const Problem& p, const Sequence& s,
                                  const cuda::RowFacts<T>& row, int lane, T* scores) {
    const auto factor = static_cast<T>(p.exp2_scale);
    T row_max = row.sink;
    for (std::int64_t j = lane; j < p.seqlen_kv; j += cuda::kWarp) {
      row_max =
          scores[j] > row_max ? scores[j] : row_max;  // NaN is passed over and reaches the sum
    }
    row_max = cuda::reduce_warp(block, row_max, [](T a, T b) { return b > a ? b : a; });
    const T max = cuda::subtrahend(row_max);
    T sum{};
    if (lane == 0 && row.sink != cuda::minus_infinity<T>()) {
      sum = row.sink == row_max ? T(1) : cuda::exp2_of((row.sink - max) * factor);
    }
    for (std::int64_t j = lane; j < p.seqlen_kv; j += cuda::kWarp) {
      const T score = scores[j];
      const bool hidden = score == cuda::minus_infinity<T>();
      const T prob = hidden ? cuda::hidden_value<T>() : cuda::exp2_of((score - max) * factor);
      sum += prob;
      scores[j] = prob;
    }
    sum = cuda::sum_warp(block, sum);
    if (lane == 0) {
      const double natural = static_cast<double>(row_max) * p.score_unit;
      problem::write_row_stats(p, s.b, row.head, row.query, natural, sum);
    }
    return sum;
  }

  /// Divides by the sum, descales what will be values, and drops.
  REGARD_DEVICE_FN void exponentiate_scores(const Problem& p, const Sequence& s,
                                            const cuda::RowFacts<T>& row, int lane, T sum,
                                            T* probs) {
    const std::int64_t head_kv = semantics::kv_head(row.head, p.group_size);
    const T descale = static_cast<T>(problem::descale_of(p.descale_v, s.b, head_kv));
    const T share = cuda::inverse_sum(p, sum) * descale;
    for (std::int64_t j = lane; j < p.seqlen_kv; j += cuda::kWarp) {
      const T prob = probs[j];
      const bool hidden = cuda::is_hidden(prob);
      if (p.scores_stage == problem::ScoresStage::kProbs) {
        const std::int64_t at = problem::row_index(p.scores, s.b, row.head, row.query);
        *problem::element_at<T>(p.scores, at + j * p.scores.stride[3]) = hidden ? T(0) : prob / sum;
      }
      if (hidden) continue;
      const bool kept =
          p.dropout.threshold == 0 || semantics::dropout_keeps(p.dropout, row.stream, j);
      probs[j] = kept ? prob * share : prob * T(0);
    }
  }
};

}  // namespace regard::cuda_math
