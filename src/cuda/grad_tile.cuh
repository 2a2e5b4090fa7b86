#pragma once

#include <cstdint>

#include "cuda/edit.cuh"
#include "cuda/grad_rows.cuh"

// What every pass of the backward computes of 64 rows and a tile of keys: probabilities and the
// gradients of scores, again from q, k and v.

namespace regard::cuda {

/// Where a pass keeps the facts and saved numbers of its rows, and the staging of products with
/// sums of kSums columns a thread.
template <int kSums>
struct GradLayout {
  using Space = Staging<float, kSums>;
  static constexpr int kRowBytes = kTile * static_cast<int>(sizeof(float));
  static constexpr int kPlaceBytes = kTile * static_cast<int>(sizeof(std::int64_t));
  static constexpr int kAtQ = kTile * static_cast<int>(sizeof(RowFacts<float>));
  static constexpr int kAtDOut = kAtQ + kPlaceBytes;
  static constexpr int kAtMax = kAtDOut + kPlaceBytes;
  static constexpr int kAtInverse = kAtMax + kRowBytes;
  static constexpr int kAtDelta = kAtInverse + kRowBytes;
  static constexpr int kAtA = kAtDelta + kRowBytes;
  static constexpr int kAtB = kAtA + Space::kBytesA;
  static constexpr int kBytes = kAtB + Space::kBytesB;
};

/// The same as arrays of a block's shared memory.
template <class Facts, class Places, class Floats>
struct GradSpace {
  Facts facts;
  Places in_q, in_d_out;       // where the rows lie
  Floats max, inverse, delta;  // inverse of the sum, 0: the row sees nothing
  Floats a, b;
};
template <class Facts, class Places, class Floats>
GradSpace(Facts, Places, Places, Floats, Floats, Floats, Floats, Floats)
    -> GradSpace<Facts, Places, Floats>;

template <int kSums, class Block>
REGARD_DEVICE_FN auto grad_space(const Block& block) {
  using Layout = GradLayout<kSums>;
  constexpr int kSizeA = kDepth<float> * kPitch;
  constexpr int kSizeB = kDepth<float> * Layout::Space::kPitchB;
  return GradSpace{block.template shared<RowFacts<float>>(0, kTile),
                   block.template shared<std::int64_t>(Layout::kAtQ, kTile),
                   block.template shared<std::int64_t>(Layout::kAtDOut, kTile),
                   block.template shared<float>(Layout::kAtMax, kTile),
                   block.template shared<float>(Layout::kAtInverse, kTile),
                   block.template shared<float>(Layout::kAtDelta, kTile),
                   block.template shared<float>(Layout::kAtA, kSizeA),
                   block.template shared<float>(Layout::kAtB, kSizeB)};
}

/// Facts, saved numbers and delta of a block of rows; `delta` null: 0. Begins and ends with a
/// barrier.
template <class Block, class Space>
REGARD_DEVICE_FN void load_grad_rows(const Block& block, const GradProblem& g, const Sequence& s,
                                     const RowBlock& rows, const float* delta, const Space& space) {
  const Problem& p = g.problem;
  block.sync();
  for (int r = block.thread(); r < kTile; r += kThreads) {
    const auto facts = row_facts<float>(p, s, rows, r);
    float max = 0.0f, inverse = 0.0f, sum_delta = 0.0f;
    if (facts.exists && facts.query < s.len_q) {
      const auto saved = problem::saved_row<float>(g, s.b, facts.head, facts.query);
      max = saved.max;
      inverse = saved.sum == 0.0f ? 0.0f : 1.0f / saved.sum;
      if (delta != nullptr) sum_delta = delta[dense_row(p, s.b, facts.head, facts.query)];
    }
    space.facts[r] = facts;
    space.in_q[r] = place_in(p.q, s.b, facts);
    space.in_d_out[r] = place_in(g.d_out, s.b, facts);
    space.max[r] = max;
    space.inverse[r] = inverse;
    space.delta[r] = sum_delta;
  }
  block.sync();
}

/// A thread's part of a tile.
struct GradTile {
  float probs[kOwn][kOwn];     // before dropout
  float d_scores[kOwn][kOwn];  // of edited scores
};

/// Scores and gradients of dropped probabilities become probabilities and gradients of edited
/// scores: probs * (d_probs - delta).
template <class Block, class Space>
REGARD_DEVICE_FN void differentiate_softmax(const Block& block, const Problem& p,
                                            const Space& space, GradTile* t) {
  const Place at = place_of(block);
  const auto factor = static_cast<float>(p.exp2_scale);
  const auto keep = problem::keep_scale<float>(p);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    const float max = space.max[at.row + i];
    const float inverse = space.inverse[at.row + i];
    const float delta = space.delta[at.row + i];
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const float score = t->probs[i][c];
      const bool hidden = score == minus_infinity<float>() || inverse == 0.0f;
      const float prob = exp2_below(score, max, factor) * inverse;
      const float d_score = prob * (t->d_scores[i][c] * keep - delta);
      t->probs[i][c] = hidden ? hidden_value<float>() : prob;
      t->d_scores[i][c] = hidden ? hidden_value<float>() : d_score;
    }
  }
}

