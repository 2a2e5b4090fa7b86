#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda/host_block.h"

// The host's block notices what it says it does: each fault is planted once. A kernel that passes
// on it has run.

namespace regard::cuda_test {
namespace {

constexpr int kThreads = 64;
constexpr int kBytes = kThreads * 4;

using Main = std::function<void(const HostBlock&)>;

/// What the runner says of a grid of two blocks; "" when nothing.
std::string fault_of(const Main& main, Order order = Order::kForward) {
  HostRunner run(order);
  try {
    run.run_grid(kThreads, kBytes, 2, main);
  } catch (const HostError& error) {
    return error.what();
  }
  return "";
}

TEST(HostBlock, RunsEveryThreadOfEveryBlock) {
  for (const Order order : {Order::kForward, Order::kReversed, Order::kShuffled}) {
    std::vector<int> ran(5 * kThreads, 0);
    HostRunner run(order);
    run.run_grid(kThreads, kBytes, 5, [&](const HostBlock& block) {
      const auto shared = block.shared<int>(0, kThreads);
      shared[block.thread()] = block.thread();
      block.sync();
      const int other = shared[kThreads - 1 - block.thread()];
      ran[static_cast<std::size_t>(block.index() * kThreads + other)] += 1;
    });
    EXPECT_EQ(ran, std::vector<int>(5 * kThreads, 1));
    EXPECT_EQ(run.counts().launches, 1);
    EXPECT_EQ(run.counts().blocks, 5);
    EXPECT_EQ(run.counts().barriers, 5);
  }
}

TEST(HostBlock, AFewBlocksGoRoundAGridOfMany) {
  std::vector<int> done(10, 0);
  HostRunner run(Order::kForward, 3);
  run.run_grid(kThreads, kBytes, 10, [&](const HostBlock& block) {
    EXPECT_EQ(block.count(), 3);
    for (std::int64_t task = block.index(); task < 10; task += block.count()) {
      if (block.thread() == 0) ++done[static_cast<std::size_t>(task)];
    }
  });
  EXPECT_EQ(done, std::vector<int>(10, 1));
}

TEST(HostBlock, ShufflesWithinAWarp) {
  HostRunner run(Order::kShuffled);
  run.run_grid(kThreads, kBytes, 2, [&](const HostBlock& block) {
    for (int lanes : {1, 16, 31}) {
      EXPECT_EQ(block.shuffle_xor(block.thread(), lanes), block.thread() ^ lanes);
      EXPECT_EQ(block.shuffle_xor(block.thread() * 0.5, lanes), (block.thread() ^ lanes) * 0.5);
    }
  });
  EXPECT_EQ(run.counts().shuffles, 2 * 2 * 6);
}

TEST(HostBlock, NoticesAnIndexOutsideOfAnArray) {
  for (const int index : {-1, 32}) {
    const std::string fault = fault_of([&](const HostBlock& block) {
      const auto shared = block.shared<float>(0, 32);
      if (block.thread() == 0) shared[index] = 1.0f;
    });
    EXPECT_NE(fault.find("of 32 in shared memory"), std::string::npos) << fault;
  }
  const std::string fault = fault_of([](const HostBlock& block) {
    const auto shared = block.shared<float>(0, 32);
    if (block.thread() == 0) store4(shared + 4, 28, cuda::Vec4<float>{});
  });
  EXPECT_NE(fault.find("element 28 of 28"), std::string::npos) << fault;
}

TEST(HostBlock, NoticesAnArrayOutsideOfSharedMemory) {
  const std::string fault =
      fault_of([](const HostBlock& block) { static_cast<void>(block.shared<float>(4, kThreads)); });
  EXPECT_NE(fault.find("bytes of shared memory"), std::string::npos) << fault;
}

TEST(HostBlock, NoticesVectorsThatAreNotAligned) {
  const std::string fault = fault_of([](const HostBlock& block) {
    static_cast<void>(load4(block.shared<float>(0, kThreads), 2));
  });
  EXPECT_NE(fault.find("a vector at byte 8"), std::string::npos) << fault;
}

TEST(HostBlock, NoticesReadsOfWhatNobodyWrote) {
  // Also of what only the block before wrote.
  const std::string fault = fault_of([](const HostBlock& block) {
    const auto shared = block.shared<float>(0, kThreads);
    if (block.index() == 0) shared[block.thread()] = 1.0f;
    block.sync();
    const float value = shared[block.thread()];
    EXPECT_EQ(value, 1.0f);
  });
  EXPECT_NE(fault.find("reads what nobody wrote"), std::string::npos) << fault;
}

TEST(HostBlock, NoticesAMissingBarrierWhateverTheOrder) {
  for (const Order order : {Order::kForward, Order::kReversed, Order::kShuffled}) {
    const std::string after_write = fault_of(
        [](const HostBlock& block) {
          const auto shared = block.shared<int>(0, kThreads);
          shared[block.thread()] = 0;
          block.sync();
          shared[block.thread()] = 1;
          const int other = shared[block.thread() ^ 1];
          EXPECT_GE(other, 0);
        },
        order);
    EXPECT_NE(after_write.find("without a barrier"), std::string::npos) << after_write;
    const std::string after_read = fault_of(
        [](const HostBlock& block) {
          const auto shared = block.shared<int>(0, kThreads);
          shared[block.thread()] = 0;
          block.sync();
          const int first = shared[0];
          shared[block.thread()] = first + 1;
        },
        order);
    EXPECT_NE(after_read.find("without a barrier"), std::string::npos) << after_read;
  }
}

TEST(HostBlock, NoticesThreadsThatNeverArrive) {
  const std::string ended = fault_of([](const HostBlock& block) {
    if (block.thread() != 7) block.sync();
  });
  EXPECT_NE(ended.find("thread 7 has ended"), std::string::npos) << ended;
  const std::string elsewhere = fault_of([](const HostBlock& block) {
    if (block.thread() == 9) {
      block.sync();
    } else {
      block.sync();
    }
  });
  EXPECT_NE(elsewhere.find("is at another barrier"), std::string::npos) << elsewhere;
  const std::string part_of_a_warp = fault_of([](const HostBlock& block) {
    if (block.thread() != 3) block.shuffle_xor(1, 1);
  });
  EXPECT_NE(part_of_a_warp.find("while others wait"), std::string::npos) << part_of_a_warp;
}

}  // namespace
}  // namespace regard::cuda_test
