#include <gtest/gtest.h>

#include <vector>

#include "delayed_communicator.h"
#include "distributed/measure_network.h"
#include "ranks.h"
#include "regard/case.h"

// What a network takes: measured between ranks, and stated in plans.

namespace regard {
namespace {

using distributed::Network;
using distributed::Topology;
using test::Delay;

struct Links {
  int ranks = 2;
  Topology topology;
  Delay within, between;
};

/// What each rank measures over the links.
std::vector<Network> measure(const Links& links) {
  distributed::ThreadGroup group(links.ranks);
  const int of_node = links.topology.ranks == 0 ? links.ranks : links.topology.ranks;
  test::ArrivalTimes times(links.within, links.between, of_node);
  std::vector<Network> measured(static_cast<std::size_t>(links.ranks));
  test::on_ranks(links.ranks, [&](int r) {
    test::DelayedCommunicator communicator(group.communicator(r), times);
    const auto network = distributed::measure_network(communicator, links.topology);
    ASSERT_TRUE(network.ok()) << network.status().to_string();
    measured[static_cast<std::size_t>(r)] = *network;
  });
  return measured;
}

bool is_slower(double latency, const Delay& link) { return latency > 1.5 * link.latency + 3e-3; }

/// Again, up to five times, where a busy machine has delayed a step by more than expect_near()
/// allows.
std::vector<Network> measure_undisturbed(const Links& links) {
  std::vector<Network> measured = measure(links);
  for (int attempt = 1; attempt < 5; ++attempt) {
    const Network& found = measured[0];
    const bool has_nodes = links.topology.nodes > 1;
    const bool is_late = is_slower(found.latency, links.within) ||
                         (has_nodes && is_slower(found.node_latency, links.between));
    if (!is_late) break;
    measured = measure(links);
  }
  return measured;
}

/// Never faster than the link; a busy machine adds some milliseconds to a step.
void expect_near(double latency, double bandwidth, const Delay& link) {
  EXPECT_GE(latency, link.latency);
  EXPECT_FALSE(is_slower(latency, link)) << latency;
  EXPECT_GE(bandwidth, link.bandwidth / 1.6);
  EXPECT_LE(bandwidth, 1.6 * link.bandwidth);
}

TEST(MeasureNetwork, IsThatOfTheLinks) {
  Links links;
  links.ranks = 3;
  links.within = {5e-3, 20e6};
  const std::vector<Network> measured = measure_undisturbed(links);
  for (const Network& network : measured) {
    EXPECT_EQ(network, measured[0]);
    EXPECT_EQ(network.source, distributed::NetworkSource::kMeasured);
  }
  expect_near(measured[0].latency, measured[0].bandwidth, links.within);
  EXPECT_EQ(measured[0].node_latency, measured[0].latency);
  EXPECT_EQ(measured[0].node_bandwidth, measured[0].bandwidth);
}

TEST(MeasureNetwork, LinksBetweenNodesAreTheirOwn) {
  Links links;
  links.ranks = 4;
  links.topology = {2, 2};
  links.within = {2e-3, 50e6};
  links.between = {12e-3, 15e6};
  const std::vector<Network> measured = measure_undisturbed(links);
  for (const Network& network : measured) EXPECT_EQ(network, measured[0]);
  expect_near(measured[0].latency, measured[0].bandwidth, links.within);
  expect_near(measured[0].node_latency, measured[0].node_bandwidth, links.between);
}

TEST(MeasureNetwork, OneRankHasNothingToMeasure) {
  distributed::ThreadGroup group(1);
  const auto network = distributed::measure_network(group.communicator(0), {});
  EXPECT_EQ(network.value(), Network{});
  EXPECT_EQ(distributed::measure_network(group.communicator(0), {2, 3}).status().message(),
            "[measure_network] topology (2x3) must have 1 ranks");
}

TEST(MeasureNetwork, ARankThatEndsIsAnError) {
  distributed::Fault fault;
  fault.kind = distributed::Fault::Kind::kEnd;
  fault.rank = 1;
  fault.at = 20;
  distributed::ThreadGroup group(3, fault);
  std::vector<Status> statuses(3);
  test::on_ranks(3, [&](int r) {
    distributed::MessageLimits limits;
    limits.timeout = std::chrono::milliseconds(5000);
    auto& communicator = group.communicator(r);
    statuses[static_cast<std::size_t>(r)] =
        distributed::measure_network(communicator, {}, limits).status();
    communicator.abandon();
  });
  for (const Status& s : statuses) {
    EXPECT_NE(s.message().find("step network: measuring: no message"), std::string::npos)
        << s.message();
  }
}

TEST(Plan, StatesItsNetwork) {
  const AttentionParams p = parse_case("hq8 sq4096 d64 causal diag=tl f32").value().params;
  distributed::Options options;
  options.seqlen_q = options.seqlen_kv = 4096;
  const auto text_with = [&](const Network& network, const Topology& topology) {
    options.network = network;
    options.topology = topology;
    const std::string text = distributed::explain(p, options, 4).value().explain();
    const std::size_t begin = text.find('\n') + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(text_with({}, {}), "network 2 us a message, 10 GB/s (assumed)");
  const Network given{1e-6, 20e9, 5e-6, 1.25e9, distributed::NetworkSource::kGiven};
  EXPECT_EQ(text_with(given, {2, 2}),
            "network 1 us a message and 20 GB/s within a node, 5 us and 1.25 GB/s between nodes "
            "(given)");
  EXPECT_EQ(text_with(given, {4, 1}), "network 5 us a message, 1.25 GB/s (given)");
}

TEST(Plan, TheNetworkDecidesTheAlgorithm) {
  const AttentionParams p = parse_case("hq8 hkv8 sq1024 d64 f32").value().params;
  distributed::Options options;
  options.seqlen_q = options.seqlen_kv = 1024;
  const auto seconds_of = [&](distributed::Algorithm algorithm) {
    options.algorithm = algorithm;
    return distributed::explain(p, options, 4).value().chosen().seconds;
  };
  // A message costs a second: a ring has 3 of them a rank, all-to-all 6.
  options.network = {1.0, 1e12, 1.0, 1e12, distributed::NetworkSource::kGiven};
  EXPECT_LT(seconds_of(distributed::Algorithm::kP2p), seconds_of(distributed::Algorithm::kA2a));
  // Within one node links between nodes decide nothing; between nodes they do.
  options.network = {1e-6, 1e12, 1.0, 1e12, distributed::NetworkSource::kGiven};
  EXPECT_LT(seconds_of(distributed::Algorithm::kA2a), 1.0);
  options.topology = {2, 2};
  EXPECT_GT(seconds_of(distributed::Algorithm::kA2a), 1.0);
}

}  // namespace
}  // namespace regard
