#pragma once

#include <cstdint>

namespace regard::test {

/// Counts every allocation of the process and its bytes, on any thread, by malloc and its kin and
/// by operator new, while it lives. A program that uses it has its malloc replaced by one that
/// counts; under the sanitizers theirs reports.
class AllocationCounter {
 public:
  AllocationCounter();
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  /// Since it was made.
  std::uint64_t count() const;
  std::uint64_t bytes() const;
  /// Allocations less blocks freed.
  std::int64_t live() const;

 private:
  std::uint64_t start_;
  std::uint64_t start_bytes_;
  std::uint64_t start_freed_;
};

/// While it lives, an allocation of its thread fails: the n-th (from 1), or that one and all that
/// follow. operator new throws std::bad_alloc, aligned_alloc returns null. calloc does not fail:
/// the C library, which registers the destructors of a thread's variables with it, ends the program
/// when it fails.
/// Under the sanitizers only operator new fails.
class AllocationFailure {
 public:
  enum Extent { kOne, kAllFromThere };
  AllocationFailure(std::uint64_t n, Extent extent);
  ~AllocationFailure();
  AllocationFailure(const AllocationFailure&) = delete;
  AllocationFailure& operator=(const AllocationFailure&) = delete;

  bool happened() const;
};

}  // namespace regard::test
