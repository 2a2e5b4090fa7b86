#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tools/llm/clock.h"

namespace llm {

/// What a model's time goes to.
enum class Operation : std::uint8_t {
  kEmbedding,
  kNorms,
  kProducts,
  kAttention,
  kActivation,
  kLogits,
  kSampling
};
inline constexpr std::size_t kOperations = 7;

/// Seconds and calls of each operation.
class Profile {
 public:
  void add(Operation operation, double seconds) noexcept {
    Entry& entry = entries_[static_cast<std::size_t>(operation)];
    entry.seconds += seconds;
    ++entry.calls;
  }
  double seconds(Operation operation) const noexcept {
    return entries_[static_cast<std::size_t>(operation)].seconds;
  }
  std::string to_string() const;  // a table

 private:
  struct Entry {
    double seconds = 0.0;
    std::int64_t calls = 0;
  };
  std::array<Entry, kOperations> entries_;
};

/// Adds the time of a scope to a profile.
class ScopedTimer {
 public:
  ScopedTimer(Profile& profile, Operation operation) : profile_(profile), operation_(operation) {}
  ~ScopedTimer() { profile_.add(operation_, seconds_since(start_)); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  Profile& profile_;
  Operation operation_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace llm
