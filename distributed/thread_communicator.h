#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "distributed/communicator.h"

namespace regard::distributed {

/// What happens to a rank of a ThreadGroup at its transfer number `at` (isend and irecv, from 0).
struct Fault {
  enum class Kind : std::uint8_t {
    kNone = 0,
    kEnd,   // it is gone: this and every later call of it fails, and the others are notified
    kStop,  // it hangs for `delay` and fails; no rank is notified
    kDelay  // it is late by `delay`, and goes on
  } kind = Kind::kNone;
  int rank = 0;
  std::int64_t at = 0;
  std::chrono::milliseconds delay{0};
};

/// A group of threads of this process, one for each rank.
class ThreadGroup {
 public:
  explicit ThreadGroup(int ranks, const Fault& fault = {});
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;
  /// Valid while the group is.
  Communicator& communicator(int rank);

 private:
  struct Shared;
  class Rank;
  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace regard::distributed
