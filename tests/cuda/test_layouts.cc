#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "backends/cuda_flash/forward.cuh"
#include "backends/cuda_flash/keys.cuh"
#include "backends/cuda_flash/queries.cuh"
#include "tests/cuda/host_block.h"

// Where FLASH's kernels keep rows in shared memory: each chunk has a place of its own, and no eight
// lanes whose 16 bytes move at once meet in a bank. The kernels' own steps say where.

namespace regard {
namespace {

using cuda_flash::Kind;

/// A thread that notes what it would copy and load.
class NotingBlock {
 public:
  NotingBlock(int thread, std::vector<int>* at) : thread_(thread), at_(at) {}
  int thread() const { return thread_; }
  void copy_async(int, int at, const void*) const { at_->push_back(at); }
  void load_matrices(int, int at, std::uint32_t (&)[4]) const { at_->push_back(at); }
  void load_transposed(int, int at, std::uint32_t (&)[4]) const { at_->push_back(at); }

 private:
  int thread_;
  std::vector<int>* at_;
};

/// What every thread of a block notes, one after another.
template <class F>
std::vector<std::vector<int>> places_of(int threads, F f) {
  std::vector<std::vector<int>> all(static_cast<std::size_t>(threads));
  for (int n = 0; n < threads; ++n) f(NotingBlock(n, &all[static_cast<std::size_t>(n)]));
  return all;
}

/// Eight neighbouring lanes reach eight different groups of four banks in every step.
void expect_no_conflicts(const std::vector<std::vector<int>>& places, int lanes) {
  for (std::size_t step = 0; step < places.front().size(); ++step) {
    for (int first = 0; first + 8 <= lanes; first += 8) {
      std::set<int> groups;
      for (int lane = first; lane < first + 8; ++lane) {
        groups.insert(places[static_cast<std::size_t>(lane)][step] / 8 % 8);
      }
      EXPECT_EQ(groups.size(), 8U) << "step " << step << ", lane " << first;
    }
  }
}

template <int kDims, int kThreads>
void expect_copies_cover_rows() {
  constexpr int kRows = 32;
  static char data[2 * kRows * kDims];
  const cuda::DenseRows rows{problem::Element::kBf16, kDims, data, 2 * kDims, kRows};
  const auto places = places_of(kThreads, [&](const NotingBlock& block) {
    cuda::begin_rows<kRows, kDims, kThreads>(block, rows, 0);
  });
  std::set<int> all;
  int lanes = 0;
  for (const std::vector<int>& of_thread : places) {
    lanes += of_thread.empty() ? 0 : 1;
    for (const int at : of_thread) {
      EXPECT_EQ(at % 8, 0);
      EXPECT_TRUE(at >= 0 && at < kRows * kDims) << at;
      EXPECT_TRUE(all.insert(at).second) << at;
    }
  }
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kRows * kDims / 8));
  expect_no_conflicts(places, lanes);
}

template <int kDims>
void expect_operands_lie_apart() {
  const auto loads = [](auto at, auto load) {
    return places_of(32, [&](const NotingBlock& block) {
      std::uint32_t words[4];
      for (int step = 0; step < kDims / 16; ++step) {
        for (int index = 0; index < 2; ++index) load(block, at(block), index, step, words);
      }
    });
  };
  const auto left = [](const NotingBlock& block) { return cuda::left_at<kDims>(block, 32); };
  const auto right = [](const NotingBlock& block) { return cuda::right_at<kDims>(block); };
  const auto straight = [](const NotingBlock& block, int at, int index, int step, auto& to) {
    cuda::load_step<kDims>(block, 0, at, index, step, to);
  };
  const auto transposed = [](const NotingBlock& block, int at, int index, int step, auto& to) {
    cuda::load_step_transposed<kDims>(block, 0, at, index, step, to);
  };
  const auto of_left = loads(left, straight), of_right = loads(right, straight);
  const auto of_values = loads(left, transposed);
  expect_no_conflicts(of_left, 32);
  expect_no_conflicts(of_right, 32);
  expect_no_conflicts(of_values, 32);
  // And they are the rows and columns of the fragments.
  using Swizzle = cuda::Swizzle<kDims>;
  for (int lane = 0; lane < 32; ++lane) {
    const auto n = static_cast<std::size_t>(lane);
    for (int load = 0; load < kDims / 8; ++load) {
      const int step = load / 2, index = load % 2;
      const int left_row = 32 + index * 16 + lane % 16, left_chunk = step * 2 + lane / 16;
      const int right_row = index * 16 + lane / 16 * 8 + lane % 8;
      const auto at = static_cast<std::size_t>(load);
      EXPECT_EQ(of_left[n][at], Swizzle::at(left_row, left_chunk));
      EXPECT_EQ(of_values[n][at], Swizzle::at(left_row, left_chunk));
      EXPECT_EQ(of_right[n][at], Swizzle::at(right_row, step * 2 + lane / 8 % 2));
    }
  }
}

