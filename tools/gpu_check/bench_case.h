#pragma once

#include <string>
#include <vector>

#include "regard/context.h"
#include "tools/gpu_check/timing.h"

namespace regard::gpu_check {

/// The tensors of a case without edits of the scores on the device, and calls of it on one plan.
class BenchCase {
 public:
  BenchCase(DeviceMemory& memory, const AttentionParams& params, Plan plan);

  /// "", or why there is nothing to run: no memory, or the message of the first call.
  const std::string& error() const { return error_; }
  const AttentionGradRequest& request() const { return request_; }

  /// Launches the forward or the backward once, by the plan.
  void execute(bool backward);
  /// The same forward by attention(): described, its plan found, and launched. `leases`: on a
  /// workspace of the Context's.
  void attend(Context& context, const Policy& policy, bool leases = false);

 private:
  TensorView take(Dtype dtype, std::initializer_list<std::int64_t> shape, bool is_input);
  Launch launch() const;
  void note(const Status& status);

  DeviceMemory& memory_;
  const Plan plan_;
  std::vector<Buffer> buffers_;  // of the tensors, then the workspace
  std::size_t workspace_bytes_ = 0;
  AttentionGradRequest request_;
  std::string error_;
};

}  // namespace regard::gpu_check
