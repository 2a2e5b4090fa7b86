#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ranks.h"
#include "tests/support/allocations.h"

// Ranks that end, stop, are late, or run out of memory.

namespace regard {
namespace {

using distributed::Algorithm;
using distributed::Fault;
using test::Problem;

/// Receives nothing, and counts how often it is abandoned.
class SilentCommunicator final : public distributed::Communicator {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 2; }
  Expected<distributed::Transfer> isend(int, int, std::span<const std::byte>) override {
    return distributed::Transfer{1};
  }
  Expected<distributed::Transfer> irecv(int, int, std::span<std::byte>) override {
    return distributed::Transfer{2};
  }
  Status wait(distributed::Transfer, distributed::Clock::time_point) override { return {}; }
  void abandon() noexcept override { ++abandoned; }

  int abandoned = 0;
};

TEST(Faults, TransfersEndBeforeTheirBuffersDo) {
  SilentCommunicator communicator;
  distributed::Messages messages(communicator, {}, "test");
  {
    std::vector<std::byte> buffer(8);
    const distributed::TransferGuard guard(messages, 5);
    {  // of another tag
      const distributed::TransferGuard other(messages, 6);
      EXPECT_TRUE(messages.receive(1, 5, buffer, "step").ok());
    }
    EXPECT_EQ(communicator.abandoned, 0);
  }
  EXPECT_EQ(communicator.abandoned, 1);
  {
    std::vector<std::byte> buffer(8);
    const distributed::TransferGuard guard(messages, 5);
    EXPECT_TRUE(messages.receive(1, 5, buffer, "step").ok());
    EXPECT_TRUE(messages.wait(5).ok());
  }
  EXPECT_EQ(communicator.abandoned, 1);
}

/// Calls at once that wait for time-outs most of the time.
void side_by_side(int count, const std::function<void(int)>& f) { test::on_ranks(count, f); }

/// Whether a call failed whose fault, ranks and algorithm are drawn from `seed`.
bool fails_with_a_fault(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  Problem p;
  p.sq = p.skv = 24;
  p.hq = p.hkv = 4;
  p.d = p.dv = 8;
  auto options = test::options_of(p);
  options.algorithm = seed % 2 == 0 ? Algorithm::kP2p : Algorithm::kA2a;
  const int ranks = 2 + static_cast<int>(random() % 3);
  Fault fault;
  fault.kind = static_cast<Fault::Kind>(1 + seed % 3);
  // A short delay must be no error, on a busy machine neither.
  const bool is_delay = fault.kind == Fault::Kind::kDelay;
  options.limits.timeout = std::chrono::milliseconds(is_delay ? 4000 : 150);
  fault.rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
  fault.at = static_cast<std::int64_t>(random() % 14);
  fault.delay = std::chrono::milliseconds(fault.kind == Fault::Kind::kDelay ? 10 : 300);
  test::Tensors whole = test::make_whole(p);
  const auto begin = distributed::Clock::now();
  const test::RankRun run = test::run_on_ranks(p, options, ranks, &whole, true, fault);
  EXPECT_LT(distributed::Clock::now() - begin, std::chrono::seconds(5)) << seed;
  if (run.status.ok()) return false;
  EXPECT_NE(fault.kind, Fault::Kind::kDelay) << run.status.to_string();
  for (std::size_t r = 0; r < run.all.size(); ++r) {
    if (run.all[r].ok()) continue;
    EXPECT_NE(run.all[r].message().find("step "), std::string::npos) << run.all[r].message();
    EXPECT_NE(run.all[r].message().find("rank " + std::to_string(r) + ", step "), std::string::npos)
        << run.all[r].message();
  }
  return true;
}

TEST(Faults, NoRankHangs) {
  constexpr int kAtOnce = 4;
  std::atomic<int> failed = 0;
  side_by_side(kAtOnce, [&](int first) {
    for (int seed = first; seed < 200; seed += kAtOnce) failed += fails_with_a_fault(seed);
  });
  EXPECT_GT(failed, 60);
}

/// What each of three ranks returns where the n-th allocation of rank 1 fails; empty where it makes
/// fewer.
std::vector<Status> run_short_of_memory(Algorithm algorithm, std::uint64_t n) {
  constexpr int kRanks = 3;
  Problem p;
  p.sq = p.skv = 24;
  p.hq = p.hkv = 6;
  p.d = p.dv = 8;
  auto options = test::options_of(p);
  options.algorithm = algorithm;
  options.limits.timeout = std::chrono::milliseconds(300);
  distributed::ThreadGroup group(kRanks);
  std::vector<Status> statuses(kRanks);
  bool happened = false;
  test::on_ranks(kRanks, [&](int r) {
    Context context;
    check(context.set_concurrency(1));
    const test::Tensors x = test::allocate(p, 8, 8);
    auto& communicator = group.communicator(r);
    const auto plan = distributed::plan(context, communicator, x.request(p, false), options);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    Status& status = statuses[static_cast<std::size_t>(r)];
    std::optional<test::AllocationFailure> failure;
    if (r == 1) failure.emplace(n, test::AllocationFailure::kOne);
    try {
      status = distributed::attention(context, communicator, *plan, x.request(p, false));
    } catch (...) {
      status = Status(StatusCode::kInternal, "an exception left the call");
    }
    if (r == 1) happened = failure->happened();
  });
  if (!happened) statuses.clear();
  return statuses;
}

/// Every third allocation of a call fails in turn.
void run_short_of_memory(Algorithm algorithm) {
  int failed = 0, noticed = 0;
  for (std::uint64_t n = 1;; n += 3) {
    const auto begin = distributed::Clock::now();
    const std::vector<Status> statuses = run_short_of_memory(algorithm, n);
    EXPECT_LT(distributed::Clock::now() - begin, std::chrono::seconds(5)) << n;
    if (statuses.empty()) break;
    if (statuses[1].ok()) continue;  // of what a call can do without
    ++failed;
    EXPECT_TRUE(statuses[1].code() == StatusCode::kOutOfMemory ||
                statuses[1].code() == StatusCode::kWorkspace)
        << n << " " << statuses[1].to_string();
    for (const std::size_t other : {0U, 2U}) {
      if (statuses[other].ok()) continue;  // it had all messages
      ++noticed;
      EXPECT_NE(statuses[other].message().find("step "), std::string::npos)
          << statuses[other].to_string();
    }
  }
  EXPECT_GT(failed, 5);
  EXPECT_GT(noticed, 5);
}

TEST(Faults, MemoryThatRunsOutOnOneRankIsAnErrorWithinTheTimeOut) {
  constexpr Algorithm kAlgorithms[] = {Algorithm::kP2p, Algorithm::kAllGather, Algorithm::kA2a};
  side_by_side(3, [&](int n) { run_short_of_memory(kAlgorithms[n]); });
}

}  // namespace
}  // namespace regard
