#pragma once

#include <cstdint>

namespace regard::test {

/// Counts every allocation of the process and its bytes, on any thread, by malloc and its kin and
/// by operator new, while it lives. A program that uses it has its malloc replaced by one that
/// counts; under the sanitizers theirs is asked to report.
class AllocationCounter {
 public:
  AllocationCounter();
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  /// Since it was made.
  std::uint64_t count() const;
  std::uint64_t bytes() const;

 private:
  std::uint64_t start_;
  std::uint64_t start_bytes_;
};

}  // namespace regard::test
