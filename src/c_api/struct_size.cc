#include "c_api/struct_size.h"

#include "regard/version.h"

namespace regard::c_api {
namespace {

// No struct of any version will be larger; an unknown tail is read to its end.
constexpr std::size_t kMaxBytes = 4096;

std::string size_text(const char* name, std::size_t size) {
  return "struct_size of " + std::string(name) + " (" + std::to_string(size) + ")";
}

}  // namespace

Status check_struct_size(const char* where, const char* name, const void* given, std::size_t size,
                         std::size_t known, std::size_t align) {
  if (size < sizeof(std::size_t) || size > kMaxBytes || size % align != 0) {
    return invalid(where, size_text(name, size) + " must be its sizeof, " + std::to_string(known) +
                              " in regard " + version());
  }
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return invalid(where, size_text(name, size) + " must be at most " + std::to_string(known) +
                              " with a byte that is not 0 at " + std::to_string(i) +
                              ", of a field that regard " + version() + " does not have");
  }
  return {};
}

}  // namespace regard::c_api
