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
  const auto size = static_cast<std::size_t>(size_of(dtype));
  // Drawing 10^8 elements takes a second of the device's, so a block of them is repeated. A prime:
  // no two rows are the same.
  const std::size_t block_bytes = std::min(bytes, std::size_t{1000003} * size);
  std::vector<unsigned char> block(block_bytes);
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::size_t at = 0; at + size <= block_bytes; at += size) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int drawn = static_cast<int>(state >> 40) % 2001 - 1000;
    store(static_cast<float>(drawn) / 500.0f, dtype, block.data() + at);
  }
  for (std::size_t at = 0; at < bytes; at += block_bytes) {
    memory.upload(static_cast<unsigned char*>(buffer.data()) + at, block.data(),
                  std::min(block_bytes, bytes - at));
  }
}

}  // namespace regard::gpu_check
