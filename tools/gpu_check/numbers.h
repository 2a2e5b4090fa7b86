#pragma once

#include <cstddef>

#include "regard/dtype.h"
#include "tools/gpu_check/device_memory.h"

namespace regard::gpu_check {

/// Fills a buffer with numbers of a few magnitudes (f32, f16, bf16 or f8e4m3): a product of zeros
/// would run cooler and faster. Nothing where there is no buffer.
void upload_numbers(DeviceMemory& memory, const Buffer& buffer, std::size_t bytes, Dtype dtype);

}  // namespace regard::gpu_check
