#pragma once

#include "backends/cuda_flash/forward.cuh"

// The launches of a call, in order, on whatever runs them: a stream, or a test.

namespace regard::cuda_flash {

/// Whether scores are multiplied by a positive factor and hidden by arithmetic, and no more.
inline bool is_plain(const Problem& p) {
  return cuda::is_plain(p) && !p.prescale_scores && !p.negates_scores;
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

template <class Runner>
void run_forward(Runner& run, const ForwardArgs& args) {
  const Problem& p = args.problem;
  switch (padded_dims(p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v)) {
    case 64: run_dims<64>(run, args); break;
    case 96: run_dims<96>(run, args); break;
    case 128: run_dims<128>(run, args); break;
    case 192: run_dims<192>(run, args); break;
    default: run_dims<256>(run, args); break;
  }
  if (args.splits.row_max > 1) run_merge(run, args);
}

}  // namespace regard::cuda_flash
