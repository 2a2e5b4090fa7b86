#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "delayed_communicator.h"
#include "ranks.h"

// When ranks compute and when they wait, of a network that is faster or slower than computing.

namespace regard {
namespace {

using distributed::Activity;
using distributed::Algorithm;
using distributed::CallRecord;

constexpr double kComputing = 40e-3;  // seconds of a step at least

/// Runs tasks on the calling thread, and takes a step's time without a core: ranks share those.
class SlowExecutor final : public Executor {
 public:
  void run(int workers, Task task, void* state) override {
    for (int worker = 0; worker < workers; ++worker) task(state, worker);
    std::this_thread::sleep_for(std::chrono::duration<double>(kComputing));
  }
};

/// A forward of three ranks whose messages arrive `latency` seconds after they were sent.
std::vector<CallRecord> run(Algorithm algorithm, double latency, bool has_activities = true) {
  constexpr int kRanks = 3;
  test::Problem p;
  p.hq = p.hkv = 6;
  p.sq = p.skv = 3 * 256;
  p.d = p.dv = 64;
  p.dtype = Dtype::kF32;
  auto options = test::options_of(p);
  options.algorithm = algorithm;
  distributed::ThreadGroup group(kRanks);
  test::ArrivalTimes times({latency, 1e12}, {}, kRanks);
  std::vector<CallRecord> records(kRanks);
  test::on_ranks(kRanks, [&](int r) {
    test::DelayedCommunicator communicator(group.communicator(r), times);
    const test::Tensors x = test::allocate(p, 256, 256);
    Context context;
    check(context.set_concurrency(2));
    SlowExecutor executor;
    Launch launch;
    launch.executor = &executor;
    const auto plan = distributed::plan(context, communicator, x.request(p, false), options);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    CallRecord& record = records[static_cast<std::size_t>(r)];
    record.has_activities = has_activities;
    const Status s =
        distributed::attention(context, communicator, *plan, x.request(p, false), &record, launch);
    ASSERT_TRUE(s.ok()) << s.to_string();
  });
  return records;
}

double waiting(const CallRecord& record) { return record.seconds(Activity::Kind::kWaiting); }
double computing(const CallRecord& record) { return record.seconds(Activity::Kind::kComputing); }

TEST(Activities, ARingHidesMessagesThatAreShorterThanComputing) {
  for (const CallRecord& record : run(Algorithm::kP2p, kComputing / 4)) {
    EXPECT_GE(computing(record), 3 * kComputing);
    EXPECT_LE(waiting(record), computing(record) / 4);
  }
}

TEST(Activities, LongerMessagesShowAsWaiting) {
  for (const CallRecord& record : run(Algorithm::kP2p, 4 * kComputing)) {
    EXPECT_GE(waiting(record), kComputing);
    EXPECT_GE(waiting(record) + computing(record), 2 * 4 * kComputing);  // two messages in a row
  }
}

TEST(Activities, GatheringWaitsFirst) {
  const std::vector<CallRecord> records = run(Algorithm::kAllGather, 4 * kComputing);
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const CallRecord& record = records[rank];
    ASSERT_EQ(record.activities.size(), 4U);
    EXPECT_EQ(record.activities[0].kind, Activity::Kind::kWaiting);
    EXPECT_EQ(record.activities[0].step, "1 of all_gather");
    EXPECT_EQ(record.activities[1].step, "keys of " + std::to_string(rank));
    EXPECT_GE(waiting(record), kComputing);
  }
}

TEST(Activities, StepsHaveNamesAndOrder) {
  const std::vector<CallRecord> records = run(Algorithm::kP2p, 0.0);
  for (const CallRecord& record : records) {
    std::string steps;
    double end = 0.0;
    for (const Activity& a : record.activities) {
      steps += a.step + " " + to_string(a.kind) + "; ";
      EXPECT_GE(a.begin, end);
      EXPECT_GE(a.end, a.begin);
      end = a.end;
    }
    EXPECT_EQ(steps,
              "1 of p2p computing; 1 of p2p waiting; 2 of p2p computing; 2 of p2p waiting; "
              "3 of p2p computing; ");
    EXPECT_EQ(record.sent.messages, 2);
  }
  for (const CallRecord& record : run(Algorithm::kP2p, 0.0, false)) {
    EXPECT_TRUE(record.activities.empty());
    EXPECT_EQ(record.sent.messages, 2);
  }
}

}  // namespace
}  // namespace regard
