#include "tools/gpu_check/results_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

namespace regard::gpu_check {
namespace {

Status failed(const std::string& path, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "[gpu_check] results (" + path + ") " + what);
}

}  // namespace

ResultsFile::~ResultsFile() {
  if (file_ >= 0) close(file_);
}

Status ResultsFile::open(const std::string& path) {
  path_ = path;
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) return failed(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat facts {};
  if (fstat(file_, &facts) != 0 || !S_ISREG(facts.st_mode)) return {};  // nothing to read
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) return failed(path, "are being written by another run");
  return read();
}

Status ResultsFile::read() {
  std::string text;
  char buffer[65536];
  ssize_t count;
  while ((count = ::read(file_, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  if (count < 0) return failed(path_, std::string("cannot be read: ") + std::strerror(errno));
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::optional<JsonLine> line =
        JsonLine::parse(std::string_view(text).substr(begin, end - begin));
    if (!line || !line->has("build") || !line->has("phase") || !line->has("result")) {
      return failed(path_, "are damaged: line " + std::to_string(lines_.size() + 1) +
                               " must be a JSON object with build, phase and result; move the "
                               "file away or pass another --out");
    }
    lines_.push_back(*std::move(line));
  }
  // Only what this program could have begun to write is removed.
  constexpr std::string_view kBegin = "{\"build\":";
  const std::string_view rest = std::string_view(text).substr(begin);
  if (rest.substr(0, kBegin.size()) != kBegin.substr(0, rest.size())) {
    return failed(path_,
                  "are damaged: the last line must be a JSON object; move the file away or "
                  "pass another --out");
  }
  if (!rest.empty() && ftruncate(file_, static_cast<off_t>(begin)) != 0) {
    return failed(path_, std::string("cannot be written: ") + std::strerror(errno));
  }
  return {};
}

Status ResultsFile::append(const JsonLine& line) {
  const std::string text = line.dump() + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(file_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return failed(path_, std::string("cannot be written: ") + std::strerror(errno));
    }
    done += static_cast<std::size_t>(written);
  }
  lines_.push_back(line);
  return {};
}

}  // namespace regard::gpu_check
