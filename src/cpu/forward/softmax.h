#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/simd/vector_math.h"

// Softmax on a row block's scores^T [keys][W]. Probabilities are 2^((score - max) * factor): the
// difference comes first, so that it is exactly 0 at the maximum whatever the scores' size (score *
// log2(e) of finfo.min would be -inf). The factor holds log2(e), and softmax_scale too where
// nothing edits the scores (Problem::prescale_scores).

namespace regard::cpu {

template <class V>
REGARD_KERNEL_FN typename V::Vec minus_infinity() {
  return V::set(static_cast<typename V::Scalar>(-__builtin_inf()));
}

/// max [kLanes] = max(max, scores of keys [begin, end)) of one vector of rows. NaN scores are
/// passed over here; they reach the sum.
template <class V>
REGARD_KERNEL_FN void accumulate_max_of(std::int64_t begin, std::int64_t end,
                                        const typename V::Scalar* scores, typename V::Scalar* max) {
  constexpr int kChains = 4;  // hide the latency of a maximum
  typename V::Vec row_max[kChains];
  REGARD_UNROLL for (int i = 0; i < kChains; ++i) row_max[i] = V::load(max);
  std::int64_t j = begin;
  for (; j + kChains <= end; j += kChains) {
    REGARD_UNROLL for (int i = 0; i < kChains; ++i) {
      row_max[i] = V::max(V::load(scores + (j + i) * V::kWidth), row_max[i]);
    }
  }
  for (; j < end; ++j) row_max[0] = V::max(V::load(scores + j * V::kWidth), row_max[0]);
  REGARD_UNROLL for (int i = 1; i < kChains; ++i) row_max[0] = V::max(row_max[i], row_max[0]);
  V::store(max, row_max[0]);
}

/// Of the first `vectors` vectors of W.
template <class V>
static void accumulate_max(int vectors, std::int64_t size, const typename V::Scalar* scores,
                           typename V::Scalar* max) {
  for (int v = 0; v < vectors; ++v) {
    accumulate_max_of<V>(0, size, scores + v * V::kLanes, max + v * V::kLanes);
  }
}

/// The subtrahend of exp2: a maximum, or 0 where it is -inf (nothing seen yet), so that
/// exp2(-inf - subtrahend) is 0, not NaN. Only the subtrahend is made safe: a safe old maximum too
/// would give inf * 0.
template <class V>
REGARD_KERNEL_FN typename V::Vec subtrahend(typename V::Vec max) {
  return V::select(max == minus_infinity<V>(), V::set(0), max);
}

/// Raises state.max to `max` where that is more. rescale = 2^((old maximum - new one) * factor), by
/// which everything summed so far is multiplied, state.sum too; exactly 1 where the maximum stands.
template <class V>
static void update_max(const Problem& p, int vectors, const typename V::Scalar* max,
                       RowState<V>* state, typename V::Scalar* rescale) {
  const auto factor = V::set(static_cast<typename V::Scalar>(p.exp2_scale));
  for (int v = 0; v < vectors; ++v) {
    const int at = v * V::kLanes;
    const auto row_max = V::load(max + at);
    const auto before = V::load(state->max + at);
    const auto after = V::max(row_max, before);
    // Where nothing rose it is 1 even if the maximum is an infinite or NaN sink.
    const auto split_rescale = V::select(
        row_max > before, exp2_nonpositive<V>(before - subtrahend<V>(after), factor), V::set(1));
    V::store(rescale + at, split_rescale);
    V::store(state->max + at, after);
    V::store(state->sum + at, V::load(state->sum + at) * split_rescale);
  }
}

/// total + x; what rounding loses of it stays in x (0 where it is not finite).
template <class V>
REGARD_KERNEL_FN typename V::Vec add_keeping_rest(typename V::Vec total, typename V::Vec* x) {
  const auto sum = total + *x;
  const auto added = sum - total;
  const auto rest = (total - (sum - added)) + (*x - added);
  *x = V::select(rest == rest, rest, V::set(0));
  return sum;
}

/// total += block, whose maximum stays; its sum becomes what rounding lost. rescale: see
/// update_max.
template <class V>
static void close_block(const Problem& p, int vectors, RowState<V>* block, RowState<V>* total,
                        typename V::Scalar* rescale) {
  update_max<V>(p, vectors, block->max, total, rescale);
  for (int at = 0; at < vectors * V::kLanes; at += V::kLanes) {
    auto sum = V::load(block->sum + at);
    V::store(total->sum + at, add_keeping_rest<V>(V::load(total->sum + at), &sum));
    V::store(block->sum + at, sum);
  }
}

/// Adds what `split` summed over other keys to `state`: rescale and split_rescale are the factors
/// of the outputs summed so far and of the split's.
template <class V>
static void merge_state(const Problem& p, int vectors, const RowState<V>& split, RowState<V>* state,
                        typename V::Scalar* rescale, typename V::Scalar* split_rescale) {
  const auto factor = V::set(static_cast<typename V::Scalar>(p.exp2_scale));
  update_max<V>(p, vectors, split.max, state, rescale);
  for (int v = 0; v < vectors; ++v) {
    const int at = v * V::kLanes;
    const auto down = V::load(split.max + at) - subtrahend<V>(V::load(state->max + at));
    const auto by = exp2_nonpositive<V>(down, factor);
    V::store(split_rescale + at, by);
    V::store(state->sum + at, V::fma(V::load(split.sum + at), by, V::load(state->sum + at)));
  }
}

/// Probabilities as floats [keys][W].
template <class V>
struct FloatProbs {
  using T = typename V::Scalar;

