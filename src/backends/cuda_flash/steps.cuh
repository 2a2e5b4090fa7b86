#pragma once

#include "backends/cuda_flash/forward.cuh"
#include "backends/cuda_flash/keys.cuh"
#include "backends/cuda_flash/queries.cuh"
#include "cuda/grad_steps.cuh"
#include "cuda/past_end.cuh"

// The launches of a call, in order, on whatever runs them: a stream, or a test.

namespace regard::cuda_flash {

/// Whether scores are multiplied by a positive factor and hidden by arithmetic, and no more, and
/// keys lie in one piece: looking pages up takes registers that these kernels do not have.
inline bool is_plain(const Problem& p) {
  return cuda::is_plain(p) && !p.prescale_scores && !p.negates_scores && !p.tree.present &&
         p.pages.ids == nullptr;
}

template <Element kType, int kDims, Kind kKind, class Runner>
void run_kernel(Runner& run, const ForwardArgs& args) {
  using Kernel = ForwardKernel<kType, kDims, kKind>;
  const Problem& p = args.problem;
  const auto factor = static_cast<float>(p.exp2_scale);
  run.template launch<Kernel>({args, factor}, cuda::count_tasks(p, Kernel::grid(p)));
}

/// bf16 or f16 of up to kDims columns.
template <Element kType, int kDims, class Runner>
void run_rows(Runner& run, const ForwardArgs& args) {
  if (args.splits.row_max > 1) return run_kernel<kType, kDims, Kind::kSplit>(run, args);
  if (is_plain(args.problem)) return run_kernel<kType, kDims, Kind::kPlain>(run, args);
  run_kernel<kType, kDims, Kind::kEdited>(run, args);
}

/// The same of keys and values that are codes: kWhole, or kSplit where their keys are in parts.
template <Element kType, int kDims, Kind kWhole, Kind kSplit, class Runner>
void run_kinds(Runner& run, const ForwardArgs& args) {
  if (args.splits.row_max > 1) return run_kernel<kType, kDims, kSplit>(run, args);
  run_kernel<kType, kDims, kWhole>(run, args);
}
template <int kDims, Kind kWhole, Kind kSplit, class Runner>
void run_kinds_of_dims(Runner& run, const ForwardArgs& args) {
  const bool is_bf16 = args.problem.q.type == Element::kBf16;
  is_bf16 ? run_kinds<Element::kBf16, kDims, kWhole, kSplit>(run, args)
          : run_kinds<Element::kF16, kDims, kWhole, kSplit>(run, args);
}

/// Of 8 bits.
template <int kDims, class Runner>
void run_coded_dims(Runner& run, const ForwardArgs& args) {
  run_kinds_of_dims<kDims, Kind::kCodes, Kind::kSplitCodes>(run, args);
}
/// Of u4.
template <int kDims, class Runner>
void run_grouped_dims(Runner& run, const ForwardArgs& args) {
  run_kinds_of_dims<kDims, Kind::kGroups, Kind::kSplitGroups>(run, args);
}

template <int kDims, class Runner>
void run_dims(Runner& run, const ForwardArgs& args) {
  const bool is_bf16 = args.problem.q.type == Element::kBf16;
  is_bf16 ? run_rows<Element::kBf16, kDims>(run, args) : run_rows<Element::kF16, kDims>(run, args);
}

template <class Runner>
void run_merge(Runner& run, const ForwardArgs& args) {
  const Problem& p = args.problem;
  const bool is_f16 = p.q.type == Element::kF16;
  const float weight = is_f16 ? kWeight<Element::kF16> : kWeight<Element::kBf16>;
  run.template launch<cuda::MergeKernel>({args, weight},
                                         cuda::count_tasks(p, cuda::MergeKernel::grid(p)));
}

/// Calls f(Dims<columns>) with what kernels are compiled for of up to so many columns.
template <int kValue>
struct Dims {
  static constexpr int kIs = kValue;
};
template <class F>
void with_dims(const Problem& p, F f) {
  switch (padded_dims(p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v)) {
    case 64: return f(Dims<64>());
    case 96: return f(Dims<96>());
    case 128: return f(Dims<128>());
    case 192: return f(Dims<192>());
    default: return f(Dims<256>());
  }
}

template <class Runner>
void run_forward(Runner& run, const ForwardArgs& args) {
  with_dims(args.problem, [&](auto dims) {
    constexpr int kColumns = decltype(dims)::kIs;
    const Element keys = args.problem.k.type;
    if (keys == Element::kU4) return run_grouped_dims<kColumns>(run, args);
    problem::element_bytes(keys) == 1 ? run_coded_dims<kColumns>(run, args)
                                      : run_dims<kColumns>(run, args);
  });
  if (args.splits.row_max > 1) run_merge(run, args);
  cuda::clear_outputs_past_end(run, args.problem);
}

/// d_q, d_k and d_v.
template <Element kType, int kDims, bool kEdits, class Runner>
void run_grad_rows(Runner& run, const BackwardArgs& args) {
  const GradProblem& g = args.grad;
  if (g.d_q.present) cuda::launch<QueriesKernel<kType, kDims, kEdits>>(run, args, g.problem);
  if (g.d_k.present || g.d_v.present) {
    cuda::launch<KeysKernel<kType, kDims, kEdits>>(run, args, g.problem);
  }
}

template <Element kType, int kDims, class Runner>
void run_grad_rows(Runner& run, const BackwardArgs& args) {
  cuda::is_plain(args.grad.problem) ? run_grad_rows<kType, kDims, false>(run, args)
                                    : run_grad_rows<kType, kDims, true>(run, args);
}

template <int kDims, class Runner>
void run_grad_dims(Runner& run, const BackwardArgs& args) {
  const bool is_bf16 = args.grad.problem.q.type == Element::kBf16;
  is_bf16 ? run_grad_rows<Element::kBf16, kDims>(run, args)
          : run_grad_rows<Element::kF16, kDims>(run, args);
}

template <class Runner>
void run_backward(Runner& run, const BackwardArgs& args) {
  cuda::run_delta(run, args);
  with_dims(args.grad.problem, [&](auto dims) { run_grad_dims<decltype(dims)::kIs>(run, args); });
  cuda::run_reductions(run, args);
  cuda::clear_gradients_past_end(run, args.grad);
}

}  // namespace regard::cuda_flash
