#include "platform/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/message.h"

namespace regard {
namespace {

struct Descriptor {
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  const int fd;
};

Expected<std::string> read_descriptor(int fd, const std::string& path, std::int64_t max_bytes,
                                      const char* where) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return invalid(where, "cannot read ", path, ": ", std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return invalid(where, "cannot read ", path, ": expected a regular file");
  }
  if (info.st_size > max_bytes) {
    return invalid(where, path, " has ", std::int64_t{info.st_size}, " bytes, expected at most ",
                   max_bytes);
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(fd, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return invalid(where, "cannot read ", path, ": ", std::strerror(errno));
    if (got == 0) break;  // another program truncated it
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace

Expected<std::string> read_regular_file(const std::string& path, std::int64_t max_bytes,
                                        const char* where) {
  // O_NONBLOCK: to open a FIFO would wait for its writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    return failure(StatusCode::kNotFound, where, "cannot read ", path, ": ", std::strerror(errno));
  }
  return read_descriptor(file.fd, path, max_bytes, where);
}

std::string read_system_file(const std::string& path) {
  constexpr std::size_t kMaxBytes = 1 << 20;
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  std::string text;
  char bytes[4096];
  while (file.fd >= 0 && text.size() < kMaxBytes) {
    const ssize_t got = ::read(file.fd, bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(bytes, static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace regard