/// A tile of keys and values that the rows at hand may see.
struct KeyTile {
  std::int64_t b, head_kv;
  semantics::Tile tile;
  bool is_full;  // no row sees less than all of it
};

/// A thread's part of the tile, for the rows that load_grad_rows() loaded. keep_capped(i, c, score)
/// receives the scores behind softcap.
template <class Block, class Space, class KeepCapped>
REGARD_DEVICE_FN void compute_grad_tile(const Block& block, const GradProblem& g, const KeyTile& at,
                                        const Space& space, KeepCapped keep_capped, GradTile* t) {
  const Problem& p = g.problem;
  clear(t->probs);
  const auto q = listed_rows(p.q, space.in_q, p.head_dim_qk);
  const auto keys = key_rows(p.k, at.b, at.head_kv, at.tile, p.head_dim_qk);
  add_row_products(block, q, keys, p.head_dim_qk, space.a, space.b, t->probs);
  edit_scores(block, p, at.b, space.facts, at.tile.begin, at.is_full, t->probs, keep_capped);
  clear(t->d_scores);
  const auto d_out = listed_rows(g.d_out, space.in_d_out, p.head_dim_v);
  const auto values = key_rows(p.v, at.b, at.head_kv, at.tile, p.head_dim_v);
  add_row_products(block, d_out, values, p.head_dim_v, space.a, space.b, t->d_scores);
  drop_tile(block, p, space.facts, at.tile.begin, t->d_scores);
  differentiate_softmax(block, p, space, t);
}

template <class Block, class Space>
REGARD_DEVICE_FN void compute_grad_tile(const Block& block, const GradProblem& g, const KeyTile& at,
                                        const Space& space, GradTile* t) {
  compute_grad_tile(
      block, g, at, space, [](int, int, float) {}, t);
}

/// A thread's element of a tile in shared memory, with keys or rows in its rows. What the thread
/// keeps there it may overwrite with what it makes of it.
REGARD_DEVICE_FN int by_keys(Place at, int i, int c) {
  return (at.column + c) * kPitch + at.row + i;
}
REGARD_DEVICE_FN int by_rows(Place at, int i, int c) {
  return (at.row + i) * kPitch + at.column + c;
}

/// Gradients of edited scores become those of scaled ones: softcap's slope is 1 - tanh^2. capped(i,
/// c) is what keep_capped was given.
template <class Capped>
REGARD_DEVICE_FN void differentiate_softcap(const Problem& p, Capped capped, GradTile* t) {
  if (!p.caps_scores) return;
  const float softcap = p.softcap_f32;
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const float score = capped(i, c);
      const float tanh = score / softcap, slope = 1.0f - tanh * tanh;
      if (!is_hidden(t->d_scores[i][c])) t->d_scores[i][c] *= slope > 0.0f ? slope : 0.0f;
    }
  }
}

}  // namespace regard::cuda
