#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <string>

#include "distributed/communicator.h"

namespace regard::python {

/// Messages by a Python object with the numbers `rank` and `size` and three methods, which the
/// library calls with the GIL held and while its own computing holds none of it:
///   isend(peer, tag, data) and irecv(peer, tag, data): begin a transfer of the writable buffer
///     `data`, which stays where it is until wait() returns or the transfer is dropped; they return
///     an object that stands for it, whose end ends the transfer;
///   wait(transfer, seconds): returns once it is done, and raises RuntimeError where it failed or
///     took longer.
/// A RuntimeError becomes a failed Status. Any other exception ends the call, and rethrow() raises
/// it.
class PythonCommunicator final : public distributed::Communicator {
 public:
  /// With the GIL, as its end. Raises where `link` has no such numbers.
  explicit PythonCommunicator(nanobind::object link);
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  Expected<distributed::Transfer> isend(int to, int tag, std::span<const std::byte> data) override;
  Expected<distributed::Transfer> irecv(int from, int tag, std::span<std::byte> data) override;
  Status wait(distributed::Transfer transfer, distributed::Clock::time_point deadline) override;
  void abandon() noexcept override;

  /// With the GIL: raises the exception that ended the call, if one did.
  void rethrow();

 private:
  Expected<distributed::Transfer> begin(const char* method, int peer, int tag,
                                        std::span<std::byte> data);
  Status failed(const nanobind::python_error& error);

  nanobind::object link_;
  int rank_, size_;
  std::map<distributed::Transfer, nanobind::object> open_;
  distributed::Transfer next_ = 0;
  nanobind::object raised_;
};

}  // namespace regard::python
