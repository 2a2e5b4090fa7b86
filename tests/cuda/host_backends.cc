#include "tests/cuda/host_backends.h"

#include <utility>

#include "backends/cuda_efficient/efficient_backend.h"
#include "backends/cuda_efficient/steps.cuh"
#include "backends/cuda_flash/flash_backend.h"
#include "backends/cuda_math/math_backend.h"
#include "backends/cuda_math/steps.cuh"
#include "cuda/append.cuh"
#include "tests/cuda/host_flash.h"
#include "tests/cuda/host_wgmma_forward.h"
#include "tests/support/backends.h"
#include "tests/support/oracle_backend.h"

namespace regard::cuda_test {
namespace {

/// Runs launches on the host; what HostRunner notices is the call's Status.
template <class Steps>
Status on_host(Steps&& steps) {
  HostRunner run(schedule().order, schedule().max_blocks, schedule().races);
  try {
    steps(run);
  } catch (const HostError& error) {
    return Status(StatusCode::kInternal, std::string("[host] ") + error.what());
  }
  Counts& all = schedule().counts;
  all.launches += run.counts().launches;
  all.blocks += run.counts().blocks;
  all.barriers += run.counts().barriers;
  all.shuffles += run.counts().shuffles;
  all.tensor_blocks += run.counts().tensor_blocks;
  all.wgmma_blocks += run.counts().wgmma_blocks;
  return Status();
}

Status math_forward(const cuda_math::ForwardArgs& args, bool f64, void*) {
  return on_host([&](HostRunner& run) {
    if (f64) {
      cuda_math::run_forward<double>(run, args);
    } else {
      cuda_math::run_forward<float>(run, args);
    }
  });
}

Status math_backward(const cuda_math::BackwardArgs& args, bool f64, void*) {
  return on_host([&](HostRunner& run) {
    if (f64) {
      cuda_math::run_backward<double>(run, args);
    } else {
      cuda_math::run_backward<float>(run, args);
    }
  });
}

Status efficient_forward(const cuda_efficient::ForwardArgs& args, void*) {
  return on_host([&](HostRunner& run) { cuda_efficient::run_forward(run, args); });
}

Status efficient_backward(const cuda_efficient::BackwardArgs& args, void*) {
  return on_host([&](HostRunner& run) { cuda_efficient::run_backward(run, args); });
}

Status flash_forward(const cuda_flash::ForwardArgs& args, void*) {
  return on_host([&](HostRunner& run) { cuda_flash::run_forward(run, args); });
}

Status flash_backward(const cuda_flash::BackwardArgs& args, void*) {
  return on_host([&](HostRunner& run) { cuda_flash::run_backward(run, args); });
}

Status append(const cuda::AppendArgs& args, void*) {
  return on_host([&](HostRunner& run) { cuda::run_append(run, args); });
}

/// Of kSchedule, whatever the call states: each has a backend.
template <cuda_flash::Schedule kSchedule>
Status wgmma_forward(const cuda_flash::ForwardArgs& args, cuda_flash::Schedule, void*) {
  return on_host([&](HostRunner& run) {
    HostWgmmaRunner wgmma(&run, schedule().trace);
    cuda_flash::run_wgmma(wgmma, args, kSchedule);
  });
}
template <cuda_flash::Schedule kSchedule>
constexpr cuda_flash::Launcher kWgmmaLauncher = {flash_forward, flash_backward, append,
                                                 wgmma_forward<kSchedule>};

constexpr cuda_math::Launcher kMathLauncher = {math_forward, math_backward, append};
constexpr cuda_efficient::Launcher kEfficientLauncher = {efficient_forward, efficient_backward,
                                                         append};
constexpr cuda_flash::Launcher kFlashLauncher = {flash_forward, flash_backward, append, nullptr};

BackendInfo on_cpu(BackendInfo info) {
  info.device = DeviceType::kCpu;
  return info;
}

}  // namespace

Schedule& schedule() {
  static Schedule now;
  return now;
}

bool HostBackend::serves(const AttentionParams& params) const {
  Policy policy;
  policy.only = std::vector<BackendRef>{ref};
  return explain(*context, params, policy).ok();
}

namespace {

HostBackend serve(const std::string& name, std::shared_ptr<const Backend> backend, int sm) {
  Env env = test::make_context(Isa::kScalar)->env();
  env.sm_version = sm;
  auto context = std::make_shared<Context>(std::move(env));
  const BackendRef ref =
      register_backend(*context, name, std::move(backend), test::NoSuite()).value();
  return HostBackend{std::move(context), ref, sm >= 80};
}

}  // namespace

namespace {

Status unchecked_math(const cuda::ForwardArgs& args) {
  const problem::Problem& p = args.problem;
  std::vector<float> scores(
      static_cast<std::size_t>(p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv));
  return math_forward({p, args.kv_entries, reinterpret_cast<char*>(scores.data())}, false, nullptr);
}

}  // namespace

std::vector<UncheckedForward> unchecked_forwards() {
  return {{false, unchecked_math},
          {false, [](const cuda::ForwardArgs& args) { return efficient_forward(args, nullptr); }},
          {true, [](const cuda::ForwardArgs& args) { return flash_forward(args, nullptr); }}};
}

std::vector<HostBackend> make_wgmma_backends() {
  using cuda_flash::Schedule;
  const auto make = [](const std::string& name, const cuda_flash::Launcher& launcher) {
    return serve(
        name, std::make_shared<cuda_flash::FlashBackend>(on_cpu(cuda_flash::make_info()), launcher),
        90);
  };
  return {make("wgmma_overlapped", kWgmmaLauncher<Schedule::kOverlapped>),
          make("wgmma_turns", kWgmmaLauncher<Schedule::kTurns>),
          make("wgmma_plain", kWgmmaLauncher<Schedule::kPlain>),
          make("wgmma_wide", kWgmmaLauncher<Schedule::kWide>)};
}

std::vector<HostBackend> make_host_backends() {
  const auto math =
      std::make_shared<cuda_math::MathBackend>(on_cpu(cuda_math::make_info()), kMathLauncher);
  const auto efficient = std::make_shared<cuda_efficient::EfficientBackend>(
      on_cpu(cuda_efficient::make_info()), kEfficientLauncher);
  const auto flash =
      std::make_shared<cuda_flash::FlashBackend>(on_cpu(cuda_flash::make_info()), kFlashLauncher);
  return {serve("cuda_math", math, 75), serve("cuda_efficient", efficient, 75),
          serve("cuda_flash", flash, 80)};
}

}  // namespace regard::cuda_test
