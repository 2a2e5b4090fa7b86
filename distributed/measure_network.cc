#include "distributed/measure_network.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "distributed/text.h"

namespace regard::distributed {
namespace {

constexpr const char* kMeasureNetwork = "measure_network";
constexpr const char* kStep = "network: measuring";
constexpr int kTag = 3;
constexpr std::size_t kShort = 64, kLong = std::size_t{1} << 20;  // bytes
constexpr int kShortTurns = 16, kLongTurns = 5;

struct Neighbours {
  int to, from;
};

/// Seconds of one rank's steps; 0: not measured.
struct Steps {
  double of_short = 0.0, of_long = 0.0;
};

/// Seconds until a message of `sent.size()` bytes and its short answer are there, while every rank
/// sends one. Without an answer a rank ahead of its neighbour would find the message waiting.
Status measure_turn(Messages* messages, const Neighbours& other, std::span<std::byte> sent,
                    std::span<std::byte> arrived, double* seconds) {
  const Clock::time_point begin = Clock::now();
  if (Status s = messages->receive(other.from, kTag, arrived, kStep); !s.ok()) return s;
  if (Status s = messages->send(other.to, kTag, sent, kStep); !s.ok()) return s;
  if (Status s = messages->wait(kTag); !s.ok()) return s;
  if (Status s = messages->receive(other.to, kTag, arrived.first(kShort), kStep); !s.ok()) return s;
  if (Status s = messages->send(other.from, kTag, sent.first(kShort), kStep); !s.ok()) return s;
  if (Status s = messages->wait(kTag); !s.ok()) return s;
  *seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return {};
}

/// The median of `turns`. The first turn opens connections and is left out.
Status measure_turns(Messages* messages, const Neighbours& other, std::size_t bytes, int turns,
                     double* seconds) {
  std::vector<std::byte> sent(bytes), arrived(bytes);
  const TransferGuard guard(*messages, kTag);
  std::vector<double> times(static_cast<std::size_t>(turns) + 1);
  for (double& time : times) {
    if (Status s = measure_turn(messages, other, sent, arrived, &time); !s.ok()) return s;
  }
  const auto middle = times.begin() + 1 + turns / 2;
  std::nth_element(times.begin() + 1, middle, times.end());
  *seconds = *middle;
  return {};
}

Status measure_steps(Messages* messages, const Neighbours& other, std::size_t bytes, Steps* steps) {
  double two_short = 0.0, long_and_short = 0.0;
  if (Status s = measure_turns(messages, other, kShort, kShortTurns, &two_short); !s.ok()) return s;
  if (Status s = measure_turns(messages, other, bytes, kLongTurns, &long_and_short); !s.ok()) {
    return s;
  }
  steps->of_short = two_short / 2;
  steps->of_long = std::max(long_and_short - steps->of_short, steps->of_short);
  return {};
}

/// Bytes a second, of what a long message takes beyond a short one.
double bandwidth_of(const Steps& steps, std::size_t bytes) {
  const double moved = std::max(steps.of_long - steps.of_short, steps.of_long / 16);
  return static_cast<double>(bytes) / std::max(moved, 1e-9);
}

}  // namespace

Expected<Network> measure_network(Communicator& communicator, const Topology& topology,
                                  const MessageLimits& limits) try {
  const int ranks = communicator.size(), rank = communicator.rank();
  const Topology t = topology.ranks == 0 ? Topology{1, ranks} : topology;
  if (t.nodes < 1 || t.ranks < 1 || std::int64_t{t.nodes} * t.ranks != ranks) {
    return invalid(kMeasureNetwork, "topology (", t.nodes, "x", t.ranks, ") must have ", ranks,
                   " ranks");
  }
  if (ranks == 1) return Network{};
  Messages messages(communicator, limits, kMeasureNetwork);
  const auto bytes = static_cast<std::size_t>(
      std::clamp<std::int64_t>(limits.max_bytes, kShort, std::int64_t{kLong}));
  using BothSteps = std::array<Steps, 2>;  // within a node, between nodes
  std::vector<BothSteps> all(static_cast<std::size_t>(ranks));
  BothSteps& own = all[static_cast<std::size_t>(rank)];
  const int node = rank / t.ranks, place = rank % t.ranks;
  if (t.ranks > 1) {
    const int first = node * t.ranks;
    const Neighbours in_node{first + (place + 1) % t.ranks,
                             first + (place + t.ranks - 1) % t.ranks};
    if (Status s = measure_steps(&messages, in_node, bytes, &own[0]); !s.ok()) return s;
  }
  if (t.nodes > 1) {
    const Neighbours between{(rank + t.ranks) % ranks, (rank + ranks - t.ranks) % ranks};
    if (Status s = measure_steps(&messages, between, bytes, &own[1]); !s.ok()) return s;
  }
  std::vector<std::span<std::byte>> spans;
  for (BothSteps& of_rank : all) spans.push_back(std::as_writable_bytes(std::span(of_rank)));
  if (Status s = messages.all_gather(spans, "network: times", kTag); !s.ok()) return s;
  BothSteps slowest;
  for (const BothSteps& of_rank : all) {
    for (std::size_t x = 0; x < slowest.size(); ++x) {
      slowest[x].of_short = std::max(slowest[x].of_short, of_rank[x].of_short);
      slowest[x].of_long = std::max(slowest[x].of_long, of_rank[x].of_long);
    }
  }
  if (t.ranks == 1) slowest[0] = slowest[1];
  if (t.nodes == 1) slowest[1] = slowest[0];
  Network network;
  network.latency = slowest[0].of_short;
  network.bandwidth = bandwidth_of(slowest[0], bytes);
  network.node_latency = slowest[1].of_short;
  network.node_bandwidth = bandwidth_of(slowest[1], bytes);
  network.source = NetworkSource::kMeasured;
  return network;
} catch (const std::bad_alloc&) {
  return Status::out_of_memory(kMeasureNetwork);
}

}  // namespace regard::distributed
