#pragma once

#include <cstdint>

#include "backends/cuda_flash/grad.cuh"
#include "cuda/tasks.cuh"

// d_k and d_v of FLASH: a block holds keys and values, and passes over units of the rows of queries
// that see any of them, of all heads that read the kv head. Two warps share 16 or 32 keys: the
// first computes probabilities and d_v, the second, with the first one's probabilities, gradients
// of probabilities and d_k. So both have two products of a unit, the same code but for what lies
// between them, and sums of one tensor in registers; and each product is computed once.

namespace regard::cuda_flash {

/// Shared memory of a block: its keys and values, stages of queries and d_out, probabilities that
/// go from one warp to the other, and slots of what is kept of a unit's rows, which is written two
/// units ahead, for copies need the places.
template <int kDims, bool kEdits>
struct KeysLayout {
  static constexpr int kPairs = 4;
  // Of 16 keys, a warp: each row of a unit that it loads then serves twice as many. More columns,
  // and edits, leave no registers for two.
  static constexpr int kRowBlocks = kDims <= 128 && !kEdits ? 2 : 1;
  static constexpr int kKeys = kPairs * kWarpRows * kRowBlocks;
  static constexpr int kThreads = 2 * kPairs * kWarp;
  static constexpr int kStages = 2, kSlots = 3;

  using Rows = GradRowsLayout<kUnit, kEdits>;
  static constexpr int kBytesOfRow = kDims * static_cast<int>(sizeof(std::uint16_t));
  static constexpr int kPassBytes = 128;
  static constexpr int kOwnBytes = kKeys * kBytesOfRow;
  static constexpr int kAtStages = kPassBytes + 2 * kOwnBytes;
  static constexpr int kPartBytes = kUnit * kBytesOfRow;
  static constexpr int kAtProbs = kAtStages + 2 * kStages * kPartBytes;
  static constexpr int kAtSlots = kAtProbs + kKeys * kUnit * static_cast<int>(sizeof(float));
  static constexpr int kPlaceBytes = kUnit * static_cast<int>(sizeof(std::int64_t));
  static constexpr int kSlotBytes = Rows::kBytes + 2 * kPlaceBytes;
  static constexpr int kBytes = kAtSlots + kSlots * kSlotBytes;
  static_assert(kSlotBytes % 16 == 0 && kPartBytes % 128 == 0);
};

template <Element kType, int kDims, bool kEdits>
struct KeysKernel {
  using Args = BackwardArgs;
  using L = KeysLayout<kDims, kEdits>;
  static constexpr int kMinSm = 80;
  static constexpr int kThreads = L::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSharedBytes = L::kBytes;
  static constexpr int kRowBlocks = L::kRowBlocks, kKeys = L::kKeys;
  using Sums = WarpSums<kDims>[kRowBlocks];
  using Scores = WarpSums<kUnit>[kRowBlocks];
  using Sent = cuda::Vec4<float>;

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    return {(p.seqlen_kv + kKeys - 1) / kKeys, 1};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  /// What a block's units have in common, in shared memory: in registers it was spilled.
  struct Pass {
    Sequence s;
    cuda::HeadTask task;
    semantics::Tile tile;
  };
  static_assert(sizeof(Pass) <= L::kPassBytes);

  template <class Block>
  REGARD_DEVICE_FN Pass pass_of(const Block& block) {
    return block.template shared<Pass>(0, 1)[0];
  }
  /// Whether the warp's sums are d_v, and not d_k.
  template <class Block>
  REGARD_DEVICE_FN bool is_of_values(const Block& block) {
    return block.uniform(block.thread() / kWarp) < L::kPairs;
  }

  /// Whose keys a warp has, and which.
  template <class Block>
  REGARD_DEVICE_FN int pair_of(const Block& block) {
    return block.thread() / kWarp % L::kPairs;
  }
  template <class Block>
  REGARD_DEVICE_FN int lane_key(const Block& block, int m, int i) {
    return (pair_of(block) * kRowBlocks + m) * kWarpRows + block.thread() % kWarp / 4 + i * 8;
  }
  /// The row of a unit that at[n][x] is of.
  template <class Block>
  REGARD_DEVICE_FN int lane_query(const Block& block, int n, int x) {
    return n * 8 + cuda::lane_column(block) + x % 2;
  }