  /// Those of keys [j, j + kKeys), one vector of rows from lane `at` on.
  template <int kKeys>
  REGARD_KERNEL_FN void store(T* probs, std::int64_t j, int at,
                              const typename V::Vec (&prob)[kKeys]) {
    REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
      V::store(probs + (j + i) * V::kWidth + at, prob[i]);
    }
  }

  /// What stored as floats is left, keys [begin, end), takes the form that is multiplied.
  template <int kVectors>
  REGARD_KERNEL_FN void finish(T*, std::int64_t, std::int64_t) {}
};

/// Scores of keys [begin, end), one vector of rows from lane `at` on, become 2^((score - state.max)
/// * factor), in blocks of kExp2Vectors keys in the form of Probs, the rest as floats. kMasked:
/// masked ones (-inf) become -0: the sign bit marks them for the selecting product what was masked,
/// and -0 adds nothing. kScales: scores are multiplied by the scale first. state.sum grows by the
/// tile's own sum.
template <class V, bool kMasked, class Probs, bool kScales = false>
REGARD_KERNEL_FN void exponentiate_keys(const Problem& p, std::int64_t begin, std::int64_t end,
                                        int at, typename V::Scalar* scores, RowState<V>* state) {
  using T = typename V::Scalar;
  const auto factor = V::set(static_cast<T>(p.exp2_scale));
  [[maybe_unused]] const auto scale = V::set(static_cast<T>(p.softmax_scale));
  const auto max = subtrahend<V>(V::load(state->max + at));
  typename V::Vec sum{};
  for_blocks<kExp2Vectors>(
      end - begin, [&](std::int64_t x, auto keys) __attribute__((always_inline)) {
        constexpr int kKeys = decltype(keys)::value;
        T* const score = scores + (begin + x) * V::kWidth + at;
        typename V::Vec prob[kKeys];
        REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
          const auto loaded = V::load(score + i * V::kWidth);
          prob[i] = kScales ? loaded * scale - max : loaded - max;
        }
        exp2_nonpositive<V, kKeys>(prob, factor);
        REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
          if (kMasked) {
            const auto masked = V::load(score + i * V::kWidth) == minus_infinity<V>();
            prob[i] = V::select(masked, V::set(T(-0.0)), prob[i]);
          }
          sum += prob[i];
        }
        Probs::template store<kKeys>(scores, begin + x, at, prob);
      });
  V::store(state->sum + at, V::load(state->sum + at) + sum);
}

