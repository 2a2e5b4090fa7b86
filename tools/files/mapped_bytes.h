#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "regard/status.h"

namespace regard::files {

/// The bytes of a whole file, mapped into memory. They stay valid while the object lives, also when
/// the path is replaced.
class MappedBytes {
 public:
  /// Regular files alone; messages begin with "[where]" and name the path.
  static Expected<MappedBytes> open(const std::string& path, const char* where);
  MappedBytes(MappedBytes&& other) noexcept;
  MappedBytes& operator=(MappedBytes&& other) noexcept;
  ~MappedBytes();

  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(base_), size_};
  }

 private:
  MappedBytes() = default;
  void* base_ = nullptr;
  std::size_t size_ = 0;
};

/// What is wrong with a file's bytes, with the file's name behind it.
Status in_file(const Status& status, const std::string& path);

}  // namespace regard::files
