#include "tools/files/pending_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "tools/files/quote.h"

namespace regard::files {
namespace {

std::string failure(const char* what) {
  return std::string("cannot ") + what + " it: " + std::strerror(errno);
}

}  // namespace

PendingFile::~PendingFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!path_.empty()) ::unlink(path_.c_str());
}

std::string PendingFile::create(const std::string& target) {
  const std::size_t slash = target.rfind('/');
  directory_ = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  const std::string base = slash == std::string::npos ? target : target.substr(slash + 1);
  const std::string prefix = (slash == std::string::npos ? "" : directory_) + "." +
                             base.substr(0, 200) + "." + std::to_string(::getpid());
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = prefix + "." + std::to_string(attempt) + ".tmp";
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno == EEXIST) continue;
    if (fd_ < 0) return failure("create a file beside");
    path_ = name;
    struct stat old {};
    if (::stat(target.c_str(), &old) == 0 && ::fchmod(fd_, old.st_mode & 07777) != 0) {
      return failure("copy the permissions of");
    }
    return {};
  }
  return "every temporary name beside it is taken";
}

std::string PendingFile::write(const void* data, std::size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd_, next, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure("write to");
    if (written == 0) return "the system wrote nothing";
    next += written;
    size -= static_cast<std::size_t>(written);
  }
  return {};
}

std::string PendingFile::sync() {
  if (::fsync(fd_) != 0) return failure("sync");
  const int fd = fd_;
  fd_ = -1;
  return ::close(fd) == 0 ? std::string() : failure("close");
}

std::string PendingFile::commit(const std::string& target) {
  if (::rename(path_.c_str(), target.c_str()) != 0) return failure("replace");
  path_.clear();
  // The rename itself is durable once the directory is synced; a file system that cannot do that
  // has still renamed, so this is not a failure.
  const int fd = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    (void)::fsync(fd);
    ::close(fd);
  }
  return {};
}

std::string resolve_links(const std::string& path) {
  constexpr int kMaxLinks = 40;  // as the kernel's
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; links < kMaxLinks; ++links) {
    if (!std::filesystem::is_symlink(std::filesystem::symlink_status(target, error))) break;
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;  // an absolute `next` replaces the folder
  }
  return target.string();
}

std::string why_not_writable(const std::string& path) {
  if (path.empty()) return "expected a file's name";
  const std::string target = resolve_links(path);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return "it is a directory, expected a file's name";
    if (!S_ISREG(info.st_mode)) return "it is not a regular file";
  } else if (errno != ENOENT || target.back() == '/') {
    return std::strerror(errno);
  }
  const std::size_t slash = target.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    return "its directory " + quote(directory) + ": " + std::strerror(errno);
  }
  return {};
}

std::string replace_file(const std::string& path, const std::string& text) {
  std::string error = why_not_writable(path);
  if (!error.empty()) return error;
  const std::string target = resolve_links(path);
  PendingFile file;
  if (error = file.create(target); !error.empty()) return error;
  if (error = file.write(text.data(), text.size()); !error.empty()) return error;
  if (error = file.sync(); !error.empty()) return error;
  return file.commit(target);
}

}  // namespace regard::files
