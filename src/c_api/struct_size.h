#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "c_api/errors.h"

// Structs of callers that were compiled against another version of regard.h.

namespace regard::c_api {

/// Refuses a struct_size that no version states, and an unknown tail that is not zero. `known`
/// and `align` are this version's.
Status check_struct_size(const char* where, const char* name, const void* given, std::size_t size,
                         std::size_t known, std::size_t align);

/// A caller's struct as this version reads it: what an older one lacks is zero.
template <class T>
class Versioned {
 public:
  Status read(const char* where, const char* name, const T* given) {
    if (Status s = require(where, name, given); !s.ok()) return s;
    const std::size_t size = given->struct_size;
    if (size == sizeof(T)) {  // the usual caller: nothing to copy
      value_ = given;
      return {};
    }
    Status status = check_struct_size(where, name, given, size, sizeof(T), alignof(T));
    if (!status.ok()) return status;
    std::memset(&copy_, 0, sizeof(T));
    std::memcpy(&copy_, given, std::min(size, sizeof(T)));
    value_ = &copy_;
    return {};
  }
  const T& operator*() const noexcept { return *value_; }
  const T* operator->() const noexcept { return value_; }

 private:
  const T* value_ = nullptr;
  T copy_;
};

}  // namespace regard::c_api
