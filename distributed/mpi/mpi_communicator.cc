#include "distributed/mpi/mpi_communicator.h"

#include <mpi.h>

#include <map>
#include <new>
#include <string>
#include <thread>

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

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiCommunicator() override {
    abandon();
    int finalized = 0;
    MPI_Finalized(&finalized);
    // MPI_Comm_free is collective: after a failure other ranks may not come to it.
    if (finalized == 0 && !failed_) MPI_Comm_free(&comm_);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  Expected<Transfer> isend(int to, int tag, std::span<const std::byte> data) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, tag, comm_, &request);
    return begun(code, "MPI_Isend", request);
  }
  Expected<Transfer> irecv(int from, int tag, std::span<std::byte> data) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, from, tag, comm_, &request);
    return begun(code, "MPI_Irecv", request);
  }

  Status wait(Transfer transfer, Clock::time_point deadline) override {
    const auto found = pending_.find(transfer);
    if (found == pending_.end()) {
      return Status(StatusCode::kInternal, "the transfer is not under way");
    }
    // MPI_Wait has no time-out. Ranks that share a core yield it to the one that is waited for.
    while (true) {
      int done = 0;
      const int code = MPI_Test(&found->second, &done, MPI_STATUS_IGNORE);
      if (Status s = status_of(code, "MPI_Test"); !s.ok()) return s;
      if (done != 0) {
        pending_.erase(found);
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
    failed_ = true;
    for (auto& [transfer, request] : pending_) {
      // A receive that is cancelled ends at once. MPI may not end a cancelled send without the
      // other rank, so it is freed; its memory must stay until the process ends, which callers
      // that see this error come to.
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    pending_.clear();
  }

 private:
  Expected<Transfer> begun(int code, const char* function, MPI_Request request) {
    if (Status s = status_of(code, function); !s.ok()) return s;
    pending_.emplace(++last_, request);
    return last_;
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  bool failed_ = false;
  Transfer last_ = 0;
  std::map<Transfer, MPI_Request> pending_;
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
