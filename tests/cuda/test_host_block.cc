#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
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

TEST(HostBlock, NoticesReadsOfUnwrittenMemory) {
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

// ---- what comes with compute capability 8.0

TEST(HostBlock, LogsOncePerDistinctDecision) {
  HostRunner run(Order::kShuffled);
  run.run_grid(kThreads, kBytes, 2, [&](const HostBlock& block) {
    EXPECT_FALSE(block.sync_or(false));
    EXPECT_TRUE(block.sync_or(block.thread() == 63));
    EXPECT_FALSE(block.sync_or(false));
  });
  EXPECT_EQ(run.counts().barriers, 2 * 3);
}

alignas(16) constexpr std::uint16_t kSource[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

TEST(HostBlock, CopiesArriveWhenTheyAreWaitedFor) {
  HostRunner run;
  run.run_grid(32, 32 * 16, 1, [&](const HostBlock& block) {
    const auto shared = block.shared<std::uint16_t>(0, 32 * 8);
    const int at = block.thread() * 8;
    block.copy_async(shared, at, block.thread() == 3 ? nullptr : kSource);
    EXPECT_EQ(shared[at], 0xffff);
    block.wait_copies();
    EXPECT_EQ(shared[at + 3], block.thread() == 3 ? 0 : 4);
    block.sync();
    EXPECT_EQ(shared[(at + 8) % 256 + 7], block.thread() == 2 ? 0 : 8);
  });
  const auto copy = [](int at, int from, bool waits) {
    return fault_of([=](const HostBlock& block) {
      const auto shared = block.shared<std::uint16_t>(0, 32);
      if (block.thread() == 0) block.copy_async(shared, at, kSource + from);
      if (waits) block.wait_copies();
    });
  };
  EXPECT_EQ(copy(8, 8, true), "");
  EXPECT_NE(copy(4, 0, true).find("a vector at byte 8"), std::string::npos);
  EXPECT_NE(copy(0, 4, true).find("no multiple"), std::string::npos);
  EXPECT_NE(copy(0, 0, false).find("ended before its copies"), std::string::npos);
  const std::string unordered = fault_of([](const HostBlock& block) {
    const auto shared = block.shared<std::uint16_t>(0, 32);
    if (block.thread() == 0) block.copy_async(shared, 0, kSource);
    block.sync();
    block.wait_copies();  // what it brings others may read behind a barrier alone
    const std::uint16_t first = shared[0];
    EXPECT_EQ(first, 1);
  });
  EXPECT_NE(unordered.find("without a barrier"), std::string::npos) << unordered;
}

// a [16][16] and b [8][16], the latter by its columns, are loaded as kernels load them.
TEST(HostBlock, MultipliesMatricesOfFragments) {
  constexpr int kB = 16 * 16;
  const auto a_of = [](int r, int k) { return static_cast<float>((r * 5 + k * 3) % 7 - 3); };
  const auto b_of = [](int k, int c) { return static_cast<float>((k * 2 + c * 9) % 11 - 5); };
  for (const bool transposed : {false, true}) {
    HostRunner run(Order::kReversed);
    std::atomic<int> products = 0;
    run.run_grid(32, 2 * (kB + 16 * 16), 1, [&](const HostBlock& block) {
      const auto a = block.shared<std::uint16_t>(0, kB);
      const auto b = block.shared<std::uint16_t>(2 * kB, 16 * 16);
      const int lane = block.thread(), row = lane % 16, half = lane / 16 * 8;
      for (int x = 0; x < 8; ++x) {
        a[row * 16 + half + x] = problem::to_f16(a_of(row, half + x));
        const float of_b = transposed ? b_of(row, half + x) : b_of(half + x, row);
        b[row * 16 + half + x] = problem::to_f16(of_b);
      }
      block.sync();
      // Matrices of the left operand: rows, rows + 8, and both of columns + 8.
      std::uint32_t left[4], right[4];
      block.load_matrices(a, lane % 16 * 16 + lane / 16 * 8, left);
      if (transposed) {
        block.load_transposed(b, lane % 16 * 16 + lane / 16 * 8, right);
      } else {
        block.load_matrices(b, (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8, right);
      }
      const std::uint32_t high[2] = {right[2], right[3]};
      float c[4] = {1.0f, 2.0f, 3.0f, 4.0f};
      block.multiply_add<problem::Element::kF16>(left, high, c);
      for (int x = 0; x < 4; ++x) {
        float expected = static_cast<float>(x + 1);
        for (int k = 0; k < 16; ++k) {
          expected += a_of(lane / 4 + x / 2 * 8, k) * b_of(k, 8 + lane % 4 * 2 + x % 2);
        }
        EXPECT_EQ(c[x], expected) << lane << ' ' << x;
        ++products;
      }
    });
    EXPECT_EQ(products, 128);
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

#if defined(__SANITIZE_THREAD__)

/// Dies as a test does in which ThreadSanitizer has seen something.
void run_for_races(Races races, const Main& main) {
  HostRunner run(Order::kShuffled, 1 << 30, races);
  run.run_grid(kThreads, kBytes, 3, main);
  std::exit(0);
}

TEST(HostBlockDeathTest, NoticesRacesInGlobalMemory) {
  std::vector<int> memory(3 * kThreads, 0);
  const auto at = [&](std::int64_t index) { return &memory[static_cast<std::size_t>(index)]; };
  const auto own = [](const HostBlock& block) { return block.index() * kThreads + block.thread(); };
  const Main ordered = [&](const HostBlock& block) {
    *at(own(block)) = 1;
    block.sync();
    *at(own(block) ^ 1) += 1;
  };
  const Main of_threads = [&](const HostBlock& block) {
    *at(own(block)) = 1;
    *at(own(block) ^ 1) += 1;
  };
  const Main of_blocks = [&](const HostBlock& block) {
    block.sync();
    if (block.thread() == block.index()) *at(7) += 1;
  };
  // What a shuffle orders is the lanes' steps, not what they did in memory.
  const Main over_a_shuffle = [&](const HostBlock& block) {
    *at(own(block)) = 1;
    block.shuffle_xor(1, 1);
    *at(own(block) ^ 1) += 1;
  };
  const auto clean = testing::ExitedWithCode(0), racy = testing::ExitedWithCode(66);
  for (const Races races : {Races::kOfThreads, Races::kOfBlocks}) {
    EXPECT_EXIT(run_for_races(races, ordered), clean, "");
  }
  EXPECT_EXIT(run_for_races(Races::kOfThreads, of_threads), racy, "data race");
  EXPECT_EXIT(run_for_races(Races::kOfThreads, over_a_shuffle), racy, "data race");
  EXPECT_EXIT(run_for_races(Races::kOfBlocks, of_blocks), racy, "data race");
}

#endif

}  // namespace
}  // namespace regard::cuda_test
