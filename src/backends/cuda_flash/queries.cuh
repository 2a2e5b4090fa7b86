#pragma once

#include <cstdint>

#include "backends/cuda_flash/grad.cuh"
#include "backends/cuda_flash/walk.cuh"

// d_q of FLASH: a block holds rows of queries of all heads that read one kv head, with their
// d_out, and passes over the tiles of keys that any of them sees. A warp computes scores,
// gradients of probabilities and d_q of its rows. As in the forward, operands are taken for finite,
// and where a sum is not, the block computes once more without what is hidden.

namespace regard::cuda_flash {

/// Sizes of a block: 16 rows a warp and 8 warps, but at 256 dims 4, whose rows fill its shared
/// memory. Where rows lie in q and d_out stands in the last stage until that is used.
template <int kColumns, bool kEdits>
struct QueriesLayout {
  // For TileWalk.
  static constexpr int kDims = kColumns, kKeys = kUnit, kStages = 2;
  static constexpr int kRowBlocks = kDims <= 64 ? 2 : 1;
  static constexpr int kRows = kDims <= 192 ? 128 : 64;
  static constexpr int kThreads = kRows / kWarpRows / kRowBlocks * kWarp;
  static constexpr bool kSplit = false, kCodes = false, kPaged = false, kHasTree = false;

  using Rows = GradRowsLayout<kRows, kEdits>;
  static constexpr int kBytesOfRow = kDims * static_cast<int>(sizeof(std::uint16_t));
  static constexpr int kStageBytes = 2 * kKeys * kBytesOfRow;
  static constexpr int kAtBounds = 128;
  static constexpr int kAtRows = kAtBounds + kRows * static_cast<int>(sizeof(semantics::KeyRange));
  static constexpr int kAtQueries = kAtRows + Rows::kBytes;
  static constexpr int kAtDOut = kAtQueries + kRows * kBytesOfRow;
  static constexpr int kAtStages = kAtDOut + kRows * kBytesOfRow;
  static constexpr int kAtPlaces = kAtStages + (kStages - 1) * kStageBytes;
  static constexpr int kBytes = kAtStages + kStages * kStageBytes;
  static_assert(2 * kRows * static_cast<int>(sizeof(std::int64_t)) <= kStageBytes);
  static_assert(kAtQueries % 128 == 0 && kAtDOut % 128 == 0 && kAtStages % 128 == 0);
};

template <Element kType, int kDims, bool kEdits>
struct QueriesKernel {
  using Args = BackwardArgs;
  using L = QueriesLayout<kDims, kEdits>;
  using W = TileWalk<L>;
  static constexpr int kMinSm = 80;
  static constexpr int kThreads = L::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSharedBytes = L::kBytes;
  static constexpr int kRowBlocks = L::kRowBlocks, kRows = L::kRows;
  using Sums = WarpSums<kDims>[kRowBlocks];
  using Scores = WarpSums<kUnit>[kRowBlocks];

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    return {cuda::count_row_blocks<kRows>(p), 1};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    W::for_each_task(block, cuda::count_tasks(p, grid(p)),
                     [&](std::int64_t task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN auto rows_of(const Block& block) {
    return grad_rows<kRows, kEdits>(block, L::kAtRows);
  }
  template <class Block>
  REGARD_DEVICE_FN auto bounds_of(const Block& block) {
    return block.template shared<semantics::KeyRange>(L::kAtBounds, kRows);
  }
  template <class Block>
  REGARD_DEVICE_FN auto operand(const Block& block, int at) {
    return block.template shared<std::uint16_t>(at, kRows * kDims);
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, std::int64_t number) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    if (!load_rows(block, args, number)) return;
    Sums d_q;
    compute_finite<kEdits>(block, d_q, [&](auto may_be_safe, bool is_safe) {
      run_tiles<decltype(may_be_safe)::kIs>(block, g, is_safe, d_q);
    });
    const typename W::Walk walk = W::of(block)[0];
    const auto to = cuda::query_rows(g.d_q, W::rows_of(p, walk.task, walk.rows_q), p.head_dim_qk);
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      const float scale = p.softmax_scale_f32;
      cuda::write_sums<kType>(block, to, W::lane_row(block, m), d_q[m], {scale, scale});
    }
  }

  /// What the block holds of its rows, and the walk over keys. Their copies are in the first group.
  /// False where there are none.
  template <class Block>
  REGARD_DEVICE_FN bool load_rows(const Block& block, const Args& args, std::int64_t number) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const cuda::HeadTask task = cuda::head_task(p, grid(p), number);
    const Sequence s = problem::sequence_of(p, task.b);
    const cuda::RowBlock rows = W::rows_of(p, task, s.rows_q);
    const auto own = rows_of(block);
    const auto bounds = bounds_of(block);
    const auto in_q = block.template shared<std::int64_t>(L::kAtPlaces, kRows);
    const auto in_d_out = block.template shared<std::int64_t>(
        L::kAtPlaces + kRows * static_cast<int>(sizeof(std::int64_t)), kRows);
    for (int r = block.thread(); r < kRows; r += kThreads) {
      const auto facts = cuda::row_facts<float>(p, s, rows, r);
      const RowNumbers numbers = cuda::row_numbers(args, s, facts);
      own.numbers[r] = numbers;
      if constexpr (kEdits) own.facts[r] = facts;
      bounds[r] = semantics::KeyRange{facts.lo, facts.hi};
      in_q[r] = place_in(p.q, s.b, facts, numbers);
      in_d_out[r] = place_in(g.d_out, s.b, facts, numbers);
    }
    if (block.thread() == 0) W::of(block)[0] = W::make(p, number, task, s, p.batch);
    block.sync();
    if (rows.count == 0) return false;
    cuda::begin_rows<kRows, kDims, kThreads>(block, cuda::listed_rows(p.q, in_q, p.head_dim_qk),
                                             operand(block, L::kAtQueries));
    cuda::begin_rows<kRows, kDims, kThreads>(
        block, cuda::listed_rows(g.d_out, in_d_out, p.head_dim_v), operand(block, L::kAtDOut));
    return true;
  }

