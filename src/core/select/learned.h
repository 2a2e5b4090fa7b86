#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/select/claims.h"
#include "regard/params.h"
#include "regard/policy.h"

namespace regard {

/// What a backend's library refused although the backend's record allows it.
struct LearnedRefusal {
  BackendRef ref;
  AttentionKey key;
  KernelLevel level;
  std::string text;
  bool lasting = true;  // false: a shortage (no memory, no handle), which holds for one call
};

/// A backend that failed a self-check, and may not run from then on.
struct DeniedBackend {
  BackendRef ref;
  std::string text;
};

/// The refusals of one Context, the most recently used. Safe to use from many threads.
class LearnedRefusals {
 public:
  /// A problem costs some hundred bytes; a library that refuses more of them than this is called
  /// again.
  static constexpr std::size_t kCapacity = 256;

  void add(const LearnedRefusal& refusal);
  /// Those of either key.
  std::vector<LearnedRefusal> find(const AttentionKey& rounded, const AttentionKey& exact);
  std::size_t size() const;
  std::uint64_t added() const;

 private:
  mutable std::mutex mutex_;
  std::vector<LearnedRefusal> recent_;  // most recent last
  std::uint64_t added_ = 0;
};

}  // namespace regard
