#include "core/plan/recorder.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/message.h"
#include "core/text/number_parse.h"
#include "core/text/thrown_by.h"
#include "platform/atomic_file.h"
#include "platform/read_file.h"
#include "regard/case.h"

namespace regard {
namespace {

constexpr const char* kRecord = "record";
constexpr std::string_view kRecordHeader = "regard-record 1";
constexpr std::int64_t kMaxRecordBytes = 4 << 20;
constexpr std::chrono::seconds kInterval{30};
constexpr int kPatient = 100;  // attempts to get the lock, in two seconds; of a call: one

/// Every Recorder of the process, for its end and for forks. Never destroyed.
struct Registry {
  std::mutex mutex;
  std::vector<Recorder*> all;

  static Registry& get() {
    static Registry* const registry = [] {
      auto* const made = new Registry();
      std::atexit([] {
        const std::lock_guard lock(get().mutex);
        for (Recorder* recorder : get().all) static_cast<void>(recorder->flush());
      });
      pthread_atfork([] { get().lock_all(); }, [] { get().unlock_all(false); },
                     [] { get().unlock_all(true); });
      return made;
    }();
    return *registry;
  }

 private:
  void lock_all() {
    mutex.lock();
    for (Recorder* recorder : all) recorder->lock();
  }
  void unlock_all(bool in_child) {
    for (Recorder* recorder : all) {
      if (in_child) recorder->clear();
      recorder->unlock();
    }
    mutex.unlock();
  }
};

/// Holds the lock of a record's writers, of all processes: an advisory one on PATH.lock.
class WriterLock {
 public:
  WriterLock(const std::string& path, int attempts) {
    descriptor_ = ::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (--attempts == 0) {
        ::close(std::exchange(descriptor_, -1));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }
  ~WriterLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;
  bool taken() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

Status record_error(const std::string& source, int line, const std::string& what) {
  return invalid("parse_record", source, ":", line, ": ", what);
}

// "12 forward b1 hq8 ..."
Status parse_line(std::string_view line, Record* record) {
  const std::size_t first = line.find(' ');
  const std::size_t second = first == line.npos ? first : line.find(' ', first + 1);
  const std::string_view number = line.substr(0, first);
  const std::string_view rest = first == line.npos ? "" : line.substr(first + 1);
  std::uint64_t count = 0;
  if (number == "dropped") {
    if (parse_number(rest, &record->dropped)) return {};
    return invalid(kRecord, "dropped ", regard::quoted(rest), " must be a whole number");
  }
  if (!parse_number(number, &count) || count == 0) {
    return invalid(kRecord, regard::quoted(number), " must be a number of calls, at least 1");
  }
  const std::string_view word = rest.substr(0, rest.find(' '));
  RecordedCase recorded;
  recorded.count = count;
  if (word == to_string(Direction::kBackward)) {
    recorded.direction = Direction::kBackward;
  } else if (word != to_string(Direction::kForward)) {
    return invalid(kRecord, regard::quoted(word), " must be forward or backward");
  }
  if (second == line.npos) return invalid(kRecord, "a case must follow ", regard::quoted(word));
  recorded.words = line.substr(second + 1);
  const Expected<Case> parsed = parse_case(recorded.words);
  if (!parsed) return parsed.status();
  if (to_string(parsed->params) != recorded.words) {
    return invalid(kRecord, regard::quoted(recorded.words), " must be in canonical order, as ",
                   regard::quoted(to_string(parsed->params)));
  }
  record->cases.push_back(std::move(recorded));
  return {};
}

bool same_case(const RecordedCase& a, const RecordedCase& b) {
  return a.direction == b.direction && a.words == b.words;
}

bool comes_first(const RecordedCase& a, const RecordedCase& b) {
  if (a.count != b.count) return a.count > b.count;
  return std::tie(a.words, a.direction) < std::tie(b.words, b.direction);
}

// What a reader of the file would refuse is not written: the other lines are worth more.
bool reads_back(const std::string& words) {
  const Expected<Case> parsed = parse_case(words);
  return parsed && to_string(parsed->params) == words;
}

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) { return a + b < a ? ~0ull : a + b; }

}  // namespace

bool is_record(std::string_view text) noexcept {
  return text.starts_with(kRecordHeader) &&
         (text.size() == kRecordHeader.size() || text[kRecordHeader.size()] == '\n');
}

Expected<Record> parse_record(std::string_view text, const std::string& source) try {
  if (!is_record(text)) {
    return record_error(source, 1,
                        concat("expected ", regard::quoted(kRecordHeader), ", got ",
                               regard::quoted(text.substr(0, text.find('\n')))));
  }
  if (text.back() != '\n') return record_error(source, 1, "the file ends within a line");
  Record record;
  for (int line = 1; !text.empty(); ++line) {
    const std::string_view words = text.substr(0, text.find('\n'));
    text.remove_prefix(words.size() + 1);
    if (line == 1 || words.starts_with('#')) continue;
    if (record.cases.size() == Record::kMaxCases) {
      return record_error(source, line, concat("more than ", Record::kMaxCases, " cases"));
    }
    if (const Status s = parse_line(words, &record); !s.ok()) {
      return record_error(source, line, s.message());
    }
  }
  std::vector<RecordedCase> sorted = record.cases;
  const auto by_case = [](const RecordedCase& a, const RecordedCase& b) {
    return std::tie(a.words, a.direction) < std::tie(b.words, b.direction);
  };
  std::ranges::sort(sorted, by_case);
  const auto twice = std::ranges::adjacent_find(sorted, same_case);
  if (twice != sorted.end()) {
    return invalid("parse_record", source, ": two lines for ", to_string(twice->direction), " ",
                   twice->words);
  }
  std::ranges::sort(record.cases, comes_first);
  return record;
} catch (...) {
  return status_of_exception("parse_record");
}

std::string to_string(const Record& record) {
  std::string text = concat(kRecordHeader, "\n# calls, direction, case\n");
  if (record.dropped > 0) text += concat("dropped ", record.dropped, "\n");
  for (const RecordedCase& c : record.cases) {
    text += concat(c.count, " ", to_string(c.direction), " ", c.words, "\n");
  }
  return text;
}

Expected<Record> read_record(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory || (!error && size == 0)) return Record();
  const Expected<std::string> text = read_regular_file(path, kMaxRecordBytes, "parse_record");
  if (!text) return text.status();
  return parse_record(*text, path);
}

std::string check_record_path(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    return "there is no folder " + folder.string();
  }
  const Expected<Record> record = read_record(path);
  return record ? "" : unless_out_of_memory(record.status()).message();
}

