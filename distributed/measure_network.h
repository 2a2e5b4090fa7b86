#pragma once

#include "distributed/attention.h"

namespace regard::distributed {

/// Latency and bandwidth between the ranks of the group, the same numbers on every rank: each rank
/// sends to the next one and receives from the one before, all at once as in a ring; within each
/// node of `topology`, then between ranks of the same place in neighbouring nodes. Each message is
/// answered by a short one. The median of several short and several long messages, of the slowest
/// rank. Every rank must call it. A group of one rank has nothing to measure: the default Network.
Expected<Network> measure_network(Communicator& communicator, const Topology& topology,
                                  const MessageLimits& limits = {});

}  // namespace regard::distributed
