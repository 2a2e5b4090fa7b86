#include "tools/gpu_check/numbers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace regard::gpu_check {
namespace {

void store(float value, Dtype dtype, unsigned char* at) {
  const std::uint16_t half = dtype == Dtype::kF16 ? f16_from_f32(value) : bf16_from_f32(value);
  switch (size_of(dtype)) {
    case 1: *at = f8e4m3_from_f32(value); break;
    case 2: std::memcpy(at, &half, sizeof(half)); break;
    default: std::memcpy(at, &value, sizeof(value)); break;
  }
}

}  // namespace

void upload_numbers(DeviceMemory& memory, const Buffer& buffer, std::size_t bytes, Dtype dtype) {
  if (buffer.data() == nullptr) return;
  std::vector<unsigned char> host(bytes);
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  const auto size = static_cast<std::size_t>(size_of(dtype));
  // Converting a tensor's 10^8 elements one by one takes a second of the device's. A prime: no two
  // rows are the same.
  const std::size_t drawn_bytes = std::min(bytes, std::size_t{1000003} * size);
  for (std::size_t at = 0; at + size <= drawn_bytes; at += size) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int drawn = static_cast<int>(state >> 40) % 2001 - 1000;
    store(static_cast<float>(drawn) / 500.0f, dtype, host.data() + at);
  }
  for (std::size_t at = drawn_bytes; at < bytes; at += drawn_bytes) {
    std::memcpy(host.data() + at, host.data(), std::min(drawn_bytes, bytes - at));
  }
  memory.upload(buffer.data(), host.data(), bytes);
}

}  // namespace regard::gpu_check
