#include "regard/block_mask.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/mask_blocks.h"
#include "core/text/thrown_by.h"
#include "regard/context.h"

namespace regard {

struct BlockMask::Blocks : MaskBlocks {
  std::int64_t size_q, size_kv, seqlen_q, seqlen_kv;
};

BlockMask::BlockMask(std::shared_ptr<const Blocks> blocks) noexcept : blocks_(std::move(blocks)) {}

Expected<BlockMask> BlockMask::make(const AttentionParams& params, const Buffers& buffers,
                                    std::int64_t block_size_q, std::int64_t block_size_kv) try {
  const MaskBlocksOptions options{block_size_q, block_size_kv, default_context().env().isa};
  Expected<MaskBlocks> made = mask_blocks(params, buffers, options, "BlockMask::make");
  if (!made) return made.status();
  return BlockMask(std::make_shared<const Blocks>(
      Blocks{*std::move(made), block_size_q, block_size_kv, params.seqlen_q, params.seqlen_kv}));
} catch (...) {
  return status_of_exception("BlockMask::make");
}

std::int64_t BlockMask::block_size_q() const noexcept { return blocks_->size_q; }
std::int64_t BlockMask::block_size_kv() const noexcept { return blocks_->size_kv; }
std::int64_t BlockMask::seqlen_q() const noexcept { return blocks_->seqlen_q; }
std::int64_t BlockMask::seqlen_kv() const noexcept { return blocks_->seqlen_kv; }

TensorView BlockMask::view() const noexcept {
  TensorView view;
  view.data = const_cast<MaskBlocks::Known*>(blocks_->known.data());
  view.dtype = Dtype::kU8;
  view.rank = 4;
  std::int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    view.shape[i] = blocks_->shape[i];
    view.strides[i] = stride;
    stride *= std::max<std::int64_t>(blocks_->shape[i], 1);
  }
  return view;
}

Expected<TensorView> BlockMask::view(std::int64_t seqlen_q, std::int64_t seqlen_kv) const try {
  constexpr const char* kView = "BlockMask::view";
  const Blocks& blocks = *blocks_;
  if (seqlen_q < 0 || seqlen_q > blocks.seqlen_q || seqlen_kv < 0 || seqlen_kv > blocks.seqlen_kv) {
    return invalid(kView, "lengths (", seqlen_q, " and ", seqlen_kv,
                   ") must be at most those that ", "it was made for, ", blocks.seqlen_q, " and ",
                   blocks.seqlen_kv);
  }
  if (blocks.reads_lengths && (seqlen_q != blocks.seqlen_q || seqlen_kv != blocks.seqlen_kv)) {
    return invalid(kView, "lengths (", seqlen_q, " and ", seqlen_kv, ") must be those that it was ",
                   "made for: the function reads q_len, kv_len or q_pos");
  }
  TensorView cut = view();
  cut.shape[2] = ceil_div(seqlen_q, blocks.size_q);
  cut.shape[3] = ceil_div(seqlen_kv, blocks.size_kv);
  return cut;
} catch (...) {
  return status_of_exception("BlockMask::view");
}

double BlockMask::empty() const noexcept {
  const auto all = static_cast<double>(blocks_->known.size());
  return all > 0.0 ? static_cast<double>(blocks_->empty) / all : 0.0;
}

double BlockMask::partial() const noexcept {
  const auto all = static_cast<double>(blocks_->known.size());
  return all > 0.0 ? static_cast<double>(blocks_->partial) / all : 0.0;
}

std::string to_string(const BlockMask& mask) {
  const TensorView view = mask.view();
  const auto percent = [](double share) { return std::round(share * 1000.0) / 10.0; };
  return concat("<block mask of ", mask.block_size_q(), " x ", mask.block_size_kv(), ", [",
                view.shape[0], ",", view.shape[1], ",", view.shape[2], ",", view.shape[3], "], ",
                percent(mask.empty()), " % empty, ", percent(mask.partial()), " % partial>");
}

std::string to_text(const BlockMask& mask, std::int64_t b, std::int64_t h) {
  constexpr std::int64_t kMaxCharacters = 64;
  const std::int64_t* const n = mask.blocks_->shape;
  const std::int64_t head =
      std::clamp<std::int64_t>(b, 0, n[0] - 1) * n[1] + std::clamp<std::int64_t>(h, 0, n[1] - 1);
  const MaskBlocks::Known* const known = mask.blocks_->known.data() + head * n[2] * n[3];
  const std::int64_t step =
      std::max<std::int64_t>(ceil_div(std::max(n[2], n[3]), kMaxCharacters), 1);
  std::string text;
  for (std::int64_t i = 0; i < n[2]; i += step) {
    for (std::int64_t j = 0; j < n[3]; j += step) {
      bool any = false, every = true;
      for (std::int64_t x = i; x < std::min(i + step, n[2]); ++x) {
        for (std::int64_t y = j; y < std::min(j + step, n[3]); ++y) {
          any = any || known[x * n[3] + y] != MaskBlocks::kEmpty;
          every = every && known[x * n[3] + y] == MaskBlocks::kFull;
        }
      }
      text += !any ? ' ' : every ? '#' : '+';
    }
    text += '\n';
  }
  return text;
}

}  // namespace regard
