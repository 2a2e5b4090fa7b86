#include "platform/cudnn_library.h"

#include <dlfcn.h>

#include <cstddef>

namespace regard {
namespace {

constexpr const char* kName = "libcudnn.so.9";

CudnnLibrary load() {
  CudnnLibrary library;
  library.handle = dlopen(kName, RTLD_NOW | RTLD_NOLOAD);
  if (library.handle == nullptr) library.handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) return library;
  using Version = std::size_t (*)();
  const auto version = reinterpret_cast<Version>(dlsym(library.handle, "cudnnGetVersion"));
  if (version != nullptr) library.version = static_cast<std::int32_t>(version());
  return library;
}

}  // namespace

const CudnnLibrary& cudnn_library() {
  static const CudnnLibrary library = load();
  return library;
}

}  // namespace regard
