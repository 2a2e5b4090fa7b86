#include "distributed/communicator.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "distributed/text.h"

namespace regard::distributed {

Communicator::~Communicator() = default;

std::int64_t chunks_of(std::int64_t bytes, const MessageLimits& limits) noexcept {
  const std::int64_t most = std::clamp<std::int64_t>(limits.max_bytes, 1, INT32_MAX);
  return bytes / most + (bytes % most != 0 ? 1 : 0);
}

Messages::Messages(Communicator& communicator, const MessageLimits& limits, const char* where)
    : communicator_(communicator), limits_(limits), where_(where) {
  limits_.max_bytes = std::clamp<std::int64_t>(limits_.max_bytes, 1, INT32_MAX);
}

Messages::~Messages() { abandon_open(); }

void Messages::abandon_open() noexcept {
  if (open_.empty()) return;
  communicator_.abandon();
  open_.clear();
}

Status Messages::fail(int other, const std::string& step, const Status& status) const {
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g", static_cast<double>(limits_.timeout.count()) / 1e3);
  return failure(status.code(), where_, "rank ", rank(), ", step ", step,
                 ": no message to or from rank ", other, "; it ended, or took longer than ", limit,
                 " s: ", status.message());
}

Status Messages::send(int to, int tag, std::span<const std::byte> data, const std::string& step) {
  const auto most = static_cast<std::size_t>(limits_.max_bytes);
  for (std::size_t at = 0; at < data.size(); at += most) {
    const auto chunk = data.subspan(at, std::min(most, data.size() - at));
    Expected<Transfer> transfer = communicator_.isend(to, tag, chunk);
    if (!transfer.ok()) return fail(to, step, transfer.status());
    open_.push_back({*transfer, tag, to, step});
    sent_.messages += 1;
    sent_.bytes += static_cast<std::int64_t>(chunk.size());
  }
  return {};
}

Status Messages::receive(int from, int tag, std::span<std::byte> data, const std::string& step) {
  const auto most = static_cast<std::size_t>(limits_.max_bytes);
  for (std::size_t at = 0; at < data.size(); at += most) {
    const auto chunk = data.subspan(at, std::min(most, data.size() - at));
    Expected<Transfer> transfer = communicator_.irecv(from, tag, chunk);
    if (!transfer.ok()) return fail(from, step, transfer.status());
    open_.push_back({*transfer, tag, from, step});
  }
  return {};
}

Status Messages::wait(int tag) {
  const Clock::time_point deadline = Clock::now() + limits_.timeout;
  const auto has_tag = [&](const Open& open) { return tag < 0 || open.tag == tag; };
  for (const Open& open : open_) {
    if (!has_tag(open)) continue;
    const Status status = communicator_.wait(open.transfer, deadline);
    if (status.ok()) continue;
    const Status failed = fail(open.other, open.step, status);
    abandon_open();
    return failed;
  }
  std::erase_if(open_, has_tag);
  return {};
}

Status Messages::all_gather(const std::vector<std::span<std::byte>>& data,
                            const std::string& step) {
  const auto own = static_cast<std::size_t>(rank());
  std::vector<std::span<const std::byte>> from(data.size(), data[own]);
  from[own] = {};
  std::vector<std::span<std::byte>> to = data;
  to[own] = {};
  return all_to_all(from, to, step);
}

Status Messages::all_to_all(const std::vector<std::span<const std::byte>>& from,
                            const std::vector<std::span<std::byte>>& to, const std::string& step) {
  constexpr int kTag = 1;
  const TransferGuard guard(*this);
  const auto own = static_cast<std::size_t>(rank());
  const auto ranks = static_cast<std::size_t>(size());
  if (from.size() != ranks || to.size() != ranks) {
    return failure(StatusCode::kInternal, where_, "parts (", from.size(), ", ", to.size(),
                   ") must be ", ranks, ", one for each rank");
  }
  if (!from[own].empty() && from[own].data() != to[own].data()) {
    std::memcpy(to[own].data(), from[own].data(), std::min(from[own].size(), to[own].size()));
  }
  // Each rank begins with its neighbour, so that not all of them send to rank 0 at first.
  for (std::size_t x = 1; x < ranks; ++x) {
    const std::size_t r = (own + ranks - x) % ranks;
    if (Status s = receive(static_cast<int>(r), kTag, to[r], step); !s.ok()) return s;
  }
  for (std::size_t x = 1; x < ranks; ++x) {
    const std::size_t r = (own + x) % ranks;
    if (Status s = send(static_cast<int>(r), kTag, from[r], step); !s.ok()) return s;
  }
  return wait(kTag);
}

}  // namespace regard::distributed
