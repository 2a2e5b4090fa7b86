#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/append.cuh"
#include "tests/cuda/host_block.h"

// What appends to a cache writes no row that the cache has not, and reads no angle that the tables
// have not: on a device nobody has read lengths, ids and positions before.

namespace regard {
namespace {

using cuda::AppendArgs;
using problem::Element;

/// Four sequences of one kv head and one dim that append two rows each, 1000 and on, to a cache of
/// six rows.
class Append : public testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 4, kNew = 2, kRows = 6, kEntries = 3;

  Append() {
    problem::Problem& p = args_.problem;
    p.batch = kBatch;
    p.num_heads_q = p.num_heads_kv = 1;
    p.seqlen_q = kNew;
    p.seqlen_kv = kRows;
    p.seqlen_new = kNew;
    p.head_dim_qk = p.head_dim_v = 1;
    p.k = view(cache_k_, kRows);
    p.v = view(cache_v_, kRows);
    p.k_new = view(new_k_, kNew);
    p.v_new = view(new_v_, kNew);
    p.lens_kv = {reinterpret_cast<char*>(lens_), {1}, {}, Element::kF32, true};
    args_.kv_entries = kBatch;
    for (int n = 0; n < kBatch * kNew; ++n) {
      new_k_[n] = 1000.0f + static_cast<float>(n);
      new_v_[n] = 2000.0f + static_cast<float>(n);
    }
  }

  static problem::View view(std::vector<float>& data, std::int64_t rows) {
    return {reinterpret_cast<char*>(data.data()), {rows, rows, 1, 1}, {}, Element::kF32, true};
  }

  void run() {
    cuda_test::HostRunner runner;
    cuda::run_append(runner, args_);
  }

  /// Row `row` of the cache holds new row n; all others nothing.
  void expect(const std::vector<int>& owners) {
    for (std::size_t row = 0; row < cache_k_.size(); ++row) {
      const auto n = static_cast<float>(row < owners.size() ? owners[row] : -1);
      EXPECT_EQ(cache_k_[row], n < 0 ? 0.0f : 1000.0f + n) << row;
      EXPECT_EQ(cache_v_[row], n < 0 ? 0.0f : 2000.0f + n) << row;
    }
  }

