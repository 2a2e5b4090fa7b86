#include "core/check_lengths.h"

#include <cstdint>
#include <cstring>

#include "base/message.h"

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

}  // namespace regard
