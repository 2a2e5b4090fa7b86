#pragma once

#include "backends/cuda_efficient/backward.cuh"
#include "backends/cuda_efficient/forward.cuh"
#include "backends/cuda_efficient/tensor_backward.cuh"
#include "backends/cuda_efficient/tensor_forward.cuh"
#include "cuda/grad_steps.cuh"

// The launches of a call, in order, on whatever runs them: a stream, or a test.

namespace regard::cuda_efficient {

using cuda::launch;

/// bf16 or f16 on tensor cores.
template <Element kType, bool kEdits, bool kSplit, class Runner>
void run_tensor_rows(Runner& run, const ForwardArgs& args) {
  const Problem& p = args.problem;
  if (is_wide(p.head_dim_qk) || is_wide(p.head_dim_v)) {
    launch<TensorForwardKernel<kType, kWide, kEdits, kSplit>>(run, tensor_args(args), p);
  } else {
    launch<TensorForwardKernel<kType, kNarrow, kEdits, kSplit>>(run, tensor_args(args), p);
  }
}

template <class Runner>
void run_tensor_forward(Runner& run, const ForwardArgs& args) {
  const bool is_bf16 = args.problem.q.type == Element::kBf16;
  if (cuda::is_plain(args.problem)) {
    is_bf16 ? run_tensor_rows<Element::kBf16, false, false>(run, args)
            : run_tensor_rows<Element::kF16, false, false>(run, args);
  } else {
    is_bf16 ? run_tensor_rows<Element::kBf16, true, false>(run, args)
            : run_tensor_rows<Element::kF16, true, false>(run, args);
  }
}

template <class Runner>
void run_tensor_splits(Runner& run, const ForwardArgs& args) {
  const bool is_bf16 = args.problem.q.type == Element::kBf16;
  is_bf16 ? run_tensor_rows<Element::kBf16, true, true>(run, args)
          : run_tensor_rows<Element::kF16, true, true>(run, args);
}

template <bool kSplit, class Runner>
void run_float_rows(Runner& run, const ForwardArgs& args) {
  const Problem& p = args.problem;
  if (is_wide(p.head_dim_v)) {
    launch<ForwardKernel<kWide, kSplit>>(run, args, p);
  } else {
    launch<ForwardKernel<kNarrow, kSplit>>(run, args, p);
  }
}

template <class Runner>
void run_float_forward(Runner& run, const ForwardArgs& args) {
  run_float_rows<false>(run, args);
}

template <class Runner>
void run_float_splits(Runner& run, const ForwardArgs& args) {
  run_float_rows<true>(run, args);
}

template <class Runner>
void run_merge(Runner& run, const ForwardArgs& args, bool on_tensor_cores) {
  const bool is_f16 = args.problem.q.type == Element::kF16;
  const float weight = on_tensor_cores && is_f16 ? kWeight<Element::kF16> : 1.0f;
  launch<cuda::MergeKernel>(run, {args, weight}, args.problem);
}

template <class Runner>
void run_forward(Runner& run, const ForwardArgs& args, bool on_tensor_cores) {
  if (args.splits.row_max == 1) {
    on_tensor_cores ? run_tensor_forward(run, args) : run_float_forward(run, args);
    return;
  }
  on_tensor_cores ? run_tensor_splits(run, args) : run_float_splits(run, args);
  run_merge(run, args, on_tensor_cores);
}

/// d_q, d_k and d_v of bf16 or f16 on tensor cores.
template <Element kType, int kDims, class Runner>
void run_tensor_backward(Runner& run, const BackwardArgs& args) {
  const GradProblem& g = args.grad;
  const TensorGradArgs tensor = tensor_grad_args(args);
  const Problem& p = g.problem;
  if (g.d_q.present) launch<TensorQueriesKernel<kType, kDims>>(run, tensor, p);
  if (g.d_k.present) launch<TensorKeysKernel<kType, kDims, false>>(run, tensor, p);
  if (g.d_v.present) launch<TensorKeysKernel<kType, kDims, true>>(run, tensor, p);
}

template <Element kType, class Runner>
void run_tensor_backward(Runner& run, const BackwardArgs& args) {
  const Problem& p = args.grad.problem;
  if (is_wide(p.head_dim_qk) || is_wide(p.head_dim_v)) {
    run_tensor_backward<kType, kWide>(run, args);
  } else {
    run_tensor_backward<kType, kNarrow>(run, args);
  }
}

template <class Runner>
void run_tensor_backward(Runner& run, const BackwardArgs& args) {
  const bool is_bf16 = args.grad.problem.q.type == Element::kBf16;
  is_bf16 ? run_tensor_backward<Element::kBf16>(run, args)
          : run_tensor_backward<Element::kF16>(run, args);
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
  cuda::run_delta(run, args);
  on_tensor_cores ? run_tensor_backward(run, args) : run_float_backward(run, args);
  cuda::run_reductions(run, args);
}

}  // namespace regard::cuda_efficient
