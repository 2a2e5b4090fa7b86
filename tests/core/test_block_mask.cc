#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "regard/block_mask.h"
#include "regard/case.h"

namespace regard {
namespace {

AttentionParams block_params(const std::string& mask, std::int64_t sq, std::int64_t skv) {
  AttentionParams p;
  p.batch = 2;
  p.num_heads_q = p.num_heads_kv = 3;
  p.seqlen_q = sq;
  p.seqlen_kv = skv;
  p.head_dim_qk = p.head_dim_v = 8;
  p.diagonal = Diagonal::kBottomRight;
  p.mask_function = Expression::parse(mask).value();
  canonicalize(p);
  return p;
}

TensorView view_of(std::vector<std::int32_t>& ids, std::initializer_list<std::int64_t> shape) {
  TensorView view;
  view.data = ids.data();
  view.dtype = Dtype::kI32;
  view.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::int32_t i = view.rank; i-- > 0;) {
    view.shape[i] = shape.begin()[i];
    view.strides[i] = stride;
    stride *= view.shape[i];
  }
  return view;
}

std::uint8_t known(const BlockMask& mask, std::int64_t b, std::int64_t h, std::int64_t i,
                   std::int64_t j) {
  const TensorView view = mask.view();
  return static_cast<const std::uint8_t*>(
      view.data)[b * view.strides[0] + h * view.strides[1] + i * view.strides[2] + j];
}

/// Blocks by looking at every element.
template <class F>
void expect_blocks(const BlockMask& mask, F is_visible) {
  const TensorView view = mask.view();
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t bi = 0; bi < view.shape[2]; ++bi) {
        for (std::int64_t bj = 0; bj < view.shape[3]; ++bj) {
          bool any = false, every = true;
          for (std::int64_t i = bi * mask.block_size_q();
               i < std::min((bi + 1) * mask.block_size_q(), mask.seqlen_q()); ++i) {
            for (std::int64_t j = bj * mask.block_size_kv();
                 j < std::min((bj + 1) * mask.block_size_kv(), mask.seqlen_kv()); ++j) {
              any = any || is_visible(b, h, i, j);
              every = every && is_visible(b, h, i, j);
            }
          }
          const int expected = !any ? 0 : every ? 2 : 1;
          ASSERT_EQ(known(mask, b, h, bi, bj), expected) << b << h << bi << " " << bj;
        }
      }
    }
  }
}

TEST(BlockMask, IsWhatElementsSay) {
  const std::int64_t sq = 100, skv = 170;
  expect_blocks(BlockMask::make(block_params("q_idx>=kv_idx", sq, skv), {}, 16, 32).value(),
                [](auto, auto, auto i, auto j) { return i >= j; });
  expect_blocks(
      BlockMask::make(block_params("kv_idx<=q_pos&q_pos-kv_idx<9", sq, skv), {}, 7, 5).value(),
      [](auto, auto, auto i, auto j) { return j <= i + 70 && i + 70 - j < 9; });
  // Nothing that bounds decide.
  expect_blocks(BlockMask::make(block_params("(q_idx*kv_idx)%4==3", sq, skv), {}, 1, 3).value(),
                [](auto, auto, auto i, auto j) { return i * j % 4 == 3; });
  expect_blocks(
      BlockMask::make(block_params("(q_idx+h)//40==kv_idx//40|b==1", sq, skv), {}).value(),
      [](auto b, auto h, auto i, auto j) { return (i + h) / 40 == j / 40 || b == 1; });
}

TEST(BlockMask, CapturedTensorsTakePart) {
  std::vector<std::int32_t> documents(2 * 300);
  for (std::int64_t i = 0; i < 600; ++i) {
    documents[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(i % 300 / (i < 300 ? 70 : 130));
  }
  Buffers buffers;
  buffers.captured0 = view_of(documents, {2, 300});
  const AttentionParams p = block_params("i0[b,q_idx]==i0[b,kv_idx]", 300, 300);
  const BlockMask mask = BlockMask::make(p, buffers, 32, 32).value();
  EXPECT_EQ(mask.view().shape[0], 2);
  EXPECT_EQ(mask.view().shape[1], 1);
  expect_blocks(mask, [&](auto b, auto, auto i, auto j) {
    return documents[static_cast<std::size_t>(b * 300 + i)] ==
           documents[static_cast<std::size_t>(b * 300 + j)];
  });
}

TEST(BlockMask, SaysAndDrawsItself) {
  const BlockMask mask = BlockMask::make(block_params("q_idx>=kv_idx", 512, 512), {}).value();
  EXPECT_EQ(to_string(mask), "<block mask of 128 x 128, [1,1,4,4], 37.5 % empty, 25 % partial>");
  EXPECT_EQ(to_text(mask), "+   \n#+  \n##+ \n###+\n");
  EXPECT_DOUBLE_EQ(mask.empty(), 0.375);
  EXPECT_DOUBLE_EQ(mask.partial(), 0.25);
}

TEST(BlockMask, ServesShorterLengths) {
  const BlockMask mask = BlockMask::make(block_params("q_idx>=kv_idx", 512, 512), {}).value();
  const TensorView cut = mask.view(200, 384).value();
  EXPECT_EQ(cut.shape[2], 2);
  EXPECT_EQ(cut.shape[3], 3);
  EXPECT_EQ(cut.strides[2], 4);
  EXPECT_EQ(mask.view(513, 512).status().code(), StatusCode::kInvalidArgument);
  const BlockMask of_lengths =
      BlockMask::make(block_params("kv_idx<kv_len-3", 512, 512), {}).value();
  EXPECT_TRUE(of_lengths.view(512, 512).ok());
  EXPECT_EQ(of_lengths.view(512, 500).status().code(), StatusCode::kInvalidArgument);
}

TEST(BlockMask, RefusesByName) {
  const auto message = [](const AttentionParams& p, const Buffers& buffers, std::int64_t size) {
    return BlockMask::make(p, buffers, size).status().message();
  };
  EXPECT_EQ(message({}, {}, 128), "[BlockMask::make] mask_function (absent) must be given");
  EXPECT_EQ(message(block_params("q_idx>=kv_idx", 8, 8), {}, 0),
            "[BlockMask::make] block_size_q (0) must be 1 to 1048576");
  EXPECT_EQ(message(block_params("i3[q_idx]==0", 8, 8), {}, 128),
            "[BlockMask::make] captured3 (absent) must be given: a function reads it");
  AttentionParams lens = block_params("kv_idx<q_len", 8, 8);
  lens.features.set(Feature::kSeqlensQ);
  EXPECT_NE(message(lens, {}, 128).find("must not read q_len"), std::string::npos);
  std::vector<std::int32_t> ids(5, 0);
  Buffers buffers;
  buffers.captured0 = view_of(ids, {5});
  EXPECT_NE(message(block_params("i0[q_idx]==0", 8, 8), buffers, 128).find("expected 0 to 4"),
            std::string::npos);
}

TEST(BlockMask, EmptyExtentsHaveNoBlocks) {
  const BlockMask mask = BlockMask::make(block_params("q_idx>=kv_idx", 0, 5), {}).value();
  EXPECT_EQ(mask.view().shape[2], 0);
  EXPECT_EQ(mask.empty(), 0.0);
  EXPECT_EQ(to_text(mask), "");
}

}  // namespace
}  // namespace regard
