#include "distributed/thread_communicator.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "distributed/text.h"

namespace regard::distributed {

/// Messages under way, by (from, to, tag). A send copies its data, so that it ends at once.
struct ThreadGroup::Shared {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes;
  std::vector<bool> ended;
  Fault fault;
};

class ThreadGroup::Rank final : public Communicator {
 public:
  Rank(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(shared_->ended.size()); }

  Expected<Transfer> isend(int to, int tag, std::span<const std::byte> data) override {
    if (Status s = begin(to); !s.ok()) return s;
    const std::lock_guard lock(shared_->mutex);
    shared_->boxes[{rank_, to, tag}].emplace_back(data.begin(), data.end());
    shared_->arrived.notify_all();
    return Transfer{0};
  }

  Expected<Transfer> irecv(int from, int tag, std::span<std::byte> data) override {
    if (Status s = begin(from); !s.ok()) return s;
    pending_.emplace(++last_, Receive{from, tag, data});
    return last_;
  }

  Status wait(Transfer transfer, Clock::time_point deadline) override {
    if (transfer == 0) return {};
    const auto found = pending_.find(transfer);
    if (found == pending_.end()) {
      return Status(StatusCode::kInternal, "the transfer is not under way");
    }
    // Receives of the same rank and tag complete in the order in which they began.
    while (true) {
      const auto first = first_like(found->second);
      const bool is_last = first == found;
      if (Status s = complete(first->second, deadline); !s.ok()) return s;
      pending_.erase(first);
      if (is_last) return {};
    }
  }

  void abandon() noexcept override {
    pending_.clear();
    const std::lock_guard lock(shared_->mutex);
    shared_->ended[static_cast<std::size_t>(rank_)] = true;
    shared_->arrived.notify_all();
  }

 private:
  struct Receive {
    int from, tag;
    std::span<std::byte> data;
  };
  using Pending = std::map<Transfer, Receive>;

  Pending::iterator first_like(const Receive& receive) {
    auto at = pending_.begin();
    while (at->second.from != receive.from || at->second.tag != receive.tag) ++at;
    return at;
  }

  Status complete(const Receive& receive, Clock::time_point deadline) {
    std::unique_lock lock(shared_->mutex);
    auto& box = shared_->boxes[{receive.from, rank_, receive.tag}];
    const auto gone = [&] { return shared_->ended[static_cast<std::size_t>(receive.from)]; };
    shared_->arrived.wait_until(lock, deadline, [&] { return !box.empty() || gone(); });
    if (box.empty()) {
      return Status(StatusCode::kUnavailable,
                    gone() ? "rank " + std::to_string(receive.from) + " has ended"
                           : std::string("the time-out has passed"));
    }
    if (box.front().size() != receive.data.size()) {
      return Status(StatusCode::kInternal, "message of " + std::to_string(box.front().size()) +
                                               " bytes, expected " +
                                               std::to_string(receive.data.size()));
    }
    std::memcpy(receive.data.data(), box.front().data(), receive.data.size());
    box.pop_front();
    return {};
  }

  Status begin(int other) {
    if (other < 0 || other >= size() || other == rank_) {
      return Status(StatusCode::kInternal, "rank " + std::to_string(other) + " is no other rank");
    }
    const Fault& fault = shared_->fault;
    const std::int64_t now = transfers_++;
    if (fault.rank != rank_ || fault.kind == Fault::Kind::kNone || now < fault.at) return {};
    if (fault.kind == Fault::Kind::kEnd) {
      abandon();
      return Status(StatusCode::kUnavailable, "this rank was ended by a test");
    }
    if (now > fault.at && fault.kind == Fault::Kind::kDelay) return {};
    std::this_thread::sleep_for(fault.delay);
    if (fault.kind == Fault::Kind::kDelay) return {};
    return Status(StatusCode::kUnavailable, "this rank was stopped by a test");
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
  Transfer last_ = 0;
  std::int64_t transfers_ = 0;
  Pending pending_;
};

ThreadGroup::ThreadGroup(int ranks, const Fault& fault) : shared_(std::make_shared<Shared>()) {
  shared_->ended.resize(static_cast<std::size_t>(ranks));
  shared_->fault = fault;
  for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<Rank>(shared_, r));
}
ThreadGroup::~ThreadGroup() = default;

Communicator& ThreadGroup::communicator(int rank) {
  return *ranks_[static_cast<std::size_t>(rank)];
}

}  // namespace regard::distributed
