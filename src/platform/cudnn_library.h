#pragma once

#include <cstdint>

namespace regard {

/// cuDNN as this process has it. Without the library, handle is null and version 0.
struct CudnnLibrary {
  void* handle = nullptr;
  std::int32_t version = 0;  // 91900 for 9.19.0
};

/// The cuDNN that the process has loaded already (PyTorch's, for example), else the one that the
/// loader finds: two versions in one process share symbols and state, and crash.
const CudnnLibrary& cudnn_library();

}  // namespace regard
