#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tools/llm/kv_cache.h"

namespace llm {
namespace {

using regard::Dtype;

constexpr std::int64_t kLayers = 2, kHeads = 3, kDim = 4;

/// A cache beside a model that keeps every row of every sequence. Rows are written and read as a
/// step of attention does it: where bind() says that they lie.
class CheckedCache {
 public:
  explicit CheckedCache(const CacheOptions& options)
      : options_(options), cache_(KvCache::make(kLayers, kHeads, kDim, options).value()) {}

  bool has_room() const { return std::ssize(rows_) < options_.sequences; }
  std::int64_t room(std::int32_t s) const { return options_.capacity - std::ssize(rows_.at(s)); }
  std::vector<std::int32_t> sequences() const {
    std::vector<std::int32_t> made;
    for (const auto& [sequence, rows] : rows_) made.push_back(sequence);
    return made;
  }

  std::int32_t add() {
    const std::int32_t made = cache_.add();
    EXPECT_EQ(rows_.count(made), 0u) << "sequence " << made << " is in use";
    rows_[made];
    return made;
  }
  void fork(std::int32_t sequence) {
    const std::int32_t made = cache_.fork(sequence);
    EXPECT_EQ(rows_.count(made), 0u) << "sequence " << made << " is in use";
    rows_[made] = rows_[sequence];
  }
  void remove(std::int32_t sequence) {
    cache_.remove(sequence);
    rows_.erase(sequence);
  }
  void truncate(std::int32_t sequence, std::int64_t length) {
    cache_.truncate(sequence, length);
    rows_[sequence].resize(static_cast<std::size_t>(length));
  }
  /// Appends to all; a step that is not finished leaves them as they were.
  void append(const std::vector<std::int32_t>& sequences, std::int64_t rows, bool finish = true) {
    cache_.begin_step(sequences, rows);
    for (std::size_t b = 0; b < sequences.size(); ++b) {
      const std::int64_t length = std::ssize(rows_[sequences[b]]);
      for (std::int64_t r = 0; r < rows; ++r) {
        const int value = next_value_++ % 60;
        visit(
            b, length + r,
            [&](int expected, auto* found) {
              *found = static_cast<std::remove_reference_t<decltype(*found)>>(expected);
            },
            value);
        if (finish) rows_[sequences[b]].push_back(value);
      }
    }
    if (finish) cache_.end_step(sequences, rows);
  }

  void expect_all() {
    for (const auto& [sequence, rows] : rows_) {
      ASSERT_EQ(cache_.length(sequence), std::ssize(rows));
      if (rows.empty()) continue;
      cache_.begin_step({&sequence, 1}, 0);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        int wrong = 0;
        visit(
            0, static_cast<std::int64_t>(r),
            [&](int expected, const auto* found) { wrong += static_cast<int>(*found) != expected; },
            rows[r]);
        ASSERT_EQ(wrong, 0) << "row " << r << " of sequence " << sequence;
      }
    }
  }

 private:
  /// visit_one(expected, place) for all elements and scales of a row: values that layer, head and
  /// element differ in.
  template <class F>
  void visit(std::size_t batch, std::int64_t row, F&& visit_one, int value) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      regard::AttentionRequest request;
      cache_.bind(layer, &request);
      std::int64_t entry = 0, at = row;
      if (options_.page_size == 0) {
        entry = static_cast<const std::int32_t*>(request.cache_batch_idx.data)[batch];
      } else {
        const std::int64_t width = request.page_table.shape[1];
        entry = static_cast<const std::int32_t*>(
            request.page_table
                .data)[static_cast<std::int64_t>(batch) * width + row / options_.page_size];
        at = row % options_.page_size;
      }
      ASSERT_GE(entry, 0) << "row " << row << " has no page";
      ASSERT_LT(entry, request.k.shape[0]);
      const std::int64_t rows = request.k.shape[2];
      for (std::int64_t head = 0; head < kHeads; ++head) {
        const std::int64_t place = (entry * kHeads + head) * rows + at;
        const int first = value + static_cast<int>(7 * layer + 3 * head);
        for (std::int64_t i = 0; i < kDim; ++i) {
          at_element(request.k, place * kDim + i, first + static_cast<int>(i), visit_one);
          at_element(request.v, place * kDim + i, first + static_cast<int>(i) + 20, visit_one);
        }
        if (!request.scales_k.present()) continue;
        const std::int64_t scales = request.scales_k.rank == 4 ? request.scales_k.shape[3] : 1;
        for (std::int64_t x = 0; x < scales; ++x) {
          const int of_scale = first + static_cast<int>(x);
          visit_one(of_scale + 1, static_cast<float*>(request.scales_k.data) + place * scales + x);
          visit_one(of_scale + 2, static_cast<float*>(request.scales_v.data) + place * scales + x);
        }
      }
    }
  }
  template <class View, class F>
  void at_element(const View& view, std::int64_t at, int value, F&& visit_one) {
    if (regard::size_of(options_.dtype) == 4) visit_one(value, static_cast<float*>(view.data) + at);
    if (regard::size_of(options_.dtype) == 2) {
      visit_one(value, static_cast<std::uint16_t*>(view.data) + at);
    }
    if (options_.dtype == Dtype::kU4) {  // two elements are a byte
      if (at % 2 == 0) visit_one(value, static_cast<std::uint8_t*>(view.data) + at / 2);
    } else if (regard::size_of(options_.dtype) == 1) {
      visit_one(value, static_cast<std::uint8_t*>(view.data) + at);
    }
  }

  CacheOptions options_;
  KvCache cache_;
  std::map<std::int32_t, std::vector<int>> rows_;
  int next_value_ = 0;
};

