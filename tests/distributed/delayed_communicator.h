#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "distributed/communicator.h"

namespace regard::test {

/// A link's time: a message leaves when the ones before it to the same rank have, and arrives
/// `latency` later.
struct Delay {
  double latency = 0.0;    // seconds
  double bandwidth = 1e9;  // bytes a second
};

/// When messages under way arrive, of all ranks of a group.
class ArrivalTimes {
 public:
  /// `of_node`: ranks of a node; messages between nodes take the second Delay.
  ArrivalTimes(const Delay& within, const Delay& between, int of_node)
      : within_(within), between_(between), of_node_(of_node) {}

  void send(int from, int to, int tag, std::size_t bytes) {
    const Delay& d = from / of_node_ == to / of_node_ ? within_ : between_;
    const std::lock_guard lock(mutex_);
    distributed::Clock::time_point& free = free_[{from, to}];
    free = std::max(free, distributed::Clock::now()) +
           seconds(static_cast<double>(bytes) / d.bandwidth);
    arrivals_[{from, to, tag}].push_back(free + seconds(d.latency));
  }
  /// Of the next message, which was sent.
  distributed::Clock::time_point next(int from, int to, int tag) {
    const std::lock_guard lock(mutex_);
    auto& times = arrivals_[{from, to, tag}];
    const auto first = times.front();
    times.pop_front();
    return first;
  }

 private:
  static distributed::Clock::duration seconds(double value) {
    return std::chrono::duration_cast<distributed::Clock::duration>(
        std::chrono::duration<double>(value));
  }

  Delay within_, between_;
  int of_node_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, distributed::Clock::time_point> free_;
  std::map<std::tuple<int, int, int>, std::deque<distributed::Clock::time_point>> arrivals_;
};

/// A rank of another group whose messages take the time of a network.
class DelayedCommunicator final : public distributed::Communicator {
 public:
  DelayedCommunicator(distributed::Communicator& inner, ArrivalTimes& times)
      : inner_(inner), times_(times) {}

  int rank() const noexcept override { return inner_.rank(); }
  int size() const noexcept override { return inner_.size(); }
  Expected<distributed::Transfer> isend(int to, int tag, std::span<const std::byte> data) override {
    times_.send(rank(), to, tag, data.size());
    return inner_.isend(to, tag, data);
  }
  Expected<distributed::Transfer> irecv(int from, int tag, std::span<std::byte> data) override {
    auto transfer = inner_.irecv(from, tag, data);
    if (transfer.ok()) receives_[*transfer] = {from, tag};
    return transfer;
  }
  Status wait(distributed::Transfer transfer, distributed::Clock::time_point deadline) override {
    if (Status s = inner_.wait(transfer, deadline); !s.ok()) return s;
    const auto found = receives_.find(transfer);
    if (found == receives_.end()) return {};
    const auto [from, tag] = found->second;
    receives_.erase(found);
    std::this_thread::sleep_until(times_.next(from, rank(), tag));
    return {};
  }
  void abandon() noexcept override { inner_.abandon(); }

 private:
  distributed::Communicator& inner_;
  ArrivalTimes& times_;
  std::map<distributed::Transfer, std::pair<int, int>> receives_;
};

}  // namespace regard::test
