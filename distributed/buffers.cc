#include "distributed/buffers.h"

#include <atomic>
#include <list>
#include <mutex>
#include <new>

namespace regard::distributed {
namespace {

constexpr std::size_t kMinKept = std::size_t{64} << 10, kMaxKeptTogether = std::size_t{64} << 20;

struct Block {
  std::unique_ptr<std::byte[]> memory;
  std::size_t bytes = 0;
};

/// Blocks that nobody uses, the ones let go last at the end.
class Pool {
 public:
  /// The smallest one that has `bytes` and not a quarter more; null where there is none.
  Block take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = blocks_.end();
    for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
      if (at->bytes < bytes || at->bytes > bytes + bytes / 4) continue;
      if (best == blocks_.end() || at->bytes < best->bytes) best = at;
    }
    if (best == blocks_.end()) return {};
    Block found = std::move(*best);
    blocks_.erase(best);
    kept_ -= found.bytes;
    return found;
  }

  void give_back(Block block) noexcept {
    if (block.bytes < kMinKept || block.bytes > kMaxKeptTogether) return;
    try {
      std::list<Block> one;
      one.push_back(std::move(block));
      const std::lock_guard lock(mutex_);
      kept_ += one.front().bytes;
      blocks_.splice(blocks_.end(), one);
      while (kept_ > kMaxKeptTogether) {
        kept_ -= blocks_.front().bytes;
        blocks_.pop_front();
      }
    } catch (const std::bad_alloc&) {
      // The block is freed.
    }
  }

 private:
  std::mutex mutex_;
  std::list<Block> blocks_;
  std::size_t kept_ = 0;
};

std::atomic<std::int64_t> bytes_in_use = 0, peak = 0;

void count_use(std::int64_t bytes) noexcept {
  const std::int64_t now = bytes_in_use.fetch_add(bytes) + bytes;
  std::int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
}

/// Outlives every static object that may hold a buffer.
Pool& pool() {
  static Pool* const made = new Pool;
  return *made;
}

}  // namespace

std::shared_ptr<std::byte[]> make_buffer(std::size_t bytes) {
  Pool& from = pool();
  Block block = bytes >= kMinKept ? from.take(bytes) : Block{};
  if (block.memory == nullptr) block = {std::unique_ptr<std::byte[]>(new std::byte[bytes]), bytes};
  const std::size_t all = block.bytes;
  const auto used = static_cast<std::int64_t>(bytes);
  count_use(used);
  return {block.memory.release(), [&from, all, used](std::byte* memory) {
            count_use(-used);
            from.give_back({std::unique_ptr<std::byte[]>(memory), all});
          }};
}

std::int64_t buffer_peak() noexcept { return peak.load(); }
void restart_buffer_peak() noexcept { peak.store(bytes_in_use.load()); }

}  // namespace regard::distributed