TEST(FlashLayouts, CopiesCoverRowsAndMeetInNoBank) {
  expect_copies_cover_rows<64, 64>();
  expect_copies_cover_rows<64, 128>();
  expect_copies_cover_rows<64, 256>();
  expect_copies_cover_rows<96, 64>();
  expect_copies_cover_rows<96, 128>();
  expect_copies_cover_rows<96, 256>();
  expect_copies_cover_rows<128, 64>();
  expect_copies_cover_rows<128, 128>();
  expect_copies_cover_rows<128, 256>();
  expect_copies_cover_rows<192, 64>();
  expect_copies_cover_rows<192, 256>();
  expect_copies_cover_rows<256, 64>();
  expect_copies_cover_rows<256, 256>();
}

TEST(FlashLayouts, OperandsMeetInNoBank) {
  expect_operands_lie_apart<64>();
  expect_operands_lie_apart<96>();
  expect_operands_lie_apart<128>();
  expect_operands_lie_apart<192>();
  expect_operands_lie_apart<256>();
}

/// Blocks of so many bytes, and 1 KB more that the driver has of each, fit a multiprocessor of
/// compute capability 8.0 (164 KB, a block 163 KB), and of 8.6 (100 and 99 KB).
template <int kDims, Kind kKind>
void expect_fits(int blocks) {
  constexpr int kKilobyte = 1024, kBytes = cuda_flash::Layout<kDims, kKind>::kBytes;
  EXPECT_LE(blocks * (kBytes + kKilobyte), 164 * kKilobyte) << kDims;
  if (kDims <= 128) {
    EXPECT_LE(kBytes, 99 * kKilobyte) << kDims;
  }
}

TEST(FlashLayouts, BlocksFitTheirMultiprocessor) {
  expect_fits<64, Kind::kPlain>(2);
  expect_fits<96, Kind::kPlain>(2);
  expect_fits<128, Kind::kPlain>(2);
  expect_fits<192, Kind::kPlain>(1);
  expect_fits<256, Kind::kPlain>(1);
  expect_fits<64, Kind::kEdited>(2);
  expect_fits<96, Kind::kEdited>(2);
  expect_fits<128, Kind::kEdited>(2);
  expect_fits<192, Kind::kEdited>(1);
  expect_fits<256, Kind::kEdited>(1);
  expect_fits<64, Kind::kSplit>(4);
  expect_fits<96, Kind::kSplit>(3);
  expect_fits<128, Kind::kSplit>(2);
  expect_fits<192, Kind::kSplit>(1);
  expect_fits<256, Kind::kSplit>(1);
  expect_fits<64, Kind::kCodes>(2);
  expect_fits<96, Kind::kCodes>(2);
  expect_fits<128, Kind::kCodes>(1);
  expect_fits<192, Kind::kCodes>(1);
  expect_fits<256, Kind::kCodes>(1);
  expect_fits<64, Kind::kSplitCodes>(4);
  expect_fits<96, Kind::kSplitCodes>(3);
  expect_fits<128, Kind::kSplitCodes>(2);
  expect_fits<192, Kind::kSplitCodes>(1);
  expect_fits<256, Kind::kSplitCodes>(1);
  expect_fits<64, Kind::kGroups>(2);
  expect_fits<96, Kind::kGroups>(2);
  expect_fits<128, Kind::kGroups>(1);
  expect_fits<192, Kind::kGroups>(1);
  expect_fits<256, Kind::kGroups>(1);
  expect_fits<64, Kind::kSplitGroups>(4);
  expect_fits<96, Kind::kSplitGroups>(3);
  expect_fits<128, Kind::kSplitGroups>(2);
  expect_fits<192, Kind::kSplitGroups>(1);
  expect_fits<256, Kind::kSplitGroups>(1);
}

