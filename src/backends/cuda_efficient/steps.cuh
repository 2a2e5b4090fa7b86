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

template <Element kType, class Runner>
void run_tensor_forward(Runner& run, const Problem& p) {
  if (is_wide(p.head_dim_qk) || is_wide(p.head_dim_v)) {
    launch<TensorForwardKernel<kType, kWide>>(run, tensor_args(p), p);
  } else {
    launch<TensorForwardKernel<kType, kNarrow>>(run, tensor_args(p), p);
  }
}

template <class Runner>
void run_forward(Runner& run, const Problem& p, bool on_tensor_cores) {
  if (on_tensor_cores && p.q.type == Element::kBf16) {
    run_tensor_forward<Element::kBf16>(run, p);
  } else if (on_tensor_cores) {
    run_tensor_forward<Element::kF16>(run, p);
  } else if (is_wide(p.head_dim_v)) {
    launch<ForwardKernel<kWide>>(run, {p}, p);
  } else {
    launch<ForwardKernel<kNarrow>>(run, {p}, p);
  }
}

/// d_q, d_k and d_v of bf16.
template <int kDims, class Runner>
void run_tensor_backward(Runner& run, const BackwardArgs& args) {
  const GradProblem& g = args.grad;
  const TensorGradArgs tensor_args = tensor_grad_args(args);
  const auto run_one = [&]<class Kernel>(const problem::View& gradient) {
    if (gradient.present) launch<Kernel>(run, tensor_args, g.problem);
  };
  run_one.template operator()<TensorQueriesKernel<Element::kBf16, kDims>>(g.d_q);
  run_one.template operator()<TensorKeysKernel<Element::kBf16, kDims, false>>(g.d_k);
  run_one.template operator()<TensorKeysKernel<Element::kBf16, kDims, true>>(g.d_v);
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
  const GradProblem& g = args.grad;
  const Problem& p = g.problem;
  launch<DeltaKernel>(run, args, p);
  if (!on_tensor_cores) {
    run_float_backward(run, args);
  } else if (is_wide(p.head_dim_qk) || is_wide(p.head_dim_v)) {
    run_tensor_backward<kWide>(run, args);
  } else {
    run_tensor_backward<kNarrow>(run, args);
  }
  if (g.d_bias.present) run.template launch<BiasKernel>(args, BiasKernel::count_tasks(g));
  if (g.d_sinks.present) {
    run.template launch<cuda::SinksKernel<float>>({g, args.delta}, p.num_heads_q);
  }
}

}  // namespace regard::cuda_efficient
