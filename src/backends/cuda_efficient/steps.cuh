#pragma once

#include "backends/cuda_efficient/backward.cuh"
#include "backends/cuda_efficient/forward.cuh"
#include "cuda/grad_steps.cuh"
#include "cuda/past_end.cuh"

// The launches of a call, in order, on whatever runs them: a stream, or a test.

namespace regard::cuda_efficient {

using cuda::launch;

template <bool kSplit, bool kCached, class Runner>
void run_rows(Runner& run, const ForwardArgs& args) {
  const Problem& p = args.problem;
  if (is_wide(p.head_dim_v)) {
    launch<ForwardKernel<kWide, kSplit, kCached>>(run, args, p);
  } else {
    launch<ForwardKernel<kNarrow, kSplit, kCached>>(run, args, p);
  }
}

template <class Runner>
void run_whole(Runner& run, const ForwardArgs& args) {
  run_rows<false, false>(run, args);
}

template <class Runner>
void run_splits(Runner& run, const ForwardArgs& args) {
  run_rows<true, false>(run, args);
}

template <class Runner>
void run_cached(Runner& run, const ForwardArgs& args) {
  args.splits.row_max == 1 ? run_rows<false, true>(run, args) : run_rows<true, true>(run, args);
}

template <class Runner>
void run_forward(Runner& run, const ForwardArgs& args) {
  const bool splits = args.splits.row_max > 1;
  if (cuda::is_cached(args.problem)) {
    run_cached(run, args);
  } else {
    splits ? run_splits(run, args) : run_whole(run, args);
  }
  if (splits) launch<cuda::MergeKernel>(run, {args}, args.problem);
  cuda::clear_outputs_past_end(run, args.problem);
}

/// d_q, d_k and d_v.
template <class Runner>
void run_products(Runner& run, const BackwardArgs& args) {
  const GradProblem& g = args.grad;
  const Problem& p = g.problem;
  if (g.d_q.present) {
    if (is_wide(p.head_dim_qk)) {
      launch<QueriesKernel<kWide>>(run, args, p);
    } else {
      launch<QueriesKernel<kNarrow>>(run, args, p);
    }
  }
  if (g.d_k.present || g.d_v.present) {
    if (is_wide(p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v)) {
      launch<KeysKernel<kWide>>(run, args, p);
    } else {
      launch<KeysKernel<kNarrow>>(run, args, p);
    }
  }
}

template <class Runner>
void run_backward(Runner& run, const BackwardArgs& args) {
  cuda::run_delta(run, args);
  run_products(run, args);
  cuda::run_reductions(run, args);
  cuda::clear_gradients_past_end(run, args.grad);
}

}  // namespace regard::cuda_efficient