/// The same of the backward's blocks, of which those of up to 96 dims fit 8.6.
template <class Layout>
void expect_grad_fits(int dims, int blocks) {
  constexpr int kKilobyte = 1024;
  EXPECT_LE(blocks * (Layout::kBytes + kKilobyte), 164 * kKilobyte) << dims;
  if (dims <= 96) {
    EXPECT_LE(Layout::kBytes, 99 * kKilobyte) << dims;
  }
}

template <int kDims, bool kEdits>
void expect_backward_fits() {
  expect_grad_fits<cuda_flash::QueriesLayout<kDims, kEdits>>(kDims, kDims == 64 ? 2 : 1);
  expect_grad_fits<cuda_flash::KeysLayout<kDims, kEdits>>(kDims, 1);
}

TEST(FlashLayouts, BlocksOfTheBackwardFitTheirMultiprocessor) {
  expect_backward_fits<64, false>();
  expect_backward_fits<96, false>();
  expect_backward_fits<128, false>();
  expect_backward_fits<192, false>();
  expect_backward_fits<256, false>();
  expect_backward_fits<64, true>();
  expect_backward_fits<96, true>();
  expect_backward_fits<128, true>();
  expect_backward_fits<192, true>();
  expect_backward_fits<256, true>();
}

/// Probabilities that a warp sends: each has a place, which the warp that reads them computes, too,
/// and eight lanes meet in no bank. Nor do numbers of the rows that a lane's columns are of.
template <int kDims, bool kEdits>
void expect_sent_probs_lie_apart() {
  using Kernel = cuda_flash::KeysKernel<problem::Element::kBf16, kDims, kEdits>;
  constexpr int kUnit = cuda_flash::kUnit;
  std::vector<int> unused;
  std::set<int> of_first, of_second;
  for (int m = 0; m < Kernel::kRowBlocks; ++m) {
    for (int n = 0; n < kUnit / 8; ++n) {
      for (int thread = 0; thread < Kernel::kThreads; thread += 8) {
        std::set<int> groups, banks;
        for (int lane = thread; lane < thread + 8; ++lane) {
          const NotingBlock block(lane, &unused);
          const int at = Kernel::sent_at(block, m, n);
          EXPECT_TRUE(at >= 0 && at < Kernel::kKeys * kUnit / 4);
          const bool sends = lane < Kernel::kThreads / 2;
          EXPECT_TRUE((sends ? of_first : of_second).insert(at).second) << at;
          groups.insert(at % 8);
          banks.insert(Kernel::lane_query(block, n, 1) % 8);
        }
        EXPECT_EQ(groups.size(), 8U);
        EXPECT_EQ(banks.size(), 4U);  // of four rows, which two lanes read
      }
    }
  }
  EXPECT_EQ(of_first, of_second);
  EXPECT_EQ(of_first.size(), static_cast<std::size_t>(Kernel::kKeys * kUnit / 4));
}

TEST(FlashLayouts, SentProbabilitiesMeetInNoBank) {
  expect_sent_probs_lie_apart<64, false>();
  expect_sent_probs_lie_apart<128, false>();
  expect_sent_probs_lie_apart<256, false>();
  expect_sent_probs_lie_apart<128, true>();
}

}  // namespace
}  // namespace regard
