#include "distributed/mpi/mpi_communicator.h"

#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "distributed/text.h"

namespace regard::distributed {
namespace {

constexpr const char* kWhere = "make_mpi_communicator";

Status status_of(int code, const char* function) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return Status(StatusCode::kUnavailable,
                std::string(function) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

/// MPI advances messages in its own calls alone: without them a long message waits until the rank
/// has computed. This thread calls MPI while transfers are under way.
class ProgressThread {
 public:
  explicit ProgressThread(MPI_Comm comm) : comm_(comm), thread_([this] { run(); }) {}
  ~ProgressThread() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void set_active(bool active) {
    {
      const std::lock_guard lock(mutex_);
      if (active_ == active) return;
      active_ = active;
    }
    if (active) changed_.notify_one();
  }

 private:
  void run() {
    constexpr auto kInterval = std::chrono::microseconds(100);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return active_ || ends_; });
      if (ends_) return;
      lock.unlock();
      int found = 0;
      MPI_Iprobe(MPI_ANY_SOURCE, kNoTag, comm_, &found, MPI_STATUS_IGNORE);
      lock.lock();
      changed_.wait_for(lock, kInterval, [&] { return ends_; });
    }
  }

  static constexpr int kNoTag = 32767;  // no message has it
  MPI_Comm comm_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool active_ = false, ends_ = false;
  std::thread thread_;
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_MULTIPLE && size_ > 1) progress_.emplace(comm_);
  }
  ~MpiCommunicator() override {
    progress_.reset();
    abandon();
    int finalized = 0;
    MPI_Finalized(&finalized);
    // MPI_Comm_free is collective: after a failure other ranks may not come to it.
    if (finalized == 0 && !failed_) MPI_Comm_free(&comm_);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  Expected<Transfer> isend(int to, int tag, std::span<const std::byte> data) override {
    const std::shared_ptr<std::byte[]> copy(new std::byte[data.size()]);
    std::memcpy(copy.get(), data.data(), data.size());
    return isend_owned(to, tag, {copy.get(), data.size()}, copy);
  }
  Expected<Transfer> irecv(int from, int tag, std::span<std::byte> data) override {
    const std::shared_ptr<std::byte[]> copy(new std::byte[data.size()]);
    return begin_receive(from, tag, {copy.get(), data.size()}, {copy, copy.get(), data});
  }
  Expected<Transfer> isend_owned(int to, int tag, std::span<const std::byte> data,
                                 const MemoryOwner& owner) override {
    Pending made{owner};
    const int code = MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, tag, comm_,
                               &made.request);
    return begun(code, "MPI_Isend", std::move(made));
  }
  Expected<Transfer> irecv_owned(int from, int tag, std::span<std::byte> data,
                                 const MemoryOwner& owner) override {
    return begin_receive(from, tag, data, {owner});
  }

  Status wait(Transfer transfer, Clock::time_point deadline) override {
    const auto found = pending_.find(transfer);
    if (found == pending_.end()) {
      return Status(StatusCode::kInternal, "the transfer is not under way");
    }
    set_progress(false);  // the calls below advance messages
    // MPI_Wait has no time-out. Ranks that share a core yield it to the one that is waited for.
    while (true) {
      int done = 0;
      const int code = MPI_Test(&found->second.request, &done, MPI_STATUS_IGNORE);
      if (Status s = status_of(code, "MPI_Test"); !s.ok()) return s;
      if (done != 0) {
        const Pending& ended = found->second;
        if (!ended.to.empty()) std::memcpy(ended.to.data(), ended.copy, ended.to.size());
        pending_.erase(found);
        set_progress(!pending_.empty());
        return {};
      }
      if (Clock::now() > deadline) {
        return Status(StatusCode::kUnavailable, "the time-out has passed");
      }
      std::this_thread::yield();
    }
  }

  void abandon() noexcept override {
    if (pending_.empty()) return;
    set_progress(false);
    failed_ = true;
    for (auto& [transfer, ended] : pending_) {
      // MPI may not end a cancelled transfer without the other rank, which may still read or write
      // its memory, however late it is: that stays until the process ends.
      MPI_Cancel(&ended.request);
      int done = 0;
      MPI_Test(&ended.request, &done, MPI_STATUS_IGNORE);
      if (done != 0) continue;
      MPI_Request_free(&ended.request);
      (void)ended.owner.release();
    }
    pending_.clear();
  }

 private:
  /// A transfer and what keeps its memory, of which the process never lets go where MPI does not
  /// end it. Of memory that the caller takes back MPI has a copy.
  struct Pending {
    Pending(const MemoryOwner& memory, const std::byte* arrived = nullptr,
            std::span<std::byte> goes_to = {})
        : owner(std::make_unique<MemoryOwner>(memory)), copy(arrived), to(goes_to) {}
    std::unique_ptr<MemoryOwner> owner;
    const std::byte* copy;    // of a receive into a copy
    std::span<std::byte> to;  //
    MPI_Request request = MPI_REQUEST_NULL;
  };

  Expected<Transfer> begin_receive(int from, int tag, std::span<std::byte> data, Pending made) {
    const int code = MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, from, tag,
                               comm_, &made.request);
    return begun(code, "MPI_Irecv", std::move(made));
  }
  Expected<Transfer> begun(int code, const char* function, Pending made) {
    if (Status s = status_of(code, function); !s.ok()) return s;
    pending_.emplace(++last_, std::move(made));
    set_progress(true);
    return last_;
  }
  void set_progress(bool active) {
    if (progress_) progress_->set_active(active);
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  bool failed_ = false;
  Transfer last_ = 0;
  std::map<Transfer, Pending> pending_;
  std::optional<ProgressThread> progress_;  // where MPI allows a second thread
};

}  // namespace

Expected<std::unique_ptr<Communicator>> make_mpi_communicator(const void* comm) try {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) return invalid(kWhere, "MPI must be initialised: call MPI_Init_thread");
  MPI_Comm own = MPI_COMM_NULL;
  const int code =
      MPI_Comm_dup(comm == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(comm), &own);
  if (Status s = status_of(code, "MPI_Comm_dup"); !s.ok()) return s;
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  return std::unique_ptr<Communicator>(std::make_unique<MpiCommunicator>(own));
} catch (const std::bad_alloc&) {
  return Status::out_of_memory(kWhere);
}

}  // namespace regard::distributed
