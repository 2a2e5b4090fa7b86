#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "regard/status.h"

// Messages between the ranks of a group. regard has no transport of its own: a Communicator is a
// few functions over MPI, a process group of PyTorch, or threads.

namespace regard::distributed {

using Clock = std::chrono::steady_clock;

/// A transfer that has begun.
using Transfer = std::uint64_t;

/// Keeps a message's memory alive.
using MemoryOwner = std::shared_ptr<const void>;

/// One rank's end of a group. Used by one thread at a time. Messages between two ranks with the
/// same tag arrive in the order in which they were sent.
class Communicator {
 public:
  virtual ~Communicator();
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Begins a transfer and returns at once. `data` must stay until wait() or abandon(). Both ends
  /// state the same number of bytes, at least 1 and at most 2^31 - 1. Ranks other than one's own.
  virtual Expected<Transfer> isend(int to, int tag, std::span<const std::byte> data) = 0;
  virtual Expected<Transfer> irecv(int from, int tag, std::span<std::byte> data) = 0;
  /// The same, of memory that `owner` keeps: where a transfer is given up, the transport may go on
  /// with it, so that it needs no copy. isend() and irecv() unless a transport has a use for it.
  virtual Expected<Transfer> isend_owned(int to, int tag, std::span<const std::byte> data,
                                         const MemoryOwner& owner);
  virtual Expected<Transfer> irecv_owned(int from, int tag, std::span<std::byte> data,
                                         const MemoryOwner& owner);
  /// Ends one transfer. An error at the deadline, or where the other rank is gone; the message
  /// states what is known ("rank 2 has ended").
  virtual Status wait(Transfer transfer, Clock::time_point deadline) = 0;
  /// Gives up every transfer that was not waited for: their memory is not touched afterwards, but
  /// for what an owner keeps. The group is of no use any more; the others are notified where the
  /// transport can.
  virtual void abandon() noexcept = 0;
};

/// What a rank sent.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// What a rank did for a while: it computed, or waited for messages.
struct Activity {
  enum class Kind : std::uint8_t { kComputing = 0, kWaiting } kind = Kind::kComputing;
  std::string step;               // "2 of p2p"
  double begin = 0.0, end = 0.0;  // seconds since the call began
};
const char* to_string(Activity::Kind kind) noexcept;  // "computing", "waiting"

/// What a call did on this rank.
struct CallRecord {
  Traffic sent;
  bool has_activities = false;  // set by the caller: they are recorded, and times taken
  std::vector<Activity> activities;
  /// Of all activities of that kind.
  double seconds(Activity::Kind kind) const noexcept;
};

/// How long one step may wait for other ranks, and how much one message holds.
struct MessageLimits {
  std::chrono::milliseconds timeout{60000};        // of each step
  std::int64_t max_bytes = std::int64_t{1} << 30;  // a longer message is sent in chunks
};

/// The messages of one call over a Communicator: chunks, the time-out, the names of errors, and
/// counts. Destroyed with transfers under way it abandons the communicator.
class Messages {
 public:
  /// `where`: the function that errors name. `record`, where it is given, receives what is sent,
  /// and activities where it says so, with times since now.
  Messages(Communicator& communicator, const MessageLimits& limits, const char* where,
           CallRecord* record = nullptr);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  static constexpr int kExchangeTag = 1;

  int rank() const noexcept { return communicator_.rank(); }
  int size() const noexcept { return communicator_.size(); }

  /// Empty messages are not sent. `owner`: of data, which nobody else writes after an error.
  Status send(int to, int tag, std::span<const std::byte> data, const std::string& step,
              const MemoryOwner& owner = {});
  Status receive(int from, int tag, std::span<std::byte> data, const std::string& step,
                 const MemoryOwner& owner = {});
  /// Waits for all transfers with `tag`, or with all tags where it is negative.
  Status wait(int tag = -1);

  /// data[r] of every rank, each of its own length, which all ranks know. data[rank()] is sent.
  Status all_gather(const std::vector<std::span<std::byte>>& data, const std::string& step,
                    int tag = kExchangeTag);
  /// from[r] goes to rank r, to[r] comes from it; the own part is copied. `owner`: of all.
  Status all_to_all(const std::vector<std::span<const std::byte>>& from,
                    const std::vector<std::span<std::byte>>& to, const std::string& step,
                    int tag = kExchangeTag, const MemoryOwner& owner = {});

  /// Abandons the communicator where transfers with `tag` are under way, or any where it is
  /// negative.
  void abandon_open(int tag = -1) noexcept;

 private:
  friend class ActivityScope;
  bool records_activities() const { return record_ != nullptr && record_->has_activities; }
  struct Open {
    Transfer transfer;
    int tag;
    int other;
    std::string step;
  };
  Status fail(int other, const std::string& step, const Status& status) const;

  Communicator& communicator_;
  MessageLimits limits_;
  const char* where_;
  std::vector<Open> open_;
  CallRecord* record_;
  Clock::time_point began_;
};

/// Records what its scope is, where the call records activities; costs nothing where not.
class ActivityScope {
 public:
  ActivityScope(Messages& messages, Activity::Kind kind, const std::string& step);
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Messages& messages_;
  std::size_t index_ = 0;
};

/// Abandons what is under way with a tag at the end of a scope. Declared after the buffers of its
/// transfers, so that none is freed before.
class TransferGuard {
 public:
  TransferGuard(Messages& messages, int tag) : messages_(messages), tag_(tag) {}
  ~TransferGuard() { messages_.abandon_open(tag_); }
  TransferGuard(const TransferGuard&) = delete;
  TransferGuard& operator=(const TransferGuard&) = delete;

 private:
  Messages& messages_;
  int tag_;
};

/// The number of messages that `bytes` need.
std::int64_t chunks_of(std::int64_t bytes, const MessageLimits& limits) noexcept;

}  // namespace regard::distributed
