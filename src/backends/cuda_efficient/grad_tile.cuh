#pragma once

#include <cstdint>

#include "backends/cuda_efficient/args.h"
#include "backends/cuda_efficient/forward.cuh"
#include "cuda/grad_rows.cuh"

// What every pass of the backward computes of 64 rows and a tile of keys: probabilities and the
// gradients of scores, again from q, k and v.

namespace regard::cuda_efficient {

using problem::GradProblem;

/// Where a pass keeps the facts and saved numbers of its rows, and the staging of products with
/// sums of kSums columns a thread.
template <int kSums>
struct GradLayout {
  using Space = cuda::Staging<float, kSums>;
  static constexpr int kRowBytes = kTile * static_cast<int>(sizeof(float));
  static constexpr int kAtMax = kTile * static_cast<int>(sizeof(cuda::RowFacts<float>));
  static constexpr int kAtInverse = kAtMax + kRowBytes;
  static constexpr int kAtDelta = kAtInverse + kRowBytes;
  static constexpr int kAtA = kAtDelta + kRowBytes;
  static constexpr int kAtB = kAtA + Space::kBytesA;
  static constexpr int kBytes = kAtB + Space::kBytesB;
};

/// The same as arrays of a block's shared memory.
template <class Facts, class Floats>
struct GradSpace {
  Facts facts;
  Floats max, inverse, delta;  // inverse of the sum, 0: the row sees nothing
  Floats a, b;
};

template <class Facts, class Floats>
GradSpace(Facts, Floats, Floats, Floats, Floats, Floats) -> GradSpace<Facts, Floats>;

template <int kSums, class Block>
REGARD_DEVICE_FN auto grad_space(const Block& block) {
  using Layout = GradLayout<kSums>;
  const auto facts = block.template shared<cuda::RowFacts<float>>(0, kTile);
  const auto max = block.template shared<float>(Layout::kAtMax, kTile);
  const auto inverse = block.template shared<float>(Layout::kAtInverse, kTile);
  const auto delta = block.template shared<float>(Layout::kAtDelta, kTile);
  const auto a = block.template shared<float>(Layout::kAtA, cuda::kDepth<float> * kPitch);
  const auto b =
      block.template shared<float>(Layout::kAtB, cuda::kDepth<float> * Layout::Space::kPitchB);
  return GradSpace{facts, max, inverse, delta, a, b};
}

/// Facts, saved numbers and delta of a block of rows; `delta` null: 0. Begins and ends with a
/// barrier.
template <class Block, class Space>
REGARD_DEVICE_FN void load_grad_rows(const Block& block, const GradProblem& g, const Sequence& s,
                                     const cuda::RowBlock& rows, const float* delta,
                                     const Space& space) {
  const Problem& p = g.problem;
  block.sync();
  for (int r = block.thread(); r < kTile; r += cuda::kThreads) {
    const auto facts = cuda::row_facts<float>(p, s, rows, r);
    float max = 0.0f, inverse = 0.0f, sum_delta = 0.0f;
    if (facts.exists && facts.query < s.len_q) {
      const auto saved = problem::saved_row<float>(g, s.b, facts.head, facts.query);
      max = saved.max;
      inverse = saved.sum == 0.0f ? 0.0f : 1.0f / saved.sum;
      if (delta != nullptr) sum_delta = delta[cuda::dense_row(p, s.b, facts.head, facts.query)];
    }
    space.facts[r] = facts;
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
  float capped[kOwn][kOwn];    // scores behind softcap
};

/// Scores and gradients of dropped probabilities become probabilities and gradients of edited
/// scores: probs * (d_probs - delta).
template <class Block, class Space>
REGARD_DEVICE_FN void differentiate_softmax(const Block& block, const Problem& p,
                                            const Space& space, GradTile* t) {
  const cuda::Place at = cuda::place_of(block);
  const auto factor = static_cast<float>(p.factor);
  const auto keep = problem::keep_scale<float>(p);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    const float max = space.max[at.row + i];
    const float inverse = space.inverse[at.row + i];
    const float delta = space.delta[at.row + i];
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const float score = t->probs[i][c];
      const bool hidden = score == cuda::minus_infinity<float>() || inverse == 0.0f;
      const float prob = cuda::exp2_of((score - max) * factor) * inverse;
      const float d_score = prob * (t->d_scores[i][c] * keep - delta);
      t->probs[i][c] = hidden ? cuda::hidden_value<float>() : prob;
      t->d_scores[i][c] = hidden ? cuda::hidden_value<float>() : d_score;
    }
  }
}

/// The rows that load_grad_rows() loaded and a tile of keys that they may see.
template <class Block, class Space>
REGARD_DEVICE_FN void compute_grad_tile(const Block& block, const GradProblem& g, const Sequence& s,
                                        const cuda::RowBlock& rows, semantics::Tile tile,
                                        const Space& space, GradTile* t) {
  const Problem& p = g.problem;
  const std::int64_t head_kv = semantics::kv_head(rows.first_head, p.group_size);
  const bool is_full = cuda::classify(p, rows, s, tile) == semantics::TileClass::kFull;
  cuda::clear(t->probs);
  const auto q = cuda::query_rows(p.q, rows, p.head_dim_qk);
  const auto keys = cuda::key_rows(p.k, s.b, head_kv, tile, p.head_dim_qk);
  cuda::add_row_products(block, q, keys, p.head_dim_qk, space.a, space.b, t->probs);
  cuda::edit_scores(block, p, s.b, space.facts, tile.begin, is_full, t->probs, t->capped);
  cuda::clear(t->d_scores);
  const auto d_out = cuda::query_rows(g.d_out, rows, p.head_dim_v);
  const auto values = cuda::key_rows(p.v, s.b, head_kv, tile, p.head_dim_v);
  cuda::add_row_products(block, d_out, values, p.head_dim_v, space.a, space.b, t->d_scores);
  drop_tile(block, p, s, space.facts, tile.begin, t->d_scores);
  differentiate_softmax(block, p, space, t);
}

/// Gradients of edited scores become those of scaled ones: softcap's slope is 1 - tanh^2.
REGARD_DEVICE_FN void differentiate_softcap(const Problem& p, GradTile* t) {
  if (!(p.softcap > 0.0)) return;
  const auto softcap = static_cast<float>(p.softcap);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const float tanh = t->capped[i][c] / softcap;
      const float slope = 1.0f - tanh * tanh;
      if (cuda::is_hidden(t->d_scores[i][c])) continue;
      t->d_scores[i][c] *= slope > 0.0f ? slope : 0.0f;
    }
  }
}

}  // namespace regard::cuda_efficient