struct Layout {
  std::int64_t page_size;
  Dtype dtype;
};
class Cache : public ::testing::TestWithParam<Layout> {
 protected:
  CacheOptions options(std::int64_t sequences, std::int64_t capacity) const {
    return {GetParam().dtype, GetParam().page_size, sequences, capacity};
  }
};

TEST_P(Cache, AForksRowsNeverReachItsSource) {
  for (const std::int64_t length : {0, 1, 3, 4, 5, 8, 15, 16, 17}) {
    CheckedCache cache(options(3, 40));
    const std::int32_t source = cache.add();
    if (length > 0) cache.append({source}, length);
    cache.fork(source);
    cache.append({1}, 2);
    cache.expect_all();
    cache.append({source}, 3);
    cache.expect_all();
    cache.fork(1);
    cache.append({source, 1, 2}, 4);
    cache.expect_all();
  }
}

TEST_P(Cache, AStepThatWasNotFinishedLeavesNothing) {
  // Its pages are the sequence's until the next step, and a fork must not share them.
  for (const std::int64_t length : {1, 3, 4, 5, 16}) {
    CheckedCache cache(options(3, 40));
    const std::int32_t source = cache.add();
    cache.append({source}, length);
    cache.append({source}, 20, false);
    cache.expect_all();
    cache.fork(source);
    cache.append({source}, 1);
    cache.expect_all();
    cache.append({1}, 2);
    cache.expect_all();
  }
}

TEST_P(Cache, RandomStepsAgreeWithAModelThatKeepsEverything) {
  constexpr std::int64_t kSequences = 5, kCapacity = 21;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1));
    };
    CheckedCache cache(options(kSequences, kCapacity));
    for (int step = 0; step < 300; ++step) {
      std::vector<std::int32_t> all = cache.sequences();
      std::shuffle(all.begin(), all.end(), random);
      const std::int64_t action = all.empty() ? 0 : up_to(9);
      if (action == 0 && cache.has_room()) cache.add();
      if (action == 1 && cache.has_room()) cache.fork(all[0]);
      if (action == 2 && up_to(1) == 0) cache.remove(all[0]);
      if (action == 3) cache.truncate(all[0], up_to(kCapacity - cache.room(all[0])));
      if (action >= 4) {
        all.resize(static_cast<std::size_t>(1 + up_to(std::ssize(all) - 1)));
        std::int64_t room = kCapacity;
        for (const std::int32_t s : all) room = std::min(room, cache.room(s));
        if (room > 0)
          cache.append(all, 1 + up_to(std::min<std::int64_t>(room, 6) - 1), action != 9);
      }
      cache.expect_all();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << step;
    }
    // All pages are back: every sequence reaches its capacity.
    for (const std::int32_t s : cache.sequences()) cache.remove(s);
    while (cache.has_room()) cache.append({cache.add()}, kCapacity);
    cache.expect_all();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST_P(Cache, SharedPrefixesTakeNoPages) {
  if (GetParam().page_size == 0) GTEST_SKIP() << "without pages nothing is shared";
  KvCache cache = KvCache::make(kLayers, kHeads, kDim, options(4, 32)).value();
  const std::int32_t source = cache.add();
  cache.begin_step({&source, 1}, 20);
  cache.end_step({&source, 1}, 20);
  std::vector<std::int32_t> all{source};
  for (int i = 0; i < 3; ++i) all.push_back(cache.fork(source));
  cache.begin_step(all, 0);
  regard::AttentionRequest request;
  cache.bind(0, &request);
  const auto* const table = static_cast<const std::int32_t*>(request.page_table.data);
  const std::set<std::int32_t> pages(
      table, table + request.page_table.shape[0] * request.page_table.shape[1]);
  const std::int64_t expected = (20 + GetParam().page_size - 1) / GetParam().page_size;
  EXPECT_EQ(std::ssize(pages) - (pages.count(-1) ? 1 : 0), expected);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Cache,
                         ::testing::Values(Layout{0, Dtype::kF32}, Layout{1, Dtype::kF32},
                                           Layout{4, Dtype::kF32}, Layout{16, Dtype::kF32},
                                           Layout{64, Dtype::kF32}, Layout{0, Dtype::kBf16},
                                           Layout{4, Dtype::kF16}, Layout{0, Dtype::kI8},
                                           Layout{4, Dtype::kI8}, Layout{16, Dtype::kF8E4M3},
                                           Layout{4, Dtype::kU4}, Layout{0, Dtype::kU4}),
                         [](const auto& tested) {
                           return regard::to_string(tested.param.dtype) + std::string("_pages") +
                                  std::to_string(tested.param.page_size);
                         });

