#pragma once

#include "backends/cuda_math/backward.cuh"
#include "backends/cuda_math/forward.cuh"
#include "cuda/past_end.cuh"

// The launches of a call, in order, on whatever runs them: a stream, or a test. T is the type of
// the arithmetic.

namespace regard::cuda_math {

template <class Kernel, class Runner>
void launch_tiles(Runner& run, const typename Kernel::Args& args, const Problem& p) {
  run.template launch<Kernel>(args, cuda::count_tasks(p, Kernel::grid(p)));
}

template <class T, bool kTransposed, bool kCached = false, class Runner>
void launch_product(Runner& run,
                    const typename ProductKernel<T, kTransposed, kCached>::Args& args) {
  using Kernel = ProductKernel<T, kTransposed, kCached>;
  run.template launch<Kernel>(args, cuda::count_tasks(args.problem, Kernel::grid(args)));
}

template <class T, bool kCached, class Runner>
void run_rows(Runner& run, const ForwardArgs& args) {
  const Problem& p = args.problem;
  launch_tiles<ScoresKernel<T, kCached>>(run, args, p);
  run.template launch<SoftmaxKernel<T>>(args, count_row_tasks(p));
  launch_product<T, false, kCached>(
      run, {p, args.scores, p.v, p.out, p.head_dim_v, 1.0, args.kv_entries});
}

template <class T, class Runner>
void run_forward(Runner& run, const ForwardArgs& args) {
  cuda::is_cached(args.problem) ? run_rows<T, true>(run, args) : run_rows<T, false>(run, args);
  cuda::clear_outputs_past_end(run, args.problem);
}

/// d_v, then d_q and d_k.
template <class T, class Runner>
void run_products(Runner& run, const BackwardArgs& args) {
  const GradProblem& g = args.grad;
  const Problem& p = g.problem;
  if (g.d_v.present) {
    launch_product<T, true>(run, {p, args.probs, g.d_out, g.d_v, p.head_dim_v, 1.0});
  }
  if (!g.d_q.present && !g.d_k.present) return;
  if (p.caps_scores) launch_tiles<SoftcapKernel<T>>(run, args, p);
  const double scale = p.softmax_scale;
  if (g.d_q.present) {
    launch_product<T, false>(run, {p, args.d_scores, p.k, g.d_q, p.head_dim_qk, scale});
  }
  if (g.d_k.present) {
    launch_product<T, true>(run, {p, args.d_scores, p.q, g.d_k, p.head_dim_qk, scale});
  }
}

template <class T, class Runner>
void run_backward(Runner& run, const BackwardArgs& args) {
  const GradProblem& g = args.grad;
  const Problem& p = g.problem;
  launch_tiles<GradScoresKernel<T>>(run, args, p);
  run.template launch<GradRowsKernel<T>>(args, count_row_tasks(p));
  if (g.d_bias.present) run.template launch<BiasKernel<T>>(args, BiasKernel<T>::count_tasks(g));
  if (g.d_sinks.present) {
    const auto* const delta = reinterpret_cast<const T*>(args.delta);
    run.template launch<cuda::SinksKernel<T>>({g, delta}, p.num_heads_q);
  }
  run_products<T>(run, args);
  cuda::clear_gradients_past_end(run, g);
}

}  // namespace regard::cuda_math
