#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cpu/asks.h"

// What strips ask memory for at a tile: its values, and the next tile's keys, each once.

namespace regard::cpu {
namespace {

struct Asked {
  int strip;
  const char* first;
  std::int64_t stride, bytes;
  bool operator==(const Asked&) const = default;
};

class AsksOfTile : public testing::Test {
 protected:
  AsksOfTile() {
    problem_.seqlen_kv = 250;
    problem_.head_dim_qk = 64;
    problem_.head_dim_v = 32;
    problem_.k = view(keys_, Element::kF32, 1000);
    problem_.v = view(values_, Element::kBf16, 300);
  }

  /// What `met` of a head's `strips` strips ask for at `tile` of head 3 of sequence 1.
  std::vector<Asked> asked(std::int64_t strips, int met, semantics::Tile tile) const {
    TileAsks at{{3, 0, 1, strips}, 1, tile, 0};
    std::vector<Asked> found;
    for (int strip = 0; strip < met; ++strip) {
      TileAsks::with_next(&at, problem_, [&]<int kMatrices>(const Asks<kMatrices>& asks) {
        for (int m = 0; m < kMatrices; ++m) {
          found.push_back({strip, asks.rows[m].first, asks.rows[m].stride, asks.rows[m].bytes});
        }
      });
    }
    return found;
  }

  Asked values(int strip, std::int64_t j) const {
    return {strip, values_ + (50000 + 3 * 70 + j * 300) * 2, 600, 64};
  }
  Asked keys(int strip, std::int64_t j) const {
    return {strip, keys_ + (50000 + 3 * 70 + j * 1000) * 4, 4000, 256};
  }

 private:
  static View view(const char* data, Element type, std::int64_t row) {
    View v{};
    v.data = const_cast<char*>(data);
    v.type = type;
    v.stride[0] = 50000;
    v.stride[1] = 70;
    v.stride[2] = row;
    return v;
  }

  Problem problem_{};
  const char* keys_ = reinterpret_cast<const char*>(0x10000000);  // only computed with
  const char* values_ = reinterpret_cast<const char*>(0x20000000);
};

TEST_F(AsksOfTile, FirstStripAsksForValuesSecondForTheNextKeys) {
  EXPECT_EQ(asked(8, 8, {96, 96}), (std::vector<Asked>{values(0, 96), keys(1, 192)}));
}

TEST_F(AsksOfTile, StripAloneAsksForBoth) {
  EXPECT_EQ(asked(1, 1, {96, 96}), (std::vector<Asked>{values(0, 96), keys(0, 192)}));
}

TEST_F(AsksOfTile, NothingFollowsTheLastTile) {
  EXPECT_EQ(asked(8, 8, {192, 58}), (std::vector<Asked>{values(0, 192)}));
  EXPECT_EQ(asked(1, 1, {192, 58}), (std::vector<Asked>{values(0, 192)}));
}

TEST(Asks, LinesAreThoseOfTheLongestRow) {
  const Asks<2> asks{{{nullptr, 0, 128}, {nullptr, 0, 130}}};
  EXPECT_EQ(Asks<2>::lines(asks, 1000), 3);
  EXPECT_EQ(Asks<2>::lines(asks, 47), 2);  // of 16 elements each
  EXPECT_EQ(Asks<2>::lines(asks, 15), 0);
}

}  // namespace
}  // namespace regard::cpu