  template <class Block>
  REGARD_DEVICE_FN auto own_rows(const Block& block, int part) {
    return block.template shared<std::uint16_t>(L::kPassBytes + part * L::kOwnBytes, kKeys * kDims);
  }
  /// Rows of q, part 0, or d_out, part 1, in a stage.
  template <class Block>
  REGARD_DEVICE_FN auto stage_part(const Block& block, int stage, int part) {
    return block.template shared<std::uint16_t>(L::kAtStages + (2 * stage + part) * L::kPartBytes,
                                                kUnit * kDims);
  }
  template <class Block>
  REGARD_DEVICE_FN auto slot_rows(const Block& block, int slot) {
    return grad_rows<kUnit, kEdits>(block, L::kAtSlots + slot * L::kSlotBytes);
  }
  template <class Block>
  REGARD_DEVICE_FN auto slot_places(const Block& block, int slot, int part) {
    const int at = L::kAtSlots + slot * L::kSlotBytes + L::Rows::kBytes + part * L::kPlaceBytes;
    return block.template shared<std::int64_t>(at, kUnit);
  }
  /// Probabilities that go to another warp: each at[n] of its row blocks.
  template <class T, class Block>
  REGARD_DEVICE_FN auto sent_probs(const Block& block) {
    constexpr int kBytes = kKeys * kUnit * static_cast<int>(sizeof(float));
    return block.template shared<T>(L::kAtProbs, kBytes / static_cast<int>(sizeof(T)));
  }
  /// Where the lane's at[n] of row block m is; those of a warp's lanes lie together.
  template <class Block>
  REGARD_DEVICE_FN int sent_at(const Block& block, int m, int n) {
    const int group = (pair_of(block) * kRowBlocks + m) * (kUnit / 8) + n;
    return group * kWarp + block.thread() % kWarp;
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const Sequence s = problem::sequence_of(p, task.b);
    const semantics::Tile tile = semantics::tile_at(task.block, kKeys, s.band.len_kv);
    if (block.thread() == 0) block.template shared<Pass>(0, 1)[0] = Pass{s, task, tile};
    block.sync();
    cuda::begin_rows<kKeys, kDims, kThreads>(
        block, cuda::key_rows(p.k, task.b, task.head_kv, tile, p.head_dim_qk), own_rows(block, 0));
    cuda::begin_rows<kKeys, kDims, kThreads>(
        block, cuda::key_rows(p.v, task.b, task.head_kv, tile, p.head_dim_v), own_rows(block, 1));
    Sums sums;
    compute_finite<kEdits>(block, sums, [&](auto may_be_safe, bool is_safe) {
      run_units<decltype(may_be_safe)::kIs>(block, args, is_safe, sums);
    });
    write(block, g, sums);
  }

  template <class Block>
  REGARD_DEVICE_FN void write(const Block& block, const GradProblem& g, const Sums& sums) {
    const Problem& p = g.problem;
    const bool of_values = is_of_values(block);
    const problem::View& view = of_values ? g.d_v : g.d_k;
    if (!view.present) return;
    const Pass pass = pass_of(block);
    const cuda::HeadTask task = pass.task;
    const semantics::Tile all = semantics::tile_at(task.block, kKeys, pass.s.rows_kv);
    const auto scale =
        static_cast<float>(of_values ? problem::keep_scale<double>(p) : p.softmax_scale);
    const auto to =
        cuda::key_rows(view, task.b, task.head_kv, all, of_values ? p.head_dim_v : p.head_dim_qk);
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      cuda::write_sums<kType>(block, to, lane_key(block, m, 0), sums[m], {scale, scale});
    }
  }

  /// 2^31 units would be outputs of a terabyte; 64 bits of each were spilled.
  template <class Block>
  REGARD_DEVICE_FN int next_unit(const Block& block, const Problem& p, int unit) {
    const Pass pass = pass_of(block);
    return static_cast<int>(
        cuda::next_row_block<kUnit, kKeys>(p, pass.s, pass.task.head_kv, pass.tile, unit));
  }
  REGARD_DEVICE_FN cuda::RowBlock rows_of(const Problem& p, const Pass& pass, std::int64_t unit) {
    return cuda::group_rows<kUnit>(p, cuda::queries_of(pass.s), pass.task.head_kv, unit);
  }

