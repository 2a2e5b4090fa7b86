#pragma once

#include <cstdint>

#include "backends/cuda_math/matrix.cuh"
#include "cuda/grad_rows.cuh"

// MATH's backward, unfused: probabilities and gradients of them as matrices, gradients of scores by
// rows, then the products of matrix.cuh.

namespace regard::cuda_math {

using problem::GradProblem;

/// Probabilities before dropout, and gradients of dropped ones.
template <class T>
struct GradScoresKernel {
  using Args = BackwardArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSharedBytes = TileLayout<T>::kBytes;

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) { return tile_grid(p); }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const auto t = open_tile<T>(block, p, task);
    T probs[kOwn][kOwn], d_probs[kOwn][kOwn];
    cuda::clear(probs);
    cuda::clear(d_probs);
    if (t.seen != semantics::TileClass::kEmpty) {
      add_scores(block, p, t, cuda::key_rows(p.k, task.b, task.head_kv, t.keys, p.head_dim_qk),
                 probs);
      const auto d_out = cuda::query_rows(g.d_out, t.rows, p.head_dim_v);
      const auto values = cuda::key_rows(p.v, task.b, task.head_kv, t.keys, p.head_dim_v);
      cuda::add_row_products(block, d_out, values, p.head_dim_v, t.a, t.b, d_probs);
    }
    block.sync();
    const bool is_full = t.seen == semantics::TileClass::kFull;
    cuda::edit_scores(block, p, task.b, t.facts, t.keys.begin, is_full, probs);
    exponentiate(block, g, t.s, t.facts, t.keys.begin, probs, d_probs);
    for_own_elements(
        block, p, t.rows, t.keys.begin, [&](std::int64_t row, std::int64_t j, int i, int c) {
          matrix_row<T>(p, args.probs, task.b, task.head_kv, row)[j] = probs[i][c];
          matrix_row<T>(p, args.d_scores, task.b, task.head_kv, row)[j] = d_probs[i][c];
        });
  }

  template <class Block, class Facts>
  REGARD_DEVICE_FN void exponentiate(const Block& block, const GradProblem& g, const Sequence& s,
                                     Facts facts, std::int64_t first, T (&probs)[kOwn][kOwn],
                                     T (&d_probs)[kOwn][kOwn]) {
    const Problem& p = g.problem;
    const cuda::Place at = cuda::place_of(block);
    const auto factor = static_cast<T>(p.exp2_scale);
    const auto keep = problem::keep_scale<T>(p);
    for (int i = 0; i < kOwn; ++i) {
      const cuda::RowFacts<T> row = facts[at.row + i];
      problem::SavedRow<T> saved{};
      if (row.exists && row.query < s.len_q) {
        saved = problem::saved_row<T>(g, s.b, row.head, row.query);
      }
      if (p.dropout.threshold != 0) cuda::drop(p, row, first + at.column, d_probs[i]);
      for (int c = 0; c < kOwn; ++c) {
        const T score = probs[i][c];
        const bool hidden = score == cuda::minus_infinity<T>() || saved.sum == T(0);
        const T prob = cuda::exp2_below(score, saved.max, factor) / saved.sum;
        probs[i][c] = hidden ? cuda::hidden_value<T>() : prob;
        d_probs[i][c] = hidden ? cuda::hidden_value<T>() : d_probs[i][c] * keep;
      }
    }
  }
};

/// A warp for each row: gradients of probabilities become those of edited scores, probs * (d_probs
/// - delta); then probabilities are dropped. Where no delta is given it is the sum of d_out * out,
/// or, where outputs were rounded and these are all keys of the row, that of probs * d_probs.
template <class T>
struct GradRowsKernel {
  using Args = BackwardArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 4;
  static constexpr int kSharedBytes = 16;  // none is used

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    for_each_row(block, p, [&](const cuda::RowBlock& row, int lane) {
      const Sequence s = problem::sequence_of(p, row.b);
      const auto facts = cuda::row_facts<T>(p, s, row, 0);
      const std::int64_t head_kv = semantics::kv_head(row.first_head, p.group_size);
      T* const probs = matrix_row<T>(p, args.probs, row.b, head_kv, row.begin);
      T* const d_scores = matrix_row<T>(p, args.d_scores, row.b, head_kv, row.begin);
      const T delta = delta_of(block, args.grad, s, facts, lane, probs, d_scores);
      if (lane == 0) {
        const std::int64_t at = cuda::dense_row(p, s.b, facts.head, facts.query);
        reinterpret_cast<T*>(args.delta)[at] = delta;
      }
      differentiate(p, facts, lane, delta, probs, d_scores);
    });
  }

  /// Less d_lse.
  template <class Block>
  REGARD_DEVICE_FN T delta_of(const Block& block, const GradProblem& g, const Sequence& s,
                              const cuda::RowFacts<T>& row, int lane, const T* probs,
                              const T* d_probs) {
    const Problem& p = g.problem;
    if (row.query >= s.len_q) return T(0);
    const T given = cuda::given_delta<T>(g, s.b, row.head, row.query);
    if (g.delta.present) return given;
    if (cuda::has_rounded_outputs(p)) {
      T sum{}, share{};
      for (std::int64_t j = lane; j < p.seqlen_kv; j += cuda::kWarp) {
        if (cuda::is_hidden(probs[j])) continue;
        sum += probs[j] * d_probs[j];
        share += probs[j];
      }
      sum = cuda::sum_warp(block, sum);
      share = cuda::sum_warp(block, share);
      if (problem::complete_delta(g, s.b, row.head, row.query, share, &sum)) return sum + given;
    }
    const T sum = cuda::lane_delta<T>(g, s.b, row.head, row.query, lane);
    return cuda::sum_warp(block, sum) + given;
  }

  REGARD_DEVICE_FN void differentiate(const Problem& p, const cuda::RowFacts<T>& row, int lane,
                                      T delta, T* probs, T* d_scores) {
    const auto keep = problem::keep_scale<T>(p);
    for (std::int64_t j = lane; j < p.seqlen_kv; j += cuda::kWarp) {
      const T prob = probs[j];
      if (cuda::is_hidden(prob)) continue;
      d_scores[j] = prob * (d_scores[j] - delta);
      if (p.dropout.threshold == 0) continue;
      probs[j] = semantics::dropout_keeps(p.dropout, row.stream, j) ? prob * keep : prob * T(0);
    }
  }
};

