#pragma once

#include <cstdint>

#include "cpu/strip.h"
#include "cpu/vector_math.h"

// Score edits and softmax on a strip's scores^T [keys][W]. Probabilities are 2^((score - max) *
// factor): the difference comes first, so that it is exactly 0 at the maximum whatever the scores'
// size (score * log2(e) of finfo.min would be -inf). The factor holds log2(e), and softmax_scale
// too where nothing edits the scores (Problem::scales_first).

namespace regard::cpu {

template <class V>
REGARD_KERNEL_FN typename V::Vec minus_infinity() {
  return V::set(static_cast<typename V::Scalar>(-__builtin_inf()));
}

/// scores *= softmax_scale.
template <class V>
static void scale_scores(const Problem& p, std::int64_t size, typename V::Scalar* scores) {
  const auto scale = V::set(static_cast<typename V::Scalar>(p.softmax_scale));
  for (std::int64_t x = 0; x < size * V::kVectors; ++x) {
    V::store(scores + x * V::kLanes, V::load(scores + x * V::kLanes) * scale);
  }
}

template <class V>
static void cap_scores(const Problem& p, std::int64_t size, typename V::Scalar* scores) {
  const auto softcap = V::set(static_cast<typename V::Scalar>(p.softcap));
  for (std::int64_t x = 0; x < size * V::kVectors; ++x) {
    typename V::Scalar* at = scores + x * V::kLanes;
    V::store(at, semantics::softcap_score(
                     V::load(at), softcap,
                     [](auto t) __attribute__((always_inline)) { return tanh_vector<V>(t); }));
  }
}

template <class V>
static void add_alibi(const Strip<V>& strip, Tile tile, typename V::Scalar* scores) {
  using T = typename V::Scalar;
  // Distances up to 2^22 are exact as floats even after adding a tile: the usual case, in vectors.
  constexpr std::int64_t kExact = std::int64_t{1} << 22;
  alignas(64) T from[V::kWidth];
  bool exact = tile.size < kExact;
  for (int w = 0; w < V::kWidth; ++w) {
    const std::int64_t distance = semantics::diagonal_distance(strip.position[w], tile.begin);
    exact = exact && distance < kExact;
    from[w] = exact ? static_cast<T>(strip.position[w] - tile.begin) : T(0);
  }
  for (std::int64_t j = 0; j < tile.size; ++j) {
    T* row = scores + j * V::kWidth;
    if (!exact) {
      for (int w = 0; w < V::kWidth; ++w) {
        row[w] += semantics::alibi_bias(strip.slope[w], strip.position[w], tile.begin + j);
      }
      continue;
    }
    for (int v = 0; v < V::kVectors; ++v) {
      const int at = v * V::kLanes;
      const auto difference = V::load(from + at) - V::set(static_cast<T>(j));
      const auto distance = V::select(V::sign(difference), -difference, difference);
      V::store(row + at, V::load(row + at) - V::load(strip.slope + at) * distance);
    }
  }
}

/// Adds the bias; -inf masks by selection. `row` holds a tile's keys.
template <class V>
static void add_bias(const Problem& p, const Strip<V>& strip, Tile tile, typename V::Scalar* scores,
                     typename V::Scalar* row) {
  using T = typename V::Scalar;
  const T masked = static_cast<T>(-__builtin_inf());
  for (int w = 0; w < strip.rows; ++w) {
    const char* first = row_address(p.bias, strip.b, strip.head[w], strip.query[w]) +
                        tile.begin * p.bias.stride[3] * element_bytes(p.bias.type);
    if (p.bias.stride[3] == 1) {
      load_dense_row<V>(p.bias.type, first, tile.size, row);
    } else {
      load_row(p.bias.type, first, p.bias.stride[3], tile.size, row);
    }
    for (std::int64_t j = 0; j < tile.size; ++j) {
      T& score = scores[j * V::kWidth + w];
      score = row[j] == masked ? masked : score + row[j];
    }
  }
}

/// Masks by attn_mask and segment ids.
template <class V>
static void apply_mask_data(const Problem& p, const Strip<V>& strip, Tile tile,
                            typename V::Scalar* scores) {
  using T = typename V::Scalar;
  const T masked = static_cast<T>(-__builtin_inf());
  for (int w = 0; p.mask.present && w < strip.rows; ++w) {
    const char* attend =
        row_address(p.mask, strip.b, strip.head[w], strip.query[w]) + tile.begin * p.mask.stride[3];
    for (std::int64_t j = 0; j < tile.size; ++j) {
      if (attend[j * p.mask.stride[3]] == 0) scores[j * V::kWidth + w] = masked;
    }
  }
  if (!p.segments_q.present) return;
  for (std::int64_t j = 0; j < tile.size; ++j) {
    const std::int64_t at =
        strip.b * p.segments_kv.stride[0] + (tile.begin + j) * p.segments_kv.stride[1];
    const std::int32_t segment = *element_at<std::int32_t>(p.segments_kv, at);
    for (int w = 0; w < V::kWidth; ++w) {
      T& score = scores[j * V::kWidth + w];
      score = segment == strip.segment[w] ? score : masked;
    }
  }
}

/// Masks keys outside each row's range.
template <class V>
static void apply_band(const Strip<V>& strip, Tile tile, typename V::Scalar* scores) {
  using T = typename V::Scalar;
  alignas(64) T lo[V::kWidth];
  alignas(64) T hi[V::kWidth];
  for (int w = 0; w < V::kWidth; ++w) {  // relative to the tile: small integers are exact in T
    lo[w] = static_cast<T>(semantics::clamp(strip.keys[w].lo - tile.begin, 0, tile.size));
    hi[w] = static_cast<T>(semantics::clamp(strip.keys[w].hi - tile.begin, 0, tile.size));
  }
  for (std::int64_t j = 0; j < tile.size; ++j) {
    const auto key = V::set(static_cast<T>(j));
    for (int v = 0; v < V::kVectors; ++v) {
      const int at = v * V::kLanes;
      T* score = scores + j * V::kWidth + at;
      const auto visible = (key >= V::load(lo + at)) & (key < V::load(hi + at));
      V::store(score, V::select(visible, V::load(score), minus_infinity<V>()));
    }
  }
}

/// The scale where it is not in the factor, and everything after it. `partial`: not every row sees
/// every key. `row` holds a tile's keys.
template <class V>
static void edit_scores(const Problem& p, const Strip<V>& strip, Tile tile, bool partial,
                        typename V::Scalar* scores, typename V::Scalar* row) {
  if (p.scales_first) scale_scores<V>(p, tile.size, scores);
  if (p.softcap > 0.0) cap_scores<V>(p, tile.size, scores);
  if (p.slopes.present) add_alibi<V>(strip, tile, scores);
  if (p.bias.present) add_bias<V>(p, strip, tile, scores, row);
  if (!partial) return;
  apply_mask_data<V>(p, strip, tile, scores);
  apply_band<V>(strip, tile, scores);
}

/// max = max(max, scores). NaN scores are passed over here; they reach the sum.
template <class V>
static void fold_max(std::int64_t size, const typename V::Scalar* scores, typename V::Scalar* max) {
  for (int v = 0; v < V::kVectors; ++v) {
    auto most = V::load(max + v * V::kLanes);
    for (std::int64_t j = 0; j < size; ++j) {
      most = V::max(V::load(scores + j * V::kWidth + v * V::kLanes), most);
    }
    V::store(max + v * V::kLanes, most);
  }
}

/// The subtrahend of exp2: row_max, or 0 where it is -inf (nothing seen yet), so that
/// exp2(-inf - subtrahend) is 0, not NaN. Only the subtrahend is made safe: a safe old maximum too
/// would give inf * 0.
template <class V>
REGARD_KERNEL_FN typename V::Vec subtrahend(typename V::Vec row_max) {
  return V::select(row_max == minus_infinity<V>(), V::set(0), row_max);
}

/// Raises row_max to `max` where that is more. carry = 2^((old maximum - new one) * factor), by
/// which everything summed so far shrinks; exactly 1 where the maximum stands. row_sum *= carry.
template <class V>
static void raise_max(const Problem& p, const typename V::Scalar* max, Strip<V>* strip,
                      typename V::Scalar* carry) {
  const auto factor = V::set(static_cast<typename V::Scalar>(p.factor));
  for (int v = 0; v < V::kVectors; ++v) {
    const int at = v * V::kLanes;
    const auto before = V::load(strip->row_max + at);
    const auto after = V::max(V::load(max + at), before);
    const auto shrink = exp2_nonpositive<V>(before - subtrahend<V>(after), factor);
    V::store(carry + at, shrink);
    V::store(strip->row_max + at, after);
    V::store(strip->row_sum + at, V::load(strip->row_sum + at) * shrink);
  }
}

/// scores become 2^((score - row_max) * factor). kMasked: masked ones (-inf) become -0: the sign
/// bit tells the selecting product what was masked, and -0 adds nothing. row_sum grows by the
/// tile's own sum.
template <class V, bool kMasked>
static void exponentiate(const Problem& p, std::int64_t size, typename V::Scalar* scores,
                         Strip<V>* strip) {
  using T = typename V::Scalar;
  const auto factor = V::set(static_cast<T>(p.factor));
  for (int v = 0; v < strip->vectors; ++v) {
    const int at = v * V::kLanes;
    const auto max = subtrahend<V>(V::load(strip->row_max + at));
    typename V::Vec sum{};
    for (std::int64_t j = 0; j < size; ++j) {
      T* score = scores + j * V::kWidth + at;
      const auto s = V::load(score);
      auto prob = exp2_nonpositive<V>(s - max, factor);
      if (kMasked) prob = V::select(s == minus_infinity<V>(), V::set(T(-0.0)), prob);
      sum += prob;
      V::store(score, prob);
    }
    V::store(strip->row_sum + at, V::load(strip->row_sum + at) + sum);
  }
}

/// Drops probabilities; their sums are over all of them, and write_rows divides by the share kept.
template <class V>
static void drop_probs(const Problem& p, const Sequence& s, const Strip<V>& strip, Tile tile,
                       typename V::Scalar* probs) {
  using T = typename V::Scalar;
  constexpr std::int64_t kBlock = semantics::kDropoutKeysPerBlock;  // tile.begin is a multiple
  for (int w = 0; w < strip.rows; ++w) {
    const auto row = semantics::dropout_row(strip.query[w], s.band.shift,
                                            strip.b * p.num_heads_q + strip.head[w]);
    for (std::int64_t j = 0; j < tile.size; j += kBlock) {
      const auto block = semantics::dropout_block(p.dropout, row, tile.begin + j);
      const std::int64_t end = j + kBlock < tile.size ? j + kBlock : tile.size;
      for (std::int64_t x = j; x < end; ++x) {
        const bool keep = semantics::dropout_draw(block, x) < p.dropout.threshold;
        probs[x * V::kWidth + w] *= keep ? T(1) : T(0);  // a product: the sign of -0 stays
      }
    }
  }
}

}  // namespace regard::cpu