  // An entry more than there is.
  std::vector<float> cache_k_ = std::vector<float>((kBatch + 1) * kRows),
                     cache_v_ = std::vector<float>((kBatch + 1) * kRows),
                     new_k_ = std::vector<float>(kBatch * kNew),
                     new_v_ = std::vector<float>(kBatch * kNew);
  std::int32_t lens_[kBatch] = {-1, 4, 5, 1000000};
  AppendArgs args_;
};

TEST_F(Append, LengthsAreHeldToTheCache) {
  run();
  expect({1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1, -1, 4});
}

TEST_F(Append, EntriesThatDoNotExistAreNotWritten) {
  std::int32_t entries[kBatch] = {2, -1, 0, 3};
  lens_[0] = lens_[1] = lens_[2] = lens_[3] = 0;
  args_.problem.cache_entries = {reinterpret_cast<char*>(entries), {1}, {}, Element::kF32, true};
  args_.kv_entries = kEntries;
  run();
  expect({4, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1});
}

TEST_F(Append, PagesThatDoNotExistAreNotWritten) {
  const std::int32_t ids[kBatch * kEntries] = {1, -1, 2, 7, 99, 8, 3, 4, 5, 0, 6, -5};  // of 2 rows
  args_.problem.pages = {ids, {kEntries, 1}, 2};
  args_.problem.k = view(cache_k_, 2);
  args_.problem.v = view(cache_v_, 2);
  args_.kv_entries = 8;
  lens_[0] = 1, lens_[1] = 1, lens_[2] = 3, lens_[3] = 4;
  run();
  //      0       1      2       3       4      5      6       7
  expect({-1, -1, -1, 0, -1, -1, -1, -1, -1, 4, 5, -1, -1, -1, -1, 2});
}

TEST_F(Append, PositionsAreHeldToTheTables) {
  problem::Problem& p = args_.problem;
  std::vector<float> rows(kBatch * kNew * 2), caches(kBatch * kRows * 2), rotated(rows.size());
  for (std::size_t n = 0; n < rows.size(); n += 2) rows[n] = 1.0f;
  p.head_dim_qk = 2;
  p.k_new = view(rows, kNew * 2);
  p.k_new.stride[2] = 2;
  p.k = view(caches, kRows * 2);
  p.k.stride[2] = 2;
  p.q = p.k_new;
  args_.rotated = view(rotated, kNew * 2);
  args_.rotated.stride[2] = 2;
  std::vector<float> cos = {0.25f, 0.5f}, sin = {0.75f, 0.125f};
  p.rotary_cos = view(cos, 1);
  p.rotary_sin = view(sin, 1);
  p.rotary_half = 1;
  args_.angles = 2;
  std::int32_t positions[kBatch * kNew] = {-7, 0, 1, 2, 1 << 30, 1, 0, -1};
  p.positions = {reinterpret_cast<char*>(positions), {kNew, 0, 1}, {}, Element::kF32, true};
  run();
  const int taken[] = {0, 0, 1, 1, 1, 1, 0, 0};
  for (std::size_t n = 0; n < 8; ++n) {
    EXPECT_EQ(rotated[2 * n], cos[static_cast<std::size_t>(taken[n])]) << n;
    EXPECT_EQ(rotated[2 * n + 1], sin[static_cast<std::size_t>(taken[n])]) << n;
  }
  // Without positions a row has that of its place, and rows without a place change nothing.
  p.positions = {};
  std::vector<float> more_cos = {0, 1, 2, 3, 4, 5, 6}, more_sin(7);
  p.rotary_cos = view(more_cos, 1);
  p.rotary_sin = view(more_sin, 1);
  args_.angles = 7;
  caches.assign(caches.size(), 0.0f);
  run();
  const float written[kBatch][kRows] = {{0}, {0, 0, 0, 0, 4, 5}, {0, 0, 0, 0, 0, 5}, {0}};
  for (std::size_t n = 0; n < kBatch * kRows; ++n) {
    EXPECT_EQ(caches[2 * n], written[n / kRows][n % kRows]) << n;
  }
  // Without any angle rows stay as they are.
  args_.angles = 0;
  run();
  EXPECT_EQ(rotated, rows);
}

// A block for each row that there is, however long the longest sequence may be.
TEST_F(Append, PackedQueriesAreRotatedRowByRow) {
  constexpr std::int64_t kTotal = 9;
  const std::int32_t starts[kBatch + 1] = {0, 3, 3, 4, 7};  // and two rows behind the last
  std::vector<float> rows(kTotal * 2), rotated(kTotal * 2, 7.0f);
  for (std::size_t n = 0; n < rows.size(); n += 2) rows[n] = 1.0f;
  problem::Problem& p = args_.problem;
  p.seqlen_new = 0;
  p.k_new = p.v_new = {};
  p.head_dim_qk = 2;
  p.seqlen_q = p.total_q = kTotal;
  p.q = view(rows, kTotal * 2);
  p.q.stride[2] = 2;
  p.q.starts = {reinterpret_cast<const char*>(starts), false};
  args_.rotated = p.q;
  args_.rotated.data = reinterpret_cast<char*>(rotated.data());
  std::vector<float> cos = {0, 1, 2, 3, 4, 5, 6, 7, 8}, sin(9);
  p.rotary_cos = view(cos, 1);
  p.rotary_sin = view(sin, 1);
  p.rotary_half = 1;
  args_.angles = 9;
  std::int32_t positions[kBatch * kTotal];
  for (std::int32_t n = 0; n < kBatch * kTotal; ++n) {
    positions[n] =
        n / static_cast<std::int32_t>(kTotal) * 2 + n % static_cast<std::int32_t>(kTotal);
  }
  p.positions = {reinterpret_cast<char*>(positions), {kTotal, 0, 1}, {}, Element::kF32, true};
  cuda_test::HostRunner runner;
  cuda::run_append(runner, args_);
  EXPECT_EQ(runner.counts().blocks, kTotal);
  const float expected[kTotal] = {0, 1, 2, 4, 6, 7, 8, 7, 7};
  for (std::size_t n = 0; n < kTotal; ++n) EXPECT_EQ(rotated[2 * n], expected[n]) << n;
  // Where they do not ascend, some rows are none, and nothing else is written.
  const std::int32_t wrong[][kBatch + 1] = {
      {1000, 3, -5, 4, 7}, {-3, 2, 1 << 30, -7, 5}, {5, 4, 3, 2, 1}, {0, 0, 0, 0, 1 << 30}};
  for (const auto& list : wrong) {
    p.q.starts.data = reinterpret_cast<const char*>(list);
    std::vector<float> guarded(3 * rows.size(), 9.0f);
    args_.rotated.data = reinterpret_cast<char*>(guarded.data() + rows.size());
    cuda::run_append(runner, args_);
    for (std::size_t n = 0; n < guarded.size(); ++n) {
      if (n / rows.size() == 1) continue;
      EXPECT_EQ(guarded[n], 9.0f) << list[0] << ", " << n;
    }
  }
}

}  // namespace
}  // namespace regard
