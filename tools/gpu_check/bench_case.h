#pragma once

#include <string>

#include "regard/context.h"
#include "tools/gpu_check/case_tensors.h"

namespace regard::gpu_check {

/// A case on the device, and calls of it on one plan.
class BenchCase {
 public:
  BenchCase(DeviceMemory& memory, const AttentionParams& params, Plan plan,
            const CaseTensors* whole = nullptr);

  /// "", or why there is nothing to run: no memory, or the message of the first call.
  const std::string& error() const { return error_; }
  const CaseTensors& tensors() const { return tensors_; }
  const AttentionGradRequest& request() const { return tensors_.request(); }
  std::string kernel(bool backward) const {
    return backward ? plan_.backward_kernel().kernel : plan_.kernel().kernel;
  }

  /// Launches the forward or the backward once, by the plan.
  void execute(bool backward);
  /// The same forward by attention(): described, its plan found, and launched. `leases`: on a
  /// workspace of the Context's.
  void attend(Context& context, const Policy& policy, bool leases = false);

 private:
  Launch launch() const;
  void note(const Status& status);

  DeviceMemory& memory_;
  const Plan plan_;
  const CaseTensors tensors_;
  const std::size_t workspace_bytes_;
  const Buffer workspace_;
  std::string error_;
};

}  // namespace regard::gpu_check