  /// is_safe: keys may be infinities or NaN; kMayBeSafe: it may be.
  template <bool kMayBeSafe, class Block>
  REGARD_DEVICE_FN void run_tiles(const Block& block, const GradProblem& g, bool is_safe,
                                  Sums& d_q) {
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) cuda::clear(&d_q[m]);
    W::template for_each_tile<!kMayBeSafe && !kEdits>(
        block, g.problem, [&](auto masked, int tile, int stage, bool is_full) {
          add_tile<decltype(masked)::kIs, kMayBeSafe>(block, g, is_safe, tile, stage, is_full, d_q);
        });
  }

  template <bool kMasked, bool kMayBeSafe, class Block>
  REGARD_DEVICE_FN void add_tile(const Block& block, const GradProblem& g, bool is_safe, int tile,
                                 int stage, bool is_full, Sums& d_q) {
    constexpr bool kAgain = cuda::kRecomputesAddresses<kDims>;
    const Problem& p = g.problem;
    const auto keys = W::stage_part(block, stage, 0), values = W::stage_part(block, stage, 1);
    const typename W::Walk walk = W::of(block)[0];
    const std::int64_t first = walk.first + static_cast<std::int64_t>(tile) * kUnit;
    Scores scores, d_probs;
    cuda::multiply_rows<kType, kDims, kAgain>(block, operand(block, L::kAtQueries),
                                              W::warp_row(block), keys, scores);
    if constexpr (kMasked && !kEdits) {
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        cuda::hide_by_arithmetic(block, bounds_of(block), W::lane_row(block, m), first, &scores[m]);
      }
    }
    if constexpr (kEdits) {
      make_edited_probs(block, p, walk.task.b, first, is_full, scores);
    } else {
      for_each_element(block, [&](int m, int n, int x, int r) {
        const RowNumbers numbers = load_at(rows_of(block).numbers, r);
        scores[m].at[n][x] = plain_prob<kMayBeSafe>(p, numbers, scores[m].at[n][x]);
      });
    }
    block.sync_warp();
    cuda::multiply_rows<kType, kDims, kAgain>(block, operand(block, L::kAtDOut), W::warp_row(block),
                                              values, d_probs);
    if (kEdits && p.dropout.threshold != 0) drop(block, p, first, d_probs);
    for_each_element(block, [&](int m, int n, int x, int r) {
      const RowNumbers numbers = load_at(rows_of(block).numbers, r);
      scores[m].at[n][x] = grad_of_score(scores[m].at[n][x], d_probs[m].at[n][x], numbers.delta);
    });
    if (kMayBeSafe && is_safe) {
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        cuda::add_visible_terms<kType>(block, scores[m], keys, &d_q[m]);
      }
    } else {
      cuda::add_rounded_product<kType>(block, scores, keys, d_q);
    }
  }

  /// Scores become probabilities times softcap's slope.
  template <class Block>
  REGARD_DEVICE_FN void make_edited_probs(const Block& block, const Problem& p, std::int64_t b,
                                          std::int64_t first, bool is_full, Scores& scores) {
    const bool edits = !cuda::needs_scale_alone(p, is_full);
    cuda::for_each_column(scores, [&](int column) {
      const std::int64_t j = first + column + cuda::lane_column(block);
      REGARD_DEVICE_UNROLL
      for (int row = 0; row < kRowBlocks * kLaneRows; ++row) {
        const int m = row / kLaneRows, i = row % kLaneRows;
        float slope = 1.0f, &score = scores[m].at[0][2 * i];
        const float prob = cuda::prob_again(p, b, edits, is_full, rows_of(block),
                                            W::lane_row(block, m) + i * 8, j, score, &slope);
        score = cuda::is_hidden(prob) ? prob : prob * slope;
      }
    });
  }

  /// Gradients of dropped probabilities become those of probabilities before dropout.
  template <class Block>
  REGARD_DEVICE_FN void drop(const Block& block, const Problem& p, std::int64_t first,
                             Scores& d_probs) {
    cuda::for_each_column(d_probs, [&](int column) {
      const std::int64_t j = first + column + cuda::lane_column(block);
      REGARD_DEVICE_UNROLL
      for (int row = 0; row < kRowBlocks * kLaneRows; ++row) {
        const int m = row / kLaneRows, i = row % kLaneRows;
        float& d_prob = d_probs[m].at[0][2 * i];
        const bool kept = cuda::keeps(p, rows_of(block), W::lane_row(block, m) + i * 8, j);
        d_prob = kept ? d_prob * problem::keep_scale<float>(p) : 0.0f;
      }
    });
  }

  /// Calls f(m, n, x, row) for the lane's elements at[n][x] of row block m.
  template <class Block, class F>
  REGARD_DEVICE_FN void for_each_element(const Block& block, F f) {
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        REGARD_DEVICE_UNROLL
        for (int n = 0; n < kUnit / 4; ++n) {
          f(m, n / 2, 2 * i + n % 2, W::lane_row(block, m) + i * 8);
        }
      }
    }
  }
};

}  // namespace regard::cuda_flash
