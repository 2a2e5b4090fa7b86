#include "tools/gpu_check/bench_case.h"

#include <algorithm>
#include <utility>

namespace regard::gpu_check {
namespace {

std::size_t workspace_bytes_of(const Plan& plan, bool has_backward) {
  return static_cast<std::size_t>(
      std::max(plan.workspace_bytes(), has_backward ? plan.backward_workspace_bytes() : 0));
}

}  // namespace

BenchCase::BenchCase(DeviceMemory& memory, const AttentionParams& params, Plan plan,
                     const CaseTensors* whole)
    : memory_(memory),
      plan_(std::move(plan)),
      tensors_(memory, params, whole),
      workspace_bytes_(workspace_bytes_of(plan_, params.features.has(Feature::kNeedsGrad))),
      workspace_(memory, workspace_bytes_),
      error_(tensors_.error()) {
  if (workspace_.data() == nullptr) error_ = "the device has no memory left";
  if (error_.empty()) note(prepare(plan_, request()));
  if (error_.empty() && params.features.has(Feature::kNeedsGrad)) {
    note(prepare_backward(plan_, request(), request()));
  }
  if (error_.empty()) execute(false);  // a backward takes what it writes
}

void BenchCase::execute(bool backward) {
  note(backward ? execute_backward(plan_, request(), request(), launch())
                : regard::execute(plan_, request(), launch()));
}

void BenchCase::attend(Context& context, const Policy& policy, bool leases) {
  Launch with = launch();
  if (leases) with.workspace = {};
  note(attention(context, request(), policy, with));
}

Launch BenchCase::launch() const {
  Launch launch;
  launch.stream = memory_.stream();
  launch.workspace = {workspace_.data(), workspace_bytes_};
  return launch;
}

void BenchCase::note(const Status& status) {
  if (!status.ok() && error_.empty()) error_ = status.to_string();
}

}  // namespace regard::gpu_check
