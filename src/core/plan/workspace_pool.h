#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "regard/request.h"
#include "regard/status.h"

namespace regard {

inline constexpr std::size_t kWorkspaceAlign = 64;

/// Blocks that attention() leases: one per concurrent call, each growing to the largest need.
class WorkspacePool {
 public:
  WorkspacePool() = default;
  ~WorkspacePool() { trim(); }
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  /// A block of at least `bytes`, 64-byte aligned; to be given back.
  Expected<Workspace> lease(std::size_t bytes);
  void give_back(Workspace block) noexcept;
  /// Frees the blocks that are not leased.
  void trim() noexcept;
  /// Bytes held, leased or not.
  std::int64_t total_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Workspace> free_;  // its capacity is at least the number of blocks alive
  std::size_t alive_ = 0;
  std::int64_t total_bytes_ = 0;
};

}  // namespace regard
