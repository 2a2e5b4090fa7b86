#include "tools/files/mapped_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/files/quote.h"

namespace regard::files {
namespace {

/// Closes a descriptor at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

}  // namespace

Expected<MappedBytes> MappedBytes::open(const std::string& path, const char* where) {
  const auto cannot = [&](const char* verb, const char* why) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("[") + where + "] cannot " + verb + " " + quote(path) + ": " + why);
  };
  // O_NONBLOCK: a FIFO must be refused, not waited for.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return cannot("open", std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return cannot("open", std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return cannot("read", "it is not a regular file");

  MappedBytes file;
  if (info.st_size > 0) {
    const auto size = static_cast<std::size_t>(info.st_size);
    void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (base == MAP_FAILED) return cannot("map", std::strerror(errno));
    file.base_ = base;
    file.size_ = size;
  }
  return file;
}

MappedBytes::MappedBytes(MappedBytes&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedBytes& MappedBytes::operator=(MappedBytes&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

MappedBytes::~MappedBytes() {
  if (base_ != nullptr) ::munmap(base_, size_);
}

Status in_file(const Status& status, const std::string& path) {
  return Status(status.code(), status.message() + " (file " + quote(path) + ")");
}

}  // namespace regard::files
