#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "regard/status.h"

namespace regard::distributed {

using Deadline = std::chrono::steady_clock::time_point;

/// A send or receive that has begun.
using Ticket = std::uint64_t;

/// What attention over ranks needs of a transport: messages of bytes in host memory. One thread of
/// each rank uses it at a time. After an error it is of no further use.
///
/// Functions return an error, which names the other rank, where that rank has ended or the message
/// has not arrived by the deadline; they never wait longer.
class Communicator {
 public:
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Begins to send; the bytes must stay as they are until wait(). Messages to one rank with one
  /// tag arrive in the order in which they were sent. 0 <= tag < 16; bytes are at most 2^31 - 1.
  virtual Expected<Ticket> isend(int peer, int tag, std::span<const std::byte> bytes) = 0;
  /// Begins to receive a message of exactly that many bytes.
  virtual Expected<Ticket> irecv(int peer, int tag, std::span<std::byte> bytes) = 0;
  /// Returns once the message was sent or received. Each ticket is given once.
  virtual Status wait(Ticket ticket, Deadline deadline) = 0;

  /// all[r] becomes the bytes of rank r, which may differ in length. By default two rounds of
  /// messages to every rank: lengths, then bytes.
  virtual Status all_gather(std::span<const std::byte> own,
                            std::vector<std::vector<std::byte>>* all, Deadline deadline);
  /// Sends outgoing[r] to rank r and receives incoming[r] from it. Lengths are known to both; empty
  /// ones are no message. By default a message to every rank.
  virtual Status all_to_all(const std::vector<std::span<const std::byte>>& outgoing,
                            const std::vector<std::span<std::byte>>& incoming, Deadline deadline);
};

}  // namespace regard::distributed
