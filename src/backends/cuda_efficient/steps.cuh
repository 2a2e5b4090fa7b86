#pragma once

#include "backends/cuda_efficient/backward.cuh"
#include "backends/cuda_efficient/bias.cuh"
#include "backends/cuda_efficient/forward.cuh"
#include "backends/cuda_efficient/tensor_backward.cuh"
#include "backends/cuda_efficient/tensor_forward.cuh"

// The launches of a call, in order, on whatever runs them: a stream, or a test.

namespace regard::cuda_efficient {

template <class Kernel, class Runner>
void launch(Runner& run, const typename Kernel::Args& args, const Problem& p) {
  run.template launch<Kernel>(args, cuda::count_tasks(p, Kernel::grid(p)));
}

/// bf16 or f16 on tensor cores.
template <Element kType, bool kEdits, class Runner>
void run_tensor_forward(Runner& run, const Problem& p) {
  if (is_wide(p.head_dim_qk) || is_wide(p.head_dim_v)) {
    launch<TensorForwardKernel<kType, kWide, kEdits>>(run, tensor_args(p), p);
  } else {
    launch<TensorForwardKernel<kType, kNarrow, kEdits>>(run, tensor_args(p), p);
  }
}

template <class Runner>
void run_tensor_forward(Runner& run, const Problem& p) {
  const bool is_bf16 = p.q.type == Element::kBf16;
  if (is_plain(p)) {
    is_bf16 ? run_tensor_forward<Element::kBf16, false>(run, p)
            : run_tensor_forward<Element::kF16, false>(run, p);
  } else {
    is_bf16 ? run_tensor_forward<Element::kBf16, true>(run, p)
            : run_tensor_forward<Element::kF16, true>(run, p);
  }
}

template <class Runner>
void run_float_forward(Runner& run, const Problem& p) {
  if (is_wide(p.head_dim_v)) {
    launch<ForwardKernel<kWide>>(run, {p}, p);
  } else {
    launch<ForwardKernel<kNarrow>>(run, {p}, p);
  }
}

template <class Runner>
void run_forward(Runner& run, const Problem& p, bool on_tensor_cores) {
  on_tensor_cores ? run_tensor_forward(run, p) : run_float_forward(run, p);
}

/// d_q, d_k and d_v of bf16 on tensor cores.
template <int kDims, class Runner>
void run_tensor_backward(Runner& run, const BackwardArgs& args) {
  constexpr Element kType = Element::kBf16;
  const GradProblem& g = args.grad;
  const TensorGradArgs tensor = tensor_grad_args(args);
  const Problem& p = g.problem;
  if (g.d_q.present) launch<TensorQueriesKernel<kType, kDims>>(run, tensor, p);
  if (g.d_k.present) launch<TensorKeysKernel<kType, kDims, false>>(run, tensor, p);
  if (g.d_v.present) launch<TensorKeysKernel<kType, kDims, true>>(run, tensor, p);
}

template <class Runner>
void run_tensor_backward(Runner& run, const BackwardArgs& args) {
  const Problem& p = args.grad.problem;
  if (is_wide(p.head_dim_qk) || is_wide(p.head_dim_v)) {
    run_tensor_backward<kWide>(run, args);
  } else {
    run_tensor_backward<kNarrow>(run, args);
  }
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
    run.template launch<cuda::SinksKernel<float>>({g, args.delta}, g.problem.num_heads_q);
  }
}

template <class Runner>
void run_float_backward(Runner& run, const BackwardArgs& args) {
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
void run_backward(Runner& run, const BackwardArgs& args, bool on_tensor_cores) {
  run_delta(run, args);
  on_tensor_cores ? run_tensor_backward(run, args) : run_float_backward(run, args);
  run_reductions(run, args);
}

}  // namespace regard::cuda_efficient
