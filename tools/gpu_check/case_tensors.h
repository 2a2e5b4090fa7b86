#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "regard/params.h"
#include "regard/request.h"
#include "tools/gpu_check/device_memory.h"

namespace regard::gpu_check {

/// The tensors of a case on the device: q, k, v, out, lse, gradients, lengths, a bias and sinks.
/// The first sequence of a case with lengths has no keys, the others lack a quarter of their rows.
class CaseTensors {
 public:
  CaseTensors(DeviceMemory& memory, const AttentionParams& params)
      : CaseTensors(memory, params, nullptr) {}
  /// Of one sequence: the inputs are those of the last sequence of `whole`, in place.
  CaseTensors(DeviceMemory& memory, const AttentionParams& params, const CaseTensors* whole);

  /// "", or why there are none.
  const std::string& error() const { return error_; }
  const AttentionGradRequest& request() const { return request_; }

 private:
  TensorView input(TensorView AttentionGradRequest::*tensor, Dtype dtype,
                   std::initializer_list<std::int64_t> shape);
  TensorView output(Dtype dtype, std::initializer_list<std::int64_t> shape);
  void add_gradients(const AttentionParams& p);
  void add_lengths(const AttentionParams& p);

  DeviceMemory& memory_;
  const CaseTensors* whole_;
  std::vector<Buffer> buffers_;
  AttentionGradRequest request_;
  std::string error_;
};

}  // namespace regard::gpu_check
