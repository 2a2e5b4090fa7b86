#include "c_api/text.h"

#include <cstring>

#include "c_api/errors.h"

namespace regard::c_api {

Status check_text_out(const char* where, const TextOut& out) {
  if (out.buffer != nullptr) return {};
  if (out.capacity != 0) {
    return invalid(
        where, "buffer (null) must hold its capacity, " + std::to_string(out.capacity) + " bytes");
  }
  if (out.needed != nullptr) return {};
  return invalid(where, "buffer and needed (null) must not both be null");
}

Status write_text(const char* where, const std::string& text, const TextOut& out) {
  const std::size_t bytes = text.size() + 1;
  if (out.needed != nullptr) *out.needed = bytes;
  if (out.buffer == nullptr) return {};
  if (out.capacity < bytes) {
    return invalid(where, "capacity (" + std::to_string(out.capacity) + ") must be at least " +
                              std::to_string(bytes));
  }
  std::memcpy(out.buffer, text.c_str(), bytes);
  return {};
}

}  // namespace regard::c_api