Recorder::Recorder() {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  registry.all.push_back(this);
}

Recorder::~Recorder() {
  Registry& registry = Registry::get();
  {
    const std::lock_guard lock(registry.mutex);
    std::erase(registry.all, this);
  }
  static_cast<void>(flush());
}

void Recorder::clear() noexcept {
  counts_.clear();
  dropped_ = 0;
}

Status Recorder::set_file(const std::string& path) {
  if (!path.empty()) {
    if (const std::string error = check_record_path(path); !error.empty()) {
      return invalid("set_record", path, ": ", error);
    }
  }
  const std::lock_guard lock(mutex_);
  Status status = flush_locked(kPatient);
  path_ = path;
  written_ = std::chrono::steady_clock::now();
  return status;
}

Status Recorder::add(const AttentionParams& params, Direction direction) {
  const std::lock_guard lock(mutex_);
  if (path_.empty()) return {};
  const Key key{params, direction};
  const auto found = counts_.find(key);
  if (found != counts_.end()) {
    ++found->second;
  } else if (counts_.size() < Record::kMaxCases) {
    counts_.emplace(key, 1);
  } else {
    ++dropped_;
  }
  return std::chrono::steady_clock::now() - written_ < kInterval ? Status() : flush_locked(1);
}

Status Recorder::flush() try {
  const std::lock_guard lock(mutex_);
  return flush_locked(kPatient);
} catch (...) {
  return status_of_exception(kRecord);
}

Status Recorder::flush_locked(int attempts) {
  written_ = std::chrono::steady_clock::now();
  if (path_.empty() || (counts_.empty() && dropped_ == 0)) return {};
  const WriterLock lock(path_, attempts);
  if (!lock.taken()) return invalid(kRecord, "another process holds ", path_, ".lock");
  Expected<Record> record = read_record(path_);
  if (!record) return record.status();
  std::unordered_map<std::string, std::size_t> places;
  const auto name_of = [](const RecordedCase& c) {
    return concat(to_string(c.direction), " ", c.words);
  };
  for (std::size_t i = 0; i < record->cases.size(); ++i) places[name_of(record->cases[i])] = i;
  std::uint64_t dropped = dropped_;
  for (const auto& [key, count] : counts_) {
    RecordedCase made{to_string(key.params), key.direction, count};
    const auto found = places.find(name_of(made));
    if (found != places.end()) {
      std::uint64_t& total = record->cases[found->second].count;
      total = saturating_sum(total, count);
    } else if (record->cases.size() < Record::kMaxCases && reads_back(made.words)) {
      places[name_of(made)] = record->cases.size();
      record->cases.push_back(std::move(made));
    } else {
      dropped += count;
    }
  }
  record->dropped = saturating_sum(record->dropped, dropped);
  std::ranges::sort(record->cases, comes_first);
  AtomicFile file(path_, kRecord);
  Status status = file.open();
  if (status.ok()) status = file.write(to_string(*record));
  if (status.ok()) status = file.commit();
  if (status.ok()) clear();
  return status;
}

}  // namespace regard
