#include "platform/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/message.h"

namespace regard {

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::system_error(const char* what) const {
  const int code = errno;
  return failure(StatusCode::kInvalidArgument, where_, what, " ", path_, ": ",
                 std::generic_category().message(code));
}

Status AtomicFile::open() {
  static std::atomic<unsigned> made{0};
  temporary_ = concat(path_, ".", static_cast<std::int64_t>(::getpid()), ".",
                      static_cast<std::int64_t>(made.fetch_add(1)), ".tmp");
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ >= 0) return {};
  temporary_.clear();
  return system_error("cannot write");
}

Status AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, from, std::min<std::size_t>(bytes, 1 << 24));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("cannot write");
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return {};
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) {
    return system_error("cannot write");
  }
  const bool closed = ::close(descriptor_) == 0;
  descriptor_ = -1;
  if (!closed) return system_error("cannot write");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return system_error("cannot write");
  temporary_.clear();
  return {};
}

Status make_folder(const std::string& path, const char* where) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && std::filesystem::is_directory(path, error)) return {};
  return failure(StatusCode::kInvalidArgument, where, "cannot make the folder ", path, ": ",
                 error ? error.message() : "it is a file");
}

std::string user_cache_folder() {
  const auto absolute = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr && *value == '/' ? value : "");
  };
  if (const std::string cache = absolute("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/regard";
  }
  const std::string home = absolute("HOME");
  return home.empty() ? "" : home + "/.cache/regard";
}

}  // namespace regard
