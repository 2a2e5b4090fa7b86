#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <system_error>

#include "tools/regard/safetensors.h"
#include "tools/regard/safetensors_json.h"

namespace regard::safetensors {
namespace {

Status invalid(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[safetensors] " + message);
}

Expected<std::int64_t> bytes_of(const TensorToWrite& tensor) {
  std::int64_t bytes = size_of(tensor.dtype);
  bool empty = false;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0) {
      return invalid("tensor " + quote(tensor.name) + " has the extent " + std::to_string(extent) +
                     ", expected at least 0");
    }
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
      return Status(StatusCode::kOverflow, "[safetensors] tensor " + quote(tensor.name) +
                                               " is larger than 2^63 - 1 bytes");
    }
  }
  return empty ? 0 : bytes;
}

std::string entry_json(const TensorToWrite& tensor, std::int64_t begin, std::int64_t end) {
  std::string json =
      json_string(tensor.name) + ":{\"dtype\":\"" + dtype_name(tensor.dtype) + "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) json += ',';
    json += std::to_string(tensor.shape[i]);
  }
  return json + "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

Expected<std::string> metadata_json(const Metadata& metadata) {
  std::string json = json_string(kMetadataKey) + ":{";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      return invalid("the metadata of " + quote(key) + " is not UTF-8");
    }
    if (!first) json += ',';
    first = false;
    json += json_string(key) + ":" + json_string(value);
  }
  return json + "}";
}

/// A file that replaces its target when commit() succeeds and vanishes otherwise.
class PendingFile {
 public:
  PendingFile() = default;
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  /// The empty string, or what went wrong.
  std::string create(const std::string& target) {
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

  std::string write(const void* data, std::size_t size) {
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

  std::string sync() {
    if (::fsync(fd_) != 0) return failure("sync");
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 ? std::string() : failure("close");
  }

  std::string commit(const std::string& target) {
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

 private:
  static std::string failure(const char* what) {
    return std::string("cannot ") + what + " it: " + std::strerror(errno);
  }
  int fd_ = -1;
  std::string path_;
  std::string directory_;
};

WriteOutcome outcome(WriteResult result, const std::string& path, const std::string& why) {
  return {result, "[safetensors] output " + quote(path) + ": " + why};
}

/// The file that a symbolic link names, so that the link survives, also where that file is not
/// there yet; other paths as they are. A link of a loop stays one: stat() reports it.
std::string resolve(const std::string& path) {
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

/// Writes header and tensors; nullopt when all is written.
std::optional<WriteOutcome> write_all(PendingFile& file, const std::string& path,
                                      const EncodedHeader& header,
                                      std::span<const TensorToWrite> tensors,
                                      bool (*interrupted)()) {
  constexpr std::size_t kPieceBytes = 1 << 20;
  const auto stop = [&] { return interrupted != nullptr && interrupted(); };
  const auto put = [&](const void* data, std::size_t size) -> std::optional<WriteOutcome> {
    for (std::size_t done = 0; done < size;) {
      if (stop()) return outcome(WriteResult::kInterrupted, path, "interrupted, not written");
      const std::size_t piece = std::min(kPieceBytes, size - done);
      const std::string error = file.write(static_cast<const char*>(data) + done, piece);
      if (!error.empty()) return outcome(WriteResult::kFailed, path, error);
      done += piece;
    }
    return std::nullopt;
  };
  if (auto failed = put(header.bytes.data(), header.bytes.size())) return failed;
  for (const std::size_t i : header.order) {
    const auto size = static_cast<std::size_t>(*bytes_of(tensors[i]));
    if (auto failed = put(tensors[i].data, size)) return failed;
  }
  if (const std::string error = file.sync(); !error.empty()) {
    return outcome(WriteResult::kFailed, path, error);
  }
  if (stop()) return outcome(WriteResult::kInterrupted, path, "interrupted, not written");
  return std::nullopt;
}

}  // namespace

Expected<EncodedHeader> encode_header(std::span<const TensorToWrite> tensors,
                                      const Metadata& metadata) {
  EncodedHeader out;
  out.order.resize(tensors.size());
  std::iota(out.order.begin(), out.order.end(), std::size_t{0});
  std::stable_sort(out.order.begin(), out.order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].dtype) > size_of(tensors[b].dtype);
  });

  std::string json = "{";
  if (!metadata.empty()) {
    Expected<std::string> text = metadata_json(metadata);
    if (!text) return text.status();
    json += *text;
  }
  std::set<std::string_view> seen{kMetadataKey};
  for (const std::size_t i : out.order) {
    const TensorToWrite& tensor = tensors[i];
    if (!is_utf8(tensor.name)) return invalid("the name " + quote(tensor.name) + " is not UTF-8");
    if (!seen.insert(tensor.name).second) {
      return invalid("the name " + quote(tensor.name) + " is taken");
    }
    Expected<std::int64_t> bytes = bytes_of(tensor);
    if (!bytes) return bytes.status();
    const std::int64_t begin = out.data_bytes;
    if (__builtin_add_overflow(begin, *bytes, &out.data_bytes)) {
      return Status(StatusCode::kOverflow, "[safetensors] more than 2^63 - 1 bytes of tensors");
    }
    if (json.size() > 1) json += ',';
    json += entry_json(tensor, begin, out.data_bytes);
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > static_cast<std::size_t>(kMaxHeaderBytes)) {
    return invalid("the header would have " + std::to_string(json.size()) +
                   " bytes, expected at most " + std::to_string(kMaxHeaderBytes));
  }
  for (int i = 0; i < 8; ++i) {
    out.bytes += static_cast<char>((static_cast<std::uint64_t>(json.size()) >> (8 * i)) & 0xff);
  }
  out.bytes += json;
  return out;
}

WriteOutcome check_target(const std::string& path) {
  if (path.empty()) return outcome(WriteResult::kRefused, path, "expected a file's name");
  const std::string target = resolve(path);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      return outcome(WriteResult::kRefused, path, "it is a directory, expected a file's name");
    }
    if (!S_ISREG(info.st_mode)) {
      return outcome(WriteResult::kRefused, path, "it is not a regular file");
    }
  } else if (errno != ENOENT || target.back() == '/') {
    return outcome(WriteResult::kRefused, path, std::strerror(errno));
  }
  const std::size_t slash = target.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    return outcome(WriteResult::kRefused, path,
                   "its directory " + quote(directory) + ": " + std::strerror(errno));
  }
  return {};
}

WriteOutcome write_file(const std::string& path, std::span<const TensorToWrite> tensors,
                        const Metadata& metadata, bool (*interrupted)()) {
  if (WriteOutcome refused = check_target(path); refused.result != WriteResult::kWritten) {
    return refused;
  }
  Expected<EncodedHeader> header = encode_header(tensors, metadata);
  if (!header) return {WriteResult::kRefused, header.status().message()};
  const std::string target = resolve(path);
  PendingFile file;
  if (const std::string error = file.create(target); !error.empty()) {
    return outcome(WriteResult::kFailed, path, error);
  }
  if (auto failed = write_all(file, path, *header, tensors, interrupted)) return *failed;
  if (const std::string error = file.commit(target); !error.empty()) {
    return outcome(WriteResult::kFailed, path, error);
  }
  return {};
}

}  // namespace regard::safetensors
