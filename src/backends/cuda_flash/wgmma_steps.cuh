#pragma once

#include "backends/cuda_flash/wgmma_forward.cuh"

// The launch of a forward by wgmma on whatever runs it: a stream, or a test.

namespace regard::cuda_flash {

template <Element kType, int kDims, Schedule kSchedule, class Runner>
void run_wgmma_kernel(Runner& run, const ForwardArgs& args) {
  using Kernel = WgmmaForwardKernel<kType, kDims, kSchedule, typename Runner::Map>;
  const Problem& p = args.problem;
  const auto boxes = wgmma_boxes(p, Kernel::kRows, Kernel::kKeys);
  const auto factor = static_cast<float>(p.exp2_scale);
  run.template launch<Kernel>({args, factor, run.map(boxes.q), run.map(boxes.k), run.map(boxes.v)},
                              Kernel::count_tasks(p));
}

template <int kDims, Schedule kSchedule, class Runner>
void run_wgmma_type(Runner& run, const ForwardArgs& args) {
  const bool is_bf16 = args.problem.q.type == Element::kBf16;
  is_bf16 ? run_wgmma_kernel<Element::kBf16, kDims, kSchedule>(run, args)
          : run_wgmma_kernel<Element::kF16, kDims, kSchedule>(run, args);
}

template <int kDims, class Runner>
void run_wgmma_dims(Runner& run, const ForwardArgs& args, Schedule schedule) {
  if constexpr (kDims <= 128) {
    if (schedule == Schedule::kTurns) {
      return run_wgmma_type<kDims, Schedule::kTurns>(run, args);
    }
    if (schedule == Schedule::kWide) return run_wgmma_type<kDims, Schedule::kWide>(run, args);
  }
  if (schedule == Schedule::kPlain) return run_wgmma_type<kDims, Schedule::kPlain>(run, args);
  run_wgmma_type<kDims, Schedule::kOverlapped>(run, args);
}

template <class Runner>
void run_wgmma(Runner& run, const ForwardArgs& args, Schedule schedule) {
  const Problem& p = args.problem;
  const auto dims = padded_dims(p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v);
  dims <= 128 ? run_wgmma_dims<128>(run, args, schedule) : run_wgmma_dims<256>(run, args, schedule);
}

}  // namespace regard::cuda_flash
