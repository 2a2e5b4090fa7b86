#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "regard/params.h"
#include "regard/record.h"
#include "regard/status.h"

namespace regard {

/// Counts the cases of a Context's calls, and adds them to a file: every half a minute in which
/// there is a call, when the Context or the process ends, and when another file is set. Processes
/// that write to one file add up: each reads it under a lock, adds its own, and replaces it.
class Recorder {
 public:
  Recorder();
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// "" ends recording. What was counted for the former file is written to it first.
  Status set_file(const std::string& path);
  /// Counts a call. Throws std::bad_alloc. The Status is that of a write that was due.
  Status add(const AttentionParams& params, Direction direction);
  /// Writes what was counted since the last write.
  Status flush();

  // Around a fork, whose child starts with nothing counted.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void clear() noexcept;

 private:
  struct Key {
    AttentionParams params;
    Direction direction;
    friend bool operator==(const Key& a, const Key& b) noexcept {
      return a.direction == b.direction && a.params == b.params;
    }
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return hash_value(key.params) * 2 + static_cast<std::size_t>(key.direction);
    }
  };
  Status flush_locked(int attempts);

  std::mutex mutex_;
  std::string path_;
  std::unordered_map<Key, std::uint64_t, Hash> counts_;
  std::uint64_t dropped_ = 0;
  std::chrono::steady_clock::time_point written_{};
};

/// Reads a record of at most 4 MiB; none where there is no such file.
Expected<Record> read_record(const std::string& path);

/// What is wrong with a path that a record is to be written to; "" where nothing is.
std::string check_record_path(const std::string& path);

}  // namespace regard