/// Gradients of edited scores become those of scaled ones: softcap's slope is 1 - tanh^2.
template <class T>
struct SoftcapKernel {
  using Args = BackwardArgs;
  using Space = cuda::Staging<T, kOwn>;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 2;
  static constexpr int kSharedBytes = Space::kBytes;

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) { return tile_grid(p); }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    cuda::for_each_head_task(block, p, grid(p), [&](const cuda::HeadTask& task) {
      const cuda::RowBlock rows =
          cuda::group_rows(p, {task.b, queries_held(p, task.b)}, task.head_kv, task.block);
      const semantics::Tile tile = semantics::tile_at(task.columns, kTile, keys_held(p, task.b));
      T scores[kOwn][kOwn];
      cuda::clear(scores);
      const auto q = cuda::query_rows(p.q, rows, p.head_dim_qk);
      const auto keys = cuda::key_rows(p.k, task.b, task.head_kv, tile, p.head_dim_qk);
      const auto a = block.template shared<T>(0, cuda::kDepth<T> * kPitch);
      const auto b = block.template shared<T>(Space::kBytesA, cuda::kDepth<T> * Space::kPitchB);
      cuda::add_row_products(block, q, keys, p.head_dim_qk, a, b, scores);
      for_own_elements(
          block, p, rows, tile.begin, [&](std::int64_t row, std::int64_t j, int i, int c) {
            T* const d_scores = matrix_row<T>(p, args.d_scores, task.b, task.head_kv, row);
            if (cuda::is_hidden(d_scores[j])) return;
            const T tanh = cuda::scale_and_cap(p, scores[i][c]) / cuda::softcap_of<T>(p);
            const T slope = T(1) - tanh * tanh;
            d_scores[j] *= slope > T(0) ? slope : T(0);
          });
    });
  }
};

/// d_bias: a block has one row of it, 256 of its keys, and sums over the dimensions in which the
/// bias is broadcast, in f64 and in one order.
template <class T>
struct BiasKernel {
  using Args = BackwardArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 4;
  static constexpr int kSharedBytes = cuda::kWarps * static_cast<int>(sizeof(double));

  struct Grid {
    std::int64_t batches, heads, queries, key_blocks;
  };
  REGARD_KERNEL_FN Grid grid(const GradProblem& g) {
    const Problem& p = g.problem;
    const bool* full = g.bias_is_full;
    return {full[0] ? p.batch : 1, full[1] ? p.num_heads_q : 1, full[2] ? p.seqlen_q : 1,
            full[3] ? (p.seqlen_kv + kThreads - 1) / kThreads : 1};
  }
  REGARD_KERNEL_FN std::int64_t count_tasks(const GradProblem& g) {
    const Grid n = grid(g);
    return n.batches * n.heads * n.queries * n.key_blocks;
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Grid n = grid(args.grad);
    cuda::for_each_task(block, count_tasks(args.grad), [&](std::int64_t index) {
      const std::int64_t key_block = index % n.key_blocks;
      index /= n.key_blocks;
      const std::int64_t i = index % n.queries;
      index /= n.queries;
      const std::int64_t h = index % n.heads, b = index / n.heads;
      run_task(block, args, b, h, i, key_block);
    });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, std::int64_t b,
                                 std::int64_t h, std::int64_t i, std::int64_t key_block) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const bool* full = g.bias_is_full;
    const std::int64_t begin = key_block * kThreads + block.thread();
    // All keys where one element serves them, else the thread's own.
    const std::int64_t end = !full[3] || begin >= p.seqlen_kv ? p.seqlen_kv : begin + 1;
    double sum = 0.0;
    for (std::int64_t y = b; y < (full[0] ? b + 1 : p.batch); ++y) {
      for (std::int64_t head = h; head < (full[1] ? h + 1 : p.num_heads_q); ++head) {
        const std::int64_t held = queries_held(p, y), rows_end = full[2] ? i + 1 : p.seqlen_q;
        for (std::int64_t row = i; row < (rows_end < held ? rows_end : held); ++row) {
          const T* const d_scores = matrix_row_of<T>(p, args.d_scores, y, head, row);
          for (std::int64_t j = begin; j < end; j += kThreads) {
            sum += static_cast<double>(d_scores[j]);
          }
        }
      }
    }
    char* const to = problem::row_address(g.d_bias, b, h, i);
    if (!full[3]) {
      sum = cuda::sum_block(block, block.template shared<double>(0, cuda::kWarps), sum);
      if (block.thread() == 0) cuda::store_element(g.d_bias.type, to, 0, sum);
    } else if (begin < p.seqlen_kv) {
      cuda::store_element(g.d_bias.type, to, begin * g.d_bias.stride[3], sum);
    }
  }
};

}  // namespace regard::cuda_math