  /// What is kept of a unit's rows; they are read behind a barrier.
  template <class Block>
  REGARD_DEVICE_FN void write_rows(const Block& block, const Args& args, std::int64_t unit,
                                   int slot) {
    const int r = block.thread();
    if (r >= kUnit || unit >= cuda::count_row_blocks<kUnit>(args.grad.problem)) return;
    const GradProblem& g = args.grad;
    const Pass pass = pass_of(block);
    const auto facts = cuda::row_facts<float>(g.problem, pass.s, rows_of(g.problem, pass, unit), r);
    RowNumbers numbers = cuda::row_numbers(args, pass.s, facts);
    const auto in_tile = [&](std::int64_t key) {
      return static_cast<std::uint32_t>(semantics::clamp(key - pass.tile.begin, 0, kKeys));
    };
    numbers.keys = in_tile(facts.lo) | in_tile(facts.hi) << 16;
    const auto to = slot_rows(block, slot);
    to.numbers[r] = numbers;
    if constexpr (kEdits) to.facts[r] = facts;
    slot_places(block, slot, 0)[r] = place_in(g.problem.q, pass.s.b, facts, numbers);
    slot_places(block, slot, 1)[r] = place_in(g.d_out, pass.s.b, facts, numbers);
  }

  /// Begins to copy the rows of q and d_out whose places are in a slot.
  template <class Block>
  REGARD_DEVICE_FN void begin_unit(const Block& block, const Args& args, int slot, int stage) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    cuda::begin_rows<kUnit, kDims, kThreads>(
        block, cuda::listed_rows(p.q, slot_places(block, slot, 0), p.head_dim_qk),
        stage_part(block, stage, 0));
    cuda::begin_rows<kUnit, kDims, kThreads>(
        block, cuda::listed_rows(g.d_out, slot_places(block, slot, 1), p.head_dim_v),
        stage_part(block, stage, 1));
  }

  /// is_safe: queries and d_out may be infinities or NaN; kMayBeSafe: it may be.
  template <bool kMayBeSafe, class Block>
  REGARD_DEVICE_FN void run_units(const Block& block, const Args& args, bool is_safe, Sums& sums) {
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) cuda::clear(&sums[m]);
    const Problem& p = args.grad.problem;
    const auto units = static_cast<int>(cuda::count_row_blocks<kUnit>(p));
    int unit = next_unit(block, p, 0), following = next_unit(block, p, unit + 1);
    int slot = 0, stage = 0;
    write_rows(block, args, unit, 0);
    write_rows(block, args, following, 1);
    block.sync();
    if (unit < units) begin_unit(block, args, slot, stage);
    REGARD_DEVICE_NO_UNROLL
    while (unit < units) {
      const int next_slot = slot == L::kSlots - 1 ? 0 : slot + 1;
      block.wait_copies();
      block.sync();  // the unit is there, and no thread reads the last one
      if (following < units) begin_unit(block, args, next_slot, 1 - stage);
      const int last = next_unit(block, p, following + 1);
      add_unit<kMayBeSafe>(block, p, is_safe, unit, slot, stage, sums);
      write_rows(block, args, last, next_slot == L::kSlots - 1 ? 0 : next_slot + 1);
      unit = following;
      following = last;
      slot = next_slot;
      stage = 1 - stage;
    }
    block.wait_copies();
    block.sync();  // no thread reads the last unit
  }

  template <bool kMayBeSafe, class Block>
  REGARD_DEVICE_FN void add_unit(const Block& block, const Problem& p, bool is_safe,
                                 std::int64_t unit, int slot, int stage, Sums& sums) {
    // Keys and queries, or values and d_out; then the others.
    const bool of_values = is_of_values(block);
    const int own = of_values ? 0 : 1;
    Scores scores;
    cuda::multiply_rows<kType, kDims, cuda::kRecomputesAddresses<kDims>>(
        block, own_rows(block, own), lane_key(block, 0, 0) / 16 * 16, stage_part(block, stage, own),
        scores);
    if (of_values) make_probs<kMayBeSafe>(block, p, unit, slot, scores);
    block.sync();
    if (!of_values) differentiate(block, p, slot, scores);
    const auto operand = stage_part(block, stage, 1 - own);
    if (kMayBeSafe && is_safe) {
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        cuda::add_visible_terms<kType>(block, scores[m], operand, &sums[m]);
      }
    } else {
      cuda::add_rounded_product<kType>(block, scores, operand, sums);
    }
  }

  /// Scores become probabilities, dropped ones 0; those before dropout, times softcap's slope, go
  /// to the other warp.
  template <bool kMayBeSafe, class Block>
  REGARD_DEVICE_FN void make_probs(const Block& block, const Problem& p, std::int64_t unit,
                                   int slot, Scores& scores) {
    const Pass pass = pass_of(block);
    const cuda::Reach reach = cuda::reach_of(p, rows_of(p, pass, unit), pass.s);
    const bool is_full = cuda::classify<kKeys>(reach, pass.tile) == semantics::TileClass::kFull;
    const auto rows = slot_rows(block, slot);
    if constexpr (kEdits) {
      const bool edits = !cuda::needs_scale_alone(p, is_full);
      cuda::for_each_column(scores, [&](int column) {
        const int r = column + cuda::lane_column(block);
        REGARD_DEVICE_UNROLL
        for (int row = 0; row < kRowBlocks * kLaneRows; ++row) {
          const int m = row / kLaneRows, i = row % kLaneRows;
          const std::int64_t j = pass.tile.begin + lane_key(block, m, i);
          float slope = 1.0f, &score = scores[m].at[0][2 * i];
          const float prob =
              cuda::prob_again(p, pass.s.b, edits, is_full, rows, r, j, score, &slope);
          const bool hidden = cuda::is_hidden(prob);
          const int at = sent_at(block, m, column / 8) * 4 + 2 * i + column % 8;
          sent_probs<float>(block)[at] = hidden ? prob : prob * slope;
          score = hidden || cuda::keeps(p, rows, r, j) ? prob : 0.0f;
        }
      });
    } else {
      if (kMayBeSafe || !is_full) hide(block, rows.numbers, scores);
      for_each_element([&](int m, int n, int x) {
        const RowNumbers numbers = load_at(rows.numbers, lane_query(block, n, x));
        scores[m].at[n][x] = plain_prob<kMayBeSafe>(p, numbers, scores[m].at[n][x]);
      });
      REGARD_DEVICE_UNROLL
      for (int group = 0; group < kRowBlocks * kUnit / 8; ++group) {
        const int m = group % kRowBlocks, n = group / kRowBlocks;
        const float(&four)[4] = scores[m].at[n];
        sent_probs<Sent>(block)[sent_at(block, m, n)] = Sent{{four[0], four[1], four[2], four[3]}};
      }
    }
  }

  /// Scores that arithmetic hides become -inf.
  template <class Block, class Numbers>
  REGARD_DEVICE_FN void hide(const Block& block, Numbers numbers, Scores& scores) {
    for_each_element([&](int m, int n, int x) {
      const RowNumbers row = load_at(numbers, lane_query(block, n, x));
      if (!RowNumbers::sees(row, lane_key(block, m, x / 2))) {
        scores[m].at[n][x] = cuda::minus_infinity<float>();
      }
    });
  }

  /// Gradients of probabilities become those of scaled scores.
  template <class Block>
  REGARD_DEVICE_FN void differentiate(const Block& block, const Problem& p, int slot,
                                      Scores& d_probs) {
    const auto rows = slot_rows(block, slot);
    if (kEdits && p.dropout.threshold != 0) {
      const std::int64_t first = pass_of(block).tile.begin;
      cuda::for_each_column(d_probs, [&](int column) {
        REGARD_DEVICE_UNROLL
        for (int row = 0; row < kRowBlocks * kLaneRows; ++row) {
          const int m = row / kLaneRows, i = row % kLaneRows;
          const std::int64_t j = first + lane_key(block, m, i);
          float& d_prob = d_probs[m].at[0][2 * i];
          const bool kept = cuda::keeps(p, rows, column + cuda::lane_column(block), j);
          d_prob = kept ? d_prob * problem::keep_scale<float>(p) : 0.0f;
        }
      });
    }
    for_each_element([&](int m, int n, int x) {
      const int r = lane_query(block, n, x);
      float& d_prob = d_probs[m].at[n][x];
      const RowNumbers numbers = load_at(rows.numbers, r);
      const Sent four = sent_probs<Sent>(block)[sent_at(block, m, n)];
      d_prob = grad_of_score(four.at[x], d_prob, numbers.delta);
    });
  }

  /// Calls f(m, n, x) for the lane's elements at[n][x] of row block m, those of one query together.
  template <class F>
  REGARD_DEVICE_FN void for_each_element(F f) {
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kUnit / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int element = 0; element < 4 * kRowBlocks; ++element) {
        const int m = element / 2 % kRowBlocks, i = element / 2 / kRowBlocks;
        f(m, n, 2 * i + element % 2);
      }
    }
  }
};

}  // namespace regard::cuda_flash
