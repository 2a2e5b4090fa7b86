#include "core/plan/workspace_pool.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace regard {

Expected<Workspace> WorkspacePool::lease(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto smaller = [](const Workspace& a, const Workspace& b) { return a.bytes < b.bytes; };
  const auto largest = std::max_element(free_.begin(), free_.end(), smaller);
  if (largest != free_.end()) {
    const Workspace block = *largest;
    *largest = free_.back();
    free_.pop_back();
    if (block.bytes >= bytes) return block;
    std::free(block.data);
    total_bytes_ -= static_cast<std::int64_t>(block.bytes);
    --alive_;
  }
  free_.reserve(alive_ + 1);  // so that give_back never allocates
  const std::size_t rounded = (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
  void* data = rounded >= bytes ? std::aligned_alloc(kWorkspaceAlign, rounded) : nullptr;
  if (data == nullptr) {
    return Status(StatusCode::kWorkspace,
                  "[attention] cannot allocate a workspace of " + std::to_string(bytes) + " bytes");
  }
  ++alive_;
  total_bytes_ += static_cast<std::int64_t>(rounded);
  return Workspace{data, rounded};
}

void WorkspacePool::give_back(Workspace block) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(block);
}

void WorkspacePool::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Workspace& block : free_) {
    std::free(block.data);
    total_bytes_ -= static_cast<std::int64_t>(block.bytes);
    --alive_;
  }
  free_.clear();
}

std::int64_t WorkspacePool::total_bytes() const {
  const std::lock_guard lock(mutex_);
  return total_bytes_;
}

}  // namespace regard
