#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "regard/status.h"

namespace regard {

/// A file that appears whole or not at all: bytes go to a temporary file beside it, which commit()
/// renames. Without a commit nothing is left.
class AtomicFile {
 public:
  /// `where` is the function that messages name.
  AtomicFile(std::string path, const char* where) : path_(std::move(path)), where_(where) {}
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status open();
  Status write(const void* data, std::size_t bytes);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  Status commit();

 private:
  Status system_error(const char* what) const;

  const std::string path_;
  const char* where_;
  std::string temporary_;
  int descriptor_ = -1;
};

/// Makes the folder and those above it; an error names it.
Status make_folder(const std::string& path, const char* where);

/// $XDG_CACHE_HOME or $HOME/.cache, with /regard behind; "" where neither is an absolute path.
std::string user_cache_folder();

}  // namespace regard
