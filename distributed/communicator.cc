#include "distributed/communicator.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "distributed/text.h"

namespace regard::distributed {

Communicator::~Communicator() = default;

Expected<Transfer> Communicator::isend_owned(int to, int tag, std::span<const std::byte> data,
                                             const MemoryOwner&) {
  return isend(to, tag, data);
}

Expected<Transfer> Communicator::irecv_owned(int from, int tag, std::span<std::byte> data,
                                             const MemoryOwner&) {
  return irecv(from, tag, data);
}

ActivityScope::ActivityScope(Messages& messages, Activity::Kind kind, const std::string& step)
    : messages_(messages) {
  if (!messages_.records_activities()) return;
  const std::chrono::duration<double> now = Clock::now() - messages_.began_;
  index_ = messages_.record_->activities.size();
  messages_.record_->activities.push_back({kind, step, now.count(), now.count()});
}

ActivityScope::~ActivityScope() {
  if (!messages_.records_activities()) return;
  const std::chrono::duration<double> now = Clock::now() - messages_.began_;
  messages_.record_->activities[index_].end = now.count();
}

std::int64_t chunks_of(std::int64_t bytes, const MessageLimits& limits) noexcept {
  const std::int64_t most = std::clamp<std::int64_t>(limits.max_bytes, 1, INT32_MAX);
  return bytes / most + (bytes % most != 0 ? 1 : 0);
}

const char* to_string(Activity::Kind kind) noexcept {
  return kind == Activity::Kind::kComputing ? "computing" : "waiting";
}

double CallRecord::seconds(Activity::Kind kind) const noexcept {
  double sum = 0.0;
  for (const Activity& a : activities) sum += a.kind == kind ? a.end - a.begin : 0.0;
  return sum;
}

Messages::Messages(Communicator& communicator, const MessageLimits& limits, const char* where,
                   CallRecord* record)
    : communicator_(communicator),
      limits_(limits),
      where_(where),
      record_(record),
      began_(records_activities() ? Clock::now() : Clock::time_point()) {
  limits_.max_bytes = std::clamp<std::int64_t>(limits_.max_bytes, 1, INT32_MAX);
  if (record_ == nullptr) return;
  record_->sent = {};
  record_->activities.clear();
}

Messages::~Messages() { abandon_open(); }

void Messages::abandon_open(int tag) noexcept {
  const auto has_tag = [&](const Open& open) { return tag < 0 || open.tag == tag; };
  if (std::none_of(open_.begin(), open_.end(), has_tag)) return;
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

Status Messages::send(int to, int tag, std::span<const std::byte> data, const std::string& step,
                      const MemoryOwner& owner) {
  const auto most = static_cast<std::size_t>(limits_.max_bytes);
  for (std::size_t at = 0; at < data.size(); at += most) {
    const auto chunk = data.subspan(at, std::min(most, data.size() - at));
    Expected<Transfer> transfer = owner ? communicator_.isend_owned(to, tag, chunk, owner)
                                        : communicator_.isend(to, tag, chunk);
    if (!transfer.ok()) return fail(to, step, transfer.status());
    open_.push_back({*transfer, tag, to, step});
    if (record_ == nullptr) continue;
    record_->sent.messages += 1;
    record_->sent.bytes += static_cast<std::int64_t>(chunk.size());
  }
  return {};
}

Status Messages::receive(int from, int tag, std::span<std::byte> data, const std::string& step,
                         const MemoryOwner& owner) {
  const auto most = static_cast<std::size_t>(limits_.max_bytes);
  for (std::size_t at = 0; at < data.size(); at += most) {
    const auto chunk = data.subspan(at, std::min(most, data.size() - at));
    Expected<Transfer> transfer = owner ? communicator_.irecv_owned(from, tag, chunk, owner)
                                        : communicator_.irecv(from, tag, chunk);
    if (!transfer.ok()) return fail(from, step, transfer.status());
    open_.push_back({*transfer, tag, from, step});
  }
  return {};
}

Status Messages::wait(int tag) {
  const Clock::time_point deadline = Clock::now() + limits_.timeout;
  const auto has_tag = [&](const Open& open) { return tag < 0 || open.tag == tag; };
  const auto first = std::find_if(open_.begin(), open_.end(), has_tag);
  if (first == open_.end()) return {};
  const ActivityScope waiting(*this, Activity::Kind::kWaiting, first->step);
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

Status Messages::all_gather(const std::vector<std::span<std::byte>>& data, const std::string& step,
                            int tag) {
  const auto own = static_cast<std::size_t>(rank());
  std::vector<std::span<const std::byte>> from(data.size(), data[own]);
  from[own] = {};
  std::vector<std::span<std::byte>> to = data;
  to[own] = {};
  return all_to_all(from, to, step, tag);
}

Status Messages::all_to_all(const std::vector<std::span<const std::byte>>& from,
                            const std::vector<std::span<std::byte>>& to, const std::string& step,
                            int tag, const MemoryOwner& owner) {
  const TransferGuard guard(*this, tag);
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
    if (Status s = receive(static_cast<int>(r), tag, to[r], step, owner); !s.ok()) return s;
  }
  for (std::size_t x = 1; x < ranks; ++x) {
    const std::size_t r = (own + x) % ranks;
    if (Status s = send(static_cast<int>(r), tag, from[r], step, owner); !s.ok()) return s;
  }
  return wait(tag);
}

}  // namespace regard::distributed
