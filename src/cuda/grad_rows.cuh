#pragma once

#include <cstdint>

#include "cuda/reduce.cuh"
#include "cuda/tasks.cuh"

// What a backward holds of rows besides their facts, and gradients that are one sum for each head.

namespace regard::cuda {

using problem::GradProblem;

/// Where row (b, h, i) stands in a dense [B][Hq][Sq], or [Hq][total_q] of packed sequences.
REGARD_KERNEL_FN std::int64_t dense_row(const Problem& p, std::int64_t b, std::int64_t h,
                                        std::int64_t i) {
  if (p.q.starts.data != nullptr) return h * p.total_q + problem::row_start(p.q.starts, b) + i;
  return (b * p.num_heads_q + h) * p.seqlen_q + i;
}

/// The delta that the caller gave, or 0, less d_lse.
template <class T>
REGARD_DEVICE_FN T given_delta(const GradProblem& g, std::int64_t b, std::int64_t h,
                               std::int64_t i) {
  T delta{};
  if (g.delta.present) {
    delta = *problem::element_at<T>(g.delta, problem::row_index(g.delta, b, h, i));
  }
  if (g.d_lse.present) {
    delta -= *problem::element_at<T>(g.d_lse, problem::row_index(g.d_lse, b, h, i));
  }
  return delta;
}

/// The lane's part of the sum of d_out * out of row (b, h, i). An output of 0 adds nothing,
/// whatever d_out holds: a row that sees only its sink has no other.
template <class T>
REGARD_DEVICE_FN T lane_delta(const GradProblem& g, std::int64_t b, std::int64_t h, std::int64_t i,
                              int lane) {
  const Problem& p = g.problem;
  const char* const out = problem::row_address(p.out, b, h, i);
  const char* const d_out = problem::row_address(g.d_out, b, h, i);
  T sum{};
  for (std::int64_t d = lane; d < p.head_dim_v; d += kWarp) {
    const T o = load_element<T>(p.out.type, out, d);
    if (o != T(0)) sum += o * load_element<T>(g.d_out.type, d_out, d);
  }
  return sum;
}

/// Whether outputs were rounded to 16 bits: a delta of them is then the largest error of rows with
/// large probabilities.
REGARD_KERNEL_FN bool has_rounded_outputs(const Problem& p) {
  return p.out.type == Element::kBf16 || p.out.type == Element::kF16;
}

/// d_sinks: a block for each head sums over the batch and rows in f64. A sink's weight in a row is
/// e^(sink - lse); it has no value vector.
template <class T>
struct SinksKernel {
  struct Args {
    GradProblem grad{};
    const T* delta = nullptr;  // dense_row(): the sum of d_out * out, less d_lse
  };
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 2;
  static constexpr int kSharedBytes = cuda::kWarps * static_cast<int>(sizeof(double));

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    for_each_task(block, p.num_heads_q, [&](std::int64_t h) {
      const auto sums = block.template shared<double>(0, cuda::kWarps);
      const double sum = sum_block(block, sums, own_sum(block, args, h));
      if (block.thread() != 0) return;
      *problem::element_at<float>(args.grad.d_sinks, h * args.grad.d_sinks.stride[0]) =
          static_cast<float>(sum);
    });
  }

  /// What the thread's share of the head's rows gives.
  template <class Block>
  REGARD_DEVICE_FN double own_sum(const Block& block, const Args& args, std::int64_t h) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const auto sink = static_cast<T>(*problem::element_at<float>(p.sinks, h * p.sinks.stride[0]));
    double sum = 0.0;
    if (sink == minus_infinity<T>()) return sum;
    for (std::int64_t row = block.thread(); row < p.batch * p.seqlen_q; row += kThreads) {
      const std::int64_t b = row / p.seqlen_q, i = row % p.seqlen_q;
      if (i >= problem::sequence_of(p, b).len_q) continue;
      const problem::SavedRow<T> saved = problem::saved_row<T>(g, b, h, i);
      if (saved.sum == T(0)) continue;
      sum -=
          problem::sink_share(saved, sink) * static_cast<double>(args.delta[dense_row(p, b, h, i)]);
    }
    return sum;
  }
};

}  // namespace regard::cuda
