#include "core/check_lengths.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/message.h"
#include "core/describe.h"
#include "platform/device_memory.h"

namespace regard {
namespace {

Status check(const TensorView& lengths, std::int64_t limit, const char* name, const char* where) {
  if (!lengths.present() || lengths.device.type != DeviceType::kCpu) return {};
  const auto* data = static_cast<const char*>(lengths.data);
  for (std::int64_t b = 0; b < lengths.shape[0]; ++b) {
    std::int32_t length = 0;
    std::memcpy(&length, data + b * lengths.strides[0] * 4, sizeof(length));
    if (length >= 0 && length <= limit) continue;
    return invalid(where, name, "[", b, "] (", length, "), expected 0 to ", limit);
  }
  return {};
}

}  // namespace

Status check_lengths(const Buffers& buffers, const AttentionParams& params, const char* where) {
  Status status = check(buffers.seqlens_q, params.seqlen_q, "seqlens_q", where);
  if (!status.ok()) return status;
  return check(buffers.seqlens_kv, params.seqlen_kv, "seqlens_kv", where);
}

namespace {

// `lengths` with its elements on the host, in `storage`.
Status copy_lengths(TensorView* lengths, std::vector<char>* storage, void* stream) {
  if (!lengths->present() || lengths->shape[0] == 0) return {};
  const std::int64_t last = (lengths->shape[0] - 1) * lengths->strides[0];
  storage->resize(static_cast<std::size_t>(last + 1) * sizeof(std::int32_t));
  const Status status =
      copy_to_host("check_device_data", *lengths, storage->data(), storage->size(), stream);
  lengths->data = storage->data();
  lengths->device = Device{};
  return status;
}

}  // namespace

Status check_device_data(const AttentionRequest& request, const Launch& launch) {
  constexpr const char* kWhere = "check_device_data";
  const Expected<AttentionParams> params = describe_buffers(request, request.options, kWhere);
  if (!params) return params.status();
  Buffers on_host = request;
  std::vector<char> lengths_q, lengths_kv;
  if (params->device.type != DeviceType::kCpu) {
    Status status = copy_lengths(&on_host.seqlens_q, &lengths_q, launch.stream);
    if (!status.ok()) return status;
    status = copy_lengths(&on_host.seqlens_kv, &lengths_kv, launch.stream);
    if (!status.ok()) return status;
  }
  return check_lengths(on_host, *params, kWhere);
}

}  // namespace regard