std::string refusal(std::int64_t layers, std::int64_t heads, std::int64_t dim,
                    const CacheOptions& options) {
  const auto made = KvCache::make(layers, heads, dim, options);
  return made.ok() ? "made" : made.status().message();
}

TEST(CacheSizes, ThatOverflowAreRefused) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto expect_refused = [&](std::int64_t heads, std::int64_t dim, const CacheOptions& o) {
    const auto made = KvCache::make(1, heads, dim, o);
    ASSERT_FALSE(made.ok()) << o.sequences << " sequences of " << o.capacity;
    EXPECT_EQ(made.status().code(), regard::StatusCode::kOutOfMemory);
    EXPECT_NE(made.status().message().find("reduce --max-seq-length or --num-samples"),
              std::string::npos);
  };
  for (const std::int64_t page : {0, 1, 16}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kI8}) {
      expect_refused(8, 64, {dtype, page, 4, kMax});
      expect_refused(8, 64, {dtype, page, 4, kMax / 64});
      expect_refused(8, 64, {dtype, page, kMax, 1});
      expect_refused(8, 64, {dtype, page, kMax / 2, 100});
      expect_refused(8, 64, {dtype, page, 1, std::int64_t{1} << 40});
      expect_refused(1, 1, {dtype, page, 1, std::int64_t{1} << 61});
    }
  }
  // The scales' bytes overflow where the elements' do not.
  expect_refused(1, 1, {Dtype::kI8, 0, 1 << 30, (std::int64_t{1} << 31) - 1});
}

TEST(CacheSizes, ThatAreNoneAreRefused) {
  for (const CacheOptions& o :
       {CacheOptions{.sequences = 1, .capacity = 0}, CacheOptions{.sequences = 1, .capacity = -4},
        CacheOptions{.sequences = 0, .capacity = 4}, CacheOptions{.sequences = -1, .capacity = 4},
        CacheOptions{.page_size = -1, .sequences = 1, .capacity = 4}}) {
    EXPECT_NE(refusal(1, 1, 4, o).find("[cache]"), std::string::npos)
        << o.page_size << " " << o.sequences << " " << o.capacity;
  }
}

TEST(CacheSizes, BytesOfARowCountKeysValuesAndScales) {
  const auto bytes = [](Dtype dtype) {
    return KvCache::make(2, 3, 4, {dtype, 0, 1, 8}).value().row_bytes();
  };
  EXPECT_EQ(bytes(Dtype::kF32), 2 * 2 * 3 * 16);
  EXPECT_EQ(bytes(Dtype::kBf16), 2 * 2 * 3 * 8);
  EXPECT_EQ(bytes(Dtype::kI8), 2 * 2 * 3 * (4 + 4));
  EXPECT_EQ(bytes(Dtype::kU4), 2 * 2 * 3 * (2 + 8));
}

}  // namespace
}  // namespace llm
