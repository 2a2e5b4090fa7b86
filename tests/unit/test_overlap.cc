#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "core/describe/overlap.h"
#include "regard/tensor.h"

namespace regard {
namespace {

// Never dereferenced: only addresses matter.
void* at_address(std::uintptr_t n) { return reinterpret_cast<void*>(n); }

// The bytes of every element, one list an element.
std::vector<std::uintptr_t> element_addresses(const TensorView& view) {
  std::vector<std::uintptr_t> out{reinterpret_cast<std::uintptr_t>(view.data)};
  for (int i = 0; i < view.rank; ++i) {
    std::vector<std::uintptr_t> next;
    for (const std::uintptr_t base : out) {
      for (std::int64_t j = 0; j < view.shape[i]; ++j) {
        next.push_back(base +
                       static_cast<std::uintptr_t>(j * view.strides[i] * size_of(view.dtype)));
      }
    }
    out = std::move(next);
  }
  return out;
}

bool really_disjoint(const TensorView& a, const TensorView& b) {
  std::set<std::uintptr_t> bytes;
  for (const std::uintptr_t at : element_addresses(a)) {
    for (int i = 0; i < size_of(a.dtype); ++i) bytes.insert(at + static_cast<std::uintptr_t>(i));
  }
  for (const std::uintptr_t at : element_addresses(b)) {
    for (int i = 0; i < size_of(b.dtype); ++i) {
      if (bytes.count(at + static_cast<std::uintptr_t>(i)) != 0) return false;
    }
  }
  return true;
}

bool really_injective(const TensorView& view) {
  const std::vector<std::uintptr_t> all = element_addresses(view);
  return std::set<std::uintptr_t>(all.begin(), all.end()).size() == all.size();
}

TensorView random_view(std::mt19937_64& rng) {
  constexpr Dtype kDtypes[] = {Dtype::kI8, Dtype::kBf16, Dtype::kF32, Dtype::kF64};
  TensorView view;
  view.dtype = kDtypes[rng() % 4];
  view.rank = 1 + static_cast<std::int32_t>(rng() % 4);
  std::int64_t dense = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = static_cast<std::int64_t>(rng() % 5);
    if (view.shape[i] == 0 && rng() % 4 != 0) view.shape[i] = 1;
    const auto kind = rng() % 6;
    view.strides[i] = kind < 3    ? dense
                      : kind == 3 ? dense + static_cast<std::int64_t>(rng() % 3)
                                  : static_cast<std::int64_t>(rng() % 12);
    dense =
        std::max<std::int64_t>(dense, view.strides[i] * std::max<std::int64_t>(view.shape[i], 1));
  }
  // Misaligned on purpose: proofs are about bytes.
  view.data = at_address(4096 + rng() % 200);
  return view;
}

TEST(Overlap, AgreesWithEnumerationOnRandomViews) {
  std::mt19937_64 rng(7);
  int overlapping = 0;
  int interleaved = 0;
  for (int i = 0; i < 60000; ++i) {
    const TensorView a = random_view(rng);
    const TensorView b = random_view(rng);
    const bool disjoint = really_disjoint(a, b);
    ASSERT_EQ(proves_disjoint(a, b), disjoint)
        << to_string(a) << " at " << a.data << ", " << to_string(b) << " at " << b.data;
    ASSERT_EQ(proves_disjoint(b, a), disjoint) << to_string(a) << ", " << to_string(b);
    ASSERT_EQ(proves_injective(a), really_injective(a)) << to_string(a);
    ByteSpan span_a;
    ByteSpan span_b;
    ASSERT_TRUE(byte_span(a, &span_a) && byte_span(b, &span_b));
    overlapping += disjoint ? 0 : 1;
    interleaved += disjoint && span_a.begin != span_a.end && span_b.begin != span_b.end &&
                           intersects(span_a, span_b)
                       ? 1
                       : 0;
  }
  EXPECT_GT(overlapping, 10000);
  EXPECT_GT(interleaved, 1000);
}

TEST(Overlap, PackedSlotsAreDisjoint) {
  // [B, S, 3, H, D] of a real size: q, k and v are interleaved slots of one tensor.
  const std::int64_t heads = 32, dim = 128, rows = 4096;
  const std::int64_t row = 3 * heads * dim;
  for (const std::int64_t batch_stride : {rows * row, rows * row + 7}) {
    TensorView slots[3];
    for (int i = 0; i < 3; ++i) {
      slots[i] = make_view(at_address(1 << 20), Dtype::kBf16, {4, heads, rows, dim},
                           {batch_stride, dim, row, 1});
      slots[i].data = at_address((1 << 20) + static_cast<std::uintptr_t>(i * heads * dim * 2));
      EXPECT_TRUE(proves_injective(slots[i]));
    }
    EXPECT_TRUE(proves_disjoint(slots[0], slots[1]));
    EXPECT_TRUE(proves_disjoint(slots[2], slots[0]));
    slots[1].data = at_address((1 << 20) + static_cast<std::uintptr_t>(heads * dim * 2 - 2));
    EXPECT_FALSE(proves_disjoint(slots[0], slots[1])) << "one element too early";
  }
}

TEST(Overlap, HeadsAndHalvesOfOneTensorAreDisjoint) {
  // Odd heads and even heads; the two halves of every row; transposed halves.
  const TensorView even =
      make_view(at_address(4096), Dtype::kF32, {2, 4, 100, 64}, {51200, 12800, 64, 1});
  const TensorView odd =
      make_view(at_address(4096 + 6400 * 4), Dtype::kF32, {2, 4, 100, 64}, {51200, 12800, 64, 1});
  EXPECT_TRUE(proves_disjoint(even, odd));
  const TensorView low =
      make_view(at_address(4096), Dtype::kF32, {1, 8, 1000, 32}, {0, 64000, 64, 1});
  const TensorView high =
      make_view(at_address(4096 + 128), Dtype::kF32, {1, 1000, 8, 32}, {0, 64, 64000, 1});
  EXPECT_TRUE(proves_disjoint(low, high));
}

TEST(Overlap, BroadcastOutputsOverlapThemselves) {
  EXPECT_FALSE(proves_injective(make_view(at_address(64), Dtype::kF32, {2, 3}, {0, 1})));
  EXPECT_TRUE(proves_injective(make_view(at_address(64), Dtype::kF32, {1, 3}, {0, 1})));
  EXPECT_TRUE(proves_injective(make_view(at_address(64), Dtype::kF32, {0, 3}, {0, 0})));
  EXPECT_TRUE(proves_injective(make_view(at_address(64), Dtype::kF32, {2, 2}, {3, 2})));
  EXPECT_FALSE(proves_injective(make_view(at_address(64), Dtype::kF32, {4, 3}, {2, 3})));
}

TEST(Overlap, HostileStridesEndSoonAndOnTheSafeSide) {
  // Coprime strides of very many elements: the search gives up and says "may overlap".
  const TensorView a =
      make_view(at_address(1 << 20), Dtype::kI8, {1 << 20, 1 << 20, 1 << 20, 1 << 20},
                {1000003, 999983, 999979, 2});
  const TensorView b =
      make_view(at_address((1 << 20) + 1), Dtype::kI8, {1 << 20, 1 << 20, 1 << 20, 1 << 20},
                {1000033, 999961, 999953, 2});
  EXPECT_FALSE(proves_disjoint(a, b));
  EXPECT_FALSE(proves_injective(a));
}

TEST(ByteSpan, RefusesWhatDoesNotFit) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  ByteSpan span;
  EXPECT_TRUE(byte_span(make_view(at_address(64), Dtype::kF32, {2, 3}), &span));
  EXPECT_EQ(span.begin, 64u);
  EXPECT_EQ(span.end, 88u);
  EXPECT_TRUE(byte_span(make_view(at_address(64), Dtype::kF32, {2, 0, 3}), &span));
  EXPECT_EQ(span.begin, span.end);
  EXPECT_FALSE(byte_span(make_view(at_address(64), Dtype::kF32, {kMax, 1}, {1, 1}), &span));
  EXPECT_FALSE(byte_span(make_view(at_address(64), Dtype::kI8, {kMax, 2}, {1, 1}), &span));
  EXPECT_FALSE(byte_span(make_view(at_address(64), Dtype::kI8, {3}, {kMax}), &span));
  EXPECT_FALSE(byte_span(make_view(at_address(64), Dtype::kF32, {1}, {kMax}), &span));
  EXPECT_FALSE(byte_span(make_view(at_address(64), Dtype::kF32, {1 << 30, 1 << 30, 4}), &span));
  EXPECT_FALSE(byte_span(make_view(at_address(64), Dtype::kF32, {0, 1 << 30, 1 << 30, 4}), &span))
      << "an extent of 0 hides no overflow";
  EXPECT_FALSE(byte_span(
      make_view(at_address(std::numeric_limits<std::uintptr_t>::max() - 3), Dtype::kF32, {2}),
      &span));
}

}  // namespace
}  // namespace regard