/// The same for `size` keys and all vectors of rows.
template <class V, bool kMasked, class Probs = FloatProbs<V>, bool kScales = false>
static void exponentiate(const Problem& p, std::int64_t size, typename V::Scalar* scores,
                         RowBlock<V>* row_block) {
  for (int v = 0; v < row_block->vectors; ++v) {
    exponentiate_keys<V, kMasked, Probs, kScales>(p, 0, size, v * V::kLanes, scores,
                                                  &row_block->state);
  }
}

/// One row of f64 at a time: 64-bit lanes hold no vectors of 32-bit words.
template <class V>
static void drop_row(const Problem& p, semantics::DropoutRow row, Tile tile,
                     typename V::Scalar* probs) {
  using T = typename V::Scalar;
  for (std::int64_t x = 0; x < tile.size; ++x) {
    const bool keep = semantics::dropout_keeps(p.dropout, row, tile.begin + x);
    probs[x * V::kWidth] *= keep ? T(1) : T(0);  // a product: the sign of -0 stays
  }
}

/// The rows of a vector's lanes at once: positions and batch_heads are their words of the counter.
template <class V>
static void drop_lanes(const Problem& p, typename V::Unsigned positions,
                       typename V::Unsigned batch_heads, Tile tile, typename V::Scalar* probs) {
  using Unsigned = typename V::Unsigned;
  constexpr std::int64_t kBlock = semantics::kDropoutKeysPerBlock;  // tile.begin is a multiple
  const auto threshold = static_cast<std::int32_t>(p.dropout.threshold);
  for (std::int64_t j = 0; j < tile.size; j += kBlock) {
    const std::uint32_t block = semantics::dropout_key_word(p.dropout, tile.begin + j);
    Unsigned words[4] = {Unsigned{} + block, positions, batch_heads,
                         Unsigned{} + p.dropout.offset_lo};
    semantics::philox_rounds<V>(p.dropout.key, words);
    const std::int64_t count = j + kBlock < tile.size ? kBlock : tile.size - j;
    for (std::int64_t x = 0; x < count; ++x) {
      const Unsigned draw = (words[x >> 1] >> (16 * (x & 1))) & 0xffffu;
      const auto keep = __builtin_bit_cast(typename V::Int, draw) < threshold;
      typename V::Scalar* at = probs + (j + x) * V::kWidth;
      const auto prob = V::load(at);
      V::store(at, V::select(keep, prob, prob * V::set(0)));
    }
  }
}

/// Drops probabilities; their sums are over all of them, and write_rows divides by the share kept.
template <class V>
static void drop_probs(const Problem& p, const Sequence& s, const RowBlock<V>& row_block, Tile tile,
                       typename V::Scalar* probs) {
  const auto row_of = [&](int w) __attribute__((always_inline)) {
    return semantics::dropout_row(p.dropout, row_block.query[w], s.band.shift, row_block.b,
                                  row_block.head[w], p.num_heads_q);
  };
  if constexpr (sizeof(typename V::Scalar) == sizeof(double)) {
    for (int w = 0; w < row_block.rows; ++w) drop_row<V>(p, row_of(w), tile, probs + w);
  } else {
    for (int v = 0; v < row_block.vectors; ++v) {
      typename V::Unsigned positions{}, batch_heads{};
      for (int lane = 0; lane < V::kLanes; ++lane) {
        const semantics::DropoutRow row = row_of(v * V::kLanes + lane);
        positions[lane] = row.position;
        batch_heads[lane] = row.batch_head;
      }
      drop_lanes<V>(p, positions, batch_heads, tile, probs + v * V::kLanes);
    }
  }
}

}  // namespace regard::cpu
