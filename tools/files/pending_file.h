#pragma once

#include <cstddef>
#include <string>

namespace regard::files {

/// A file that replaces its target when commit() succeeds and vanishes otherwise. Every function
/// returns the empty string, or what went wrong.
class PendingFile {
 public:
  PendingFile() = default;
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  /// Makes a temporary file beside the target, with the target's permissions where that exists.
  std::string create(const std::string& target);
  std::string write(const void* data, std::size_t size);
  /// Nothing can be written afterwards.
  std::string sync();
  std::string commit(const std::string& target);

 private:
  int fd_ = -1;
  std::string path_;
  std::string directory_;
};

/// The file that a symbolic link names, so that the link survives, also where that file is not
/// there yet; other paths as they are. A link of a loop stays one: stat() reports it.
std::string resolve_links(const std::string& path);

/// Why no file can be written at `path`; "" where one can.
std::string why_not_writable(const std::string& path);

/// Replaces the file at `path` by `text`, or leaves it as it is and returns what went wrong.
std::string replace_file(const std::string& path, const std::string& text);

}  // namespace regard::files
