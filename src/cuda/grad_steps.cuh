#pragma once

#include "cuda/bias.cuh"
#include "cuda/delta.cuh"

// The launches that every backward has before and behind its own.

namespace regard::cuda {

template <class Kernel, class Runner>
void launch(Runner& run, const typename Kernel::Args& args, const Problem& p) {
  run.template launch<Kernel>(args, count_tasks(p, Kernel::grid(p)));
}

/// A row's delta, before all else.
template <class Runner>
void run_delta(Runner& run, const BackwardArgs& args) {
  launch<DeltaKernel>(run, args, args.grad.problem);
}

/// d_bias and d_sinks.
template <class Runner>
void run_reductions(Runner& run, const BackwardArgs& args) {
  const GradProblem& g = args.grad;
  if (g.d_bias.present) run.template launch<BiasKernel>(args, BiasKernel::count_tasks(g));
  if (g.d_sinks.present) {
    run.template launch<SinksKernel<float>>({g, args.delta}, g.problem.num_heads_q);
  }
}

}  // namespace regard::cuda
