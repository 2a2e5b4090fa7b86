#include "tools/regard/tuning_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "tools/files/mapped_bytes.h"
#include "tools/files/quote.h"

namespace regard::cli {
namespace {

/// FNV-1a, which is the same everywhere.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

Status failed(const std::string& what, const std::string& path) {
  return Status(StatusCode::kInternal,
                fmt::format("[tune] {} {}: {}", what, files::quote(path), std::strerror(errno)));
}

/// Closes it, and removes the file unless it was renamed.
class Temporary {
 public:
  explicit Temporary(std::string path)
      : path_(std::move(path)),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (fd_ >= 0) ::close(fd_);
    if (fd_ >= 0 && !renamed_) ::unlink(path_.c_str());
  }

  Status write(std::string_view text) {
    if (fd_ < 0) return failed("cannot create", path_);
    while (!text.empty()) {
      const ssize_t n = ::write(fd_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return failed("cannot write", path_);
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return ::fsync(fd_) == 0 ? Status() : failed("cannot sync", path_);
  }
  Status rename_to(const std::string& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) return failed("cannot replace", target);
    renamed_ = true;
    return {};
  }

 private:
  std::string path_;
  int fd_;
  bool renamed_ = false;
};

/// "" where there is no such file.
Expected<std::string> read_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  constexpr std::uintmax_t kMaxBytes = 1 << 20;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMaxBytes) {
    return Status(StatusCode::kInvalidArgument, "it is no regular file of at most 1 MiB");
  }
  const Expected<files::MappedBytes> mapped = files::MappedBytes::open(path, "tune");
  if (!mapped) return mapped.status();
  const auto bytes = mapped->bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Whether the two tables are of one environment.
bool same_machine(const TuningTable& a, const TuningTable& b) {
  return a.version == b.version && a.isa == b.isa && a.cpu_model == b.cpu_model &&
         a.concurrency == b.concurrency;
}

}  // namespace

TuningTable table_of(const Env& env) {
  TuningTable table;
  table.version = env.version;
  table.isa = to_string(env.isa);
  table.cpu_model = env.cpu_model;
  table.concurrency = env.concurrency;
  table.costs.rates.isa = env.isa;
  table.costs.rates.threads = env.concurrency;
  return table;
}

std::string cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/regard";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/regard";
  return "";
}

Status write_atomically(const std::string& path, const std::string& text) {
  static int count = 0;
  Temporary file(fmt::format("{}.{}.{}.tmp", path, ::getpid(), ++count));
  if (Status status = file.write(text); !status.ok()) return status;
  return file.rename_to(path);
}

TuningStore::TuningStore(std::string folder, const Env& env, int rounds) : env_(env) {
  const std::string conditions =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", env.version, to_string(env.isa), env.cpu_model,
                  env.concurrency, env.compiler, rounds);
  folder_ = fmt::format("{}/{:016x}", folder, hash_of(conditions));
}

std::string TuningStore::path_of(const std::string& words) const {
  return fmt::format("{}/{:016x}.entry", folder_, hash_of(words));
}

std::vector<TuningTable::Time> TuningStore::find(const std::string& words,
                                                 std::vector<std::string>* dropped) const {
  const std::string path = path_of(words);
  const auto drop = [&](const std::string& reason) {
    dropped->push_back(std::filesystem::path(path).filename().string() + ": " + reason);
    return std::vector<TuningTable::Time>();
  };
  const Expected<std::string> text = read_text(path);
  if (!text) return drop(text.status().message());
  if (text->empty() && !std::filesystem::exists(path)) return {};
  if (!text->starts_with("regard-tuning 1\nlines ")) return drop("it is no whole entry");
  Expected<TuningTable> entry = parse_tuning_table(*text, "entry");
  if (!entry) return drop(entry.status().message());
  if (!same_machine(*entry, table_of(env_))) return drop("it was measured in another environment");
  for (const TuningTable::Time& time : entry->times) {
    if (to_string(time.observation.params) != words) return drop("it is of another problem");
  }
  if (entry->times.empty()) return drop("it has no times");
  return std::move(entry->times);
}

Status TuningStore::keep(const std::string& words, std::vector<TuningTable::Time> times) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    return Status(StatusCode::kInternal,
                  fmt::format("[tune] cannot make {}: {}", files::quote(folder_), error.message()));
  }
  TuningTable table = table_of(env_);
  table.times = std::move(times);
  return write_atomically(path_of(words), to_text(table));
}

}  // namespace regard::cli
