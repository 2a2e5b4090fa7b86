#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/llm/gguf.h"
#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

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

Status cannot(const char* verb, const std::string& path, const std::string& why) {
  return invalid("gguf", std::string("cannot ") + verb + " " + quote(path) + ": " + why);
}

}  // namespace

Expected<GgufFile> GgufFile::open(const std::string& path) {
  // O_NONBLOCK: a FIFO must be refused, not waited for.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return cannot("open", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return cannot("open", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return cannot("read", path, "it is not a regular file");

  GgufFile file;
  if (info.st_size > 0) {
    const auto size = static_cast<std::size_t>(info.st_size);
    void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (base == MAP_FAILED) return cannot("map", path, std::strerror(errno));
    file.base_ = base;
    file.size_ = size;
  }
  Expected<GgufContents> contents =
      GgufContents::parse({static_cast<const std::byte*>(file.base_), file.size_});
  if (!contents) {
    return Status(contents.status().code(),
                  contents.status().message() + " (file " + quote(path) + ")");
  }
  file.contents_ = *std::move(contents);
  return file;
}

GgufFile::GgufFile(GgufFile&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      contents_(std::move(other.contents_)) {}

GgufFile& GgufFile::operator=(GgufFile&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(contents_, other.contents_);
  return *this;
}

GgufFile::~GgufFile() {
  if (base_ != nullptr) ::munmap(base_, size_);
}

}  // namespace llm
