#include "regard/block_mask.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/functions.h"
#include "core/text/thrown_by.h"
#include "cpu/functions/functions.h"
#include "function/program.h"
#include "problem/function_intervals.h"
#include "problem/make_problem.h"
#include "regard/context.h"

namespace regard {

struct BlockMask::Blocks {
  std::int64_t size_q, size_kv, seqlen_q, seqlen_kv;
  std::int64_t shape[4];
  bool reads_lengths;
  std::vector<std::uint8_t> known;  // dense
  std::int64_t empty = 0, partial = 0;
};

namespace {

constexpr const char* kWhere = "BlockMask::make";

enum Known : std::uint8_t { kEmpty = 0, kPartial = 1, kFull = 2 };

bool reads(const semantics::FunctionProgram& program, semantics::FunctionOp leaf) {
  return std::any_of(program.steps, program.steps + program.count,
                     [&](const semantics::FunctionStep& step) { return step.op == leaf; });
}

/// Queries and keys, as ranges of blocks.
struct Area {
  std::int64_t q, kv, blocks_q, blocks_kv;
};

/// Fills the blocks of one head.
class HeadBlocks {
 public:
  HeadBlocks(const problem::Problem& p, const problem::Functions& f, Isa isa,
             std::pair<std::int64_t, std::int64_t> sizes)
      : p_(p),
        f_(f),
        kernel_(cpu::function_kernel(isa, sizeof(float))),
        size_q_(sizes.first),
        size_kv_(sizes.second) {
    const int width = kernel_.lanes * kernel_.vectors;
    const auto layout =
        cpu::function_layout(f.mask, kernel_.vectors, kernel_.lanes * std::int64_t{sizeof(float)});
    registers_.resize(static_cast<std::size_t>(layout.total * kernel_.lanes) + 64);
    scores_.resize(static_cast<std::size_t>(width * size_kv_));
    queries_.resize(static_cast<std::size_t>(width));
    heads_.resize(static_cast<std::size_t>(width));
  }

  void fill(std::int64_t b, std::int64_t h, std::uint8_t* known) {
    sequence_ = problem::sequence_of(p_, b);
    h_ = h;
    known_ = known;
    blocks_kv_ = ceil_div(p_.seqlen_kv, size_kv_);
    if (blocks_kv_ == 0) return;
    split({0, 0, ceil_div(p_.seqlen_q, size_q_), blocks_kv_});
  }

 private:
  /// Areas that bounds do not decide are divided along their longer side, down to a block, whose
  /// elements decide.
  void split(const Area& area) {
    if (area.blocks_q == 0 || area.blocks_kv == 0) return;
    Known known = bounded(area);
    const bool is_block = area.blocks_q == 1 && area.blocks_kv == 1;
    if (known == kPartial && is_block) known = evaluated(area);
    if (known != kPartial || is_block) {
      for (std::int64_t i = area.q; i < area.q + area.blocks_q; ++i) {
        std::fill_n(known_ + i * blocks_kv_ + area.kv, area.blocks_kv, known);
      }
      return;
    }
    if (area.blocks_q >= area.blocks_kv) {
      const std::int64_t half = area.blocks_q / 2;
      split({area.q, area.kv, half, area.blocks_kv});
      split({area.q + half, area.kv, area.blocks_q - half, area.blocks_kv});
    } else {
      const std::int64_t half = area.blocks_kv / 2;
      split({area.q, area.kv, area.blocks_q, half});
      split({area.q, area.kv + half, area.blocks_q, area.blocks_kv - half});
    }
  }

  Known bounded(const Area& area) {
    const auto range = [](std::int64_t lo, std::int64_t hi) {
      return problem::Interval{static_cast<double>(lo), static_cast<double>(hi)};
    };
    const std::int64_t first = area.q * size_q_, key = area.kv * size_kv_;
    const std::int64_t last = std::min(first + area.blocks_q * size_q_, p_.seqlen_q) - 1;
    const std::int64_t last_key = std::min(key + area.blocks_kv * size_kv_, p_.seqlen_kv) - 1;
    const std::int64_t shift = sequence_.band.shift;
    problem::FunctionBox box;
    box.b = range(sequence_.b, sequence_.b);
    box.h = range(h_, h_);
    box.q = range(first, last);
    box.kv = range(key, last_key);
    box.position = range(saturating_add(first, shift), saturating_add(last, shift));
    box.len_q = range(sequence_.len_q, sequence_.len_q);
    box.len_kv = range(sequence_.band.len_kv, sequence_.band.len_kv);
    const std::int64_t elements = 1 + last - first + last_key - key;
    problem::bound_steps(f_.mask, f_.captured, box, elements, bounds_);
    const problem::Interval result = bounds_[f_.mask.result];
    return result.hi == 0.0 ? kEmpty : result.lo == 1.0 ? kFull : kPartial;
  }

  /// By the kernel that calls evaluate it with.
  Known evaluated(const Area& area) {
    const std::int64_t first = area.q * size_q_, key = area.kv * size_kv_;
    const std::int64_t end = std::min(first + size_q_, p_.seqlen_q);
    const std::int64_t width = kernel_.lanes * kernel_.vectors;
    cpu::FunctionTile tile;
    tile.query = queries_.data();
    tile.head = heads_.data();
    tile.b = static_cast<std::int32_t>(sequence_.b);
    tile.shift = static_cast<std::int32_t>(sequence_.band.shift);
    tile.len_q = static_cast<std::int32_t>(sequence_.len_q);
    tile.len_kv = static_cast<std::int32_t>(sequence_.band.len_kv);
    tile.vectors = kernel_.vectors;
    tile.key = key;
    tile.size = std::min(size_kv_, p_.seqlen_kv - key);
    bool any = false, every = true;
    for (std::int64_t q = first; q < end; q += width) {
      tile.rows = std::min(width, end - q);
      for (std::int64_t w = 0; w < width; ++w) {
        const auto at = static_cast<std::size_t>(w);
        queries_[at] = q + std::min(w, tile.rows - 1);  // lanes past the rows repeat the last
        heads_[at] = h_;
      }
      std::fill(scores_.begin(), scores_.end(), 0.0f);
      auto* const memory = reinterpret_cast<char*>(
          (reinterpret_cast<std::uintptr_t>(registers_.data()) + 63) / 64 * 64);
      kernel_.mask(f_, tile, scores_.data(), memory);
      for (std::int64_t x = 0; x < tile.size * width; ++x) {
        const bool is_true = scores_[static_cast<std::size_t>(x)] == 0.0f;
        any = any || is_true;
        every = every && is_true;
      }
      if (any && !every) return kPartial;
    }
    return any ? kFull : kEmpty;
  }

  const problem::Problem& p_;
  const problem::Functions& f_;
  const cpu::FunctionKernel& kernel_;
  const std::int64_t size_q_, size_kv_;
  std::vector<float> registers_, scores_;
  std::vector<std::int64_t> queries_, heads_;
  problem::Interval bounds_[semantics::kMaxFunctionSteps];
  problem::Sequence sequence_{};
  std::int64_t h_ = 0, blocks_kv_ = 0;
  std::uint8_t* known_ = nullptr;
};

constexpr TensorView Buffers::*kCaptured[] = {
    &Buffers::captured0, &Buffers::captured1, &Buffers::captured2, &Buffers::captured3,
    &Buffers::captured4, &Buffers::captured5, &Buffers::captured6, &Buffers::captured7};

/// The captured tensors that the function reads; a call's others are another function's.
Buffers captured_of(const AttentionParams& params, const Buffers& buffers) {
  const function::Uses uses = function::uses_of(params.mask_function);
  Buffers captured;
  for (int i = 0; i < kMaxCaptured; ++i) {
    if (uses.of_slot[i].rank != 0) captured.*kCaptured[i] = buffers.*kCaptured[i];
  }
  return captured;
}

Status check(const AttentionParams& p, const Buffers& captured, bool has_lengths_as_data,
             std::int64_t size_q, std::int64_t size_kv) {
  if (p.mask_function.empty()) {
    return invalid(kWhere, "mask_function (absent) must be given");
  }
  for (const auto& [name, size] :
       {std::pair{"block_size_q", size_q}, std::pair{"block_size_kv", size_kv}}) {
    if (size < 1 || size > (1 << 20)) {
      return invalid(kWhere, name, " (", size, ") must be 1 to ", 1 << 20);
    }
  }
  if (Status s = validate(p, kWhere); !s.ok()) return s;
  for (int i = 0; i < kMaxCaptured; ++i) {
    const TensorView& view = captured.*kCaptured[i];
    if (!view.present() || view.device.type == DeviceType::kCpu) continue;
    return invalid(kWhere, "captured", i, " must lie in host memory");
  }
  const function::Uses uses = function::uses_of(p.mask_function);
  const auto& program = function::programs_of(p.mask_function).value.view;
  const bool by_length = uses.position || reads(program, semantics::FunctionOp::kLenQ) ||
                         reads(program, semantics::FunctionOp::kLenKv);
  if (has_lengths_as_data && by_length) {
    return invalid(kWhere, "mask_function (", p.mask_function.text(),
                   ") must not read q_len, kv_len or q_pos where lengths are data");
  }
  AttentionParams alone = p;
  alone.score_function = {};
  if (Status s = check_captured(captured, alone, kWhere); !s.ok()) return s;
  alone.features.set(Feature::kCaptured, uses.captured);
  return check_captured_data(captured, alone, kWhere);
}

/// The problem of the function alone: lengths are the extents.
AttentionParams mask_params(const AttentionParams& params) {
  AttentionParams p;
  p.batch = params.batch;
  p.num_heads_q = params.num_heads_q;
  p.num_heads_kv = params.num_heads_kv;
  p.seqlen_q = params.seqlen_q;
  p.seqlen_kv = params.seqlen_kv;
  p.diagonal = params.diagonal;
  p.mask_function = params.mask_function;
  p.features.set(Feature::kMaskFunction);
  p.features.set(Feature::kCaptured, function::uses_of(p.mask_function).captured);
  return p;
}

}  // namespace

BlockMask::BlockMask(std::shared_ptr<const Blocks> blocks) noexcept : blocks_(std::move(blocks)) {}

Expected<BlockMask> BlockMask::make(const AttentionParams& params, const Buffers& buffers,
                                    std::int64_t block_size_q, std::int64_t block_size_kv) try {
  Buffers captured = captured_of(params, buffers);
  captured.diagonal_offset = buffers.diagonal_offset;
  const AttentionParams p = mask_params(params);
  const FeatureSet data{Feature::kSeqlensQ, Feature::kSeqlensKv, Feature::kPacked, Feature::kPaged};
  const bool has_data = params.features.without(data) != params.features;
  if (Status s = check(p, captured, has_data, block_size_q, block_size_kv); !s.ok()) return s;
  problem::Problem problem;
  problem::Functions functions;
  problem::make_problem(p, captured, &problem, &functions);
  const semantics::FunctionProgram& program = functions.mask;
  auto blocks = std::make_shared<Blocks>();
  blocks->size_q = block_size_q;
  blocks->size_kv = block_size_kv;
  blocks->seqlen_q = p.seqlen_q;
  blocks->seqlen_kv = p.seqlen_kv;
  blocks->reads_lengths = function::uses_of(p.mask_function).position ||
                          reads(program, semantics::FunctionOp::kLenQ) ||
                          reads(program, semantics::FunctionOp::kLenKv);
  std::int64_t* const n = blocks->shape;
  n[0] = reads(program, semantics::FunctionOp::kBatch) ? p.batch : 1;
  n[1] = reads(program, semantics::FunctionOp::kHead) ? p.num_heads_q : 1;
  n[2] = ceil_div(p.seqlen_q, block_size_q);
  n[3] = ceil_div(p.seqlen_kv, block_size_kv);
  const std::int64_t of_head = saturating_mul(n[2], n[3]);
  const std::int64_t count = saturating_mul(of_head, saturating_mul(n[0], n[1]));
  if (count > (std::int64_t{1} << 40)) {
    return failure(StatusCode::kOverflow, kWhere, "blocks (", count, ") must be at most 2^40");
  }
  blocks->known.resize(static_cast<std::size_t>(count));
  HeadBlocks head(problem, functions, default_context().env().isa, {block_size_q, block_size_kv});
  for (std::int64_t x = 0; x < n[0] * n[1]; ++x) {
    head.fill(x / n[1], x % n[1], blocks->known.data() + x * of_head);
  }
  blocks->empty = std::count(blocks->known.begin(), blocks->known.end(), kEmpty);
  blocks->partial = std::count(blocks->known.begin(), blocks->known.end(), kPartial);
  return BlockMask(std::move(blocks));
} catch (...) {
  return status_of_exception(kWhere);
}

std::int64_t BlockMask::block_size_q() const noexcept { return blocks_->size_q; }
std::int64_t BlockMask::block_size_kv() const noexcept { return blocks_->size_kv; }
std::int64_t BlockMask::seqlen_q() const noexcept { return blocks_->seqlen_q; }
std::int64_t BlockMask::seqlen_kv() const noexcept { return blocks_->seqlen_kv; }

TensorView BlockMask::view() const noexcept {
  TensorView view;
  view.data = const_cast<std::uint8_t*>(blocks_->known.data());
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
  const std::uint8_t* const known = mask.blocks_->known.data() + head * n[2] * n[3];
  const std::int64_t step =
      std::max<std::int64_t>(ceil_div(std::max(n[2], n[3]), kMaxCharacters), 1);
  std::string text;
  for (std::int64_t i = 0; i < n[2]; i += step) {
    for (std::int64_t j = 0; j < n[3]; j += step) {
      bool any = false, every = true;
      for (std::int64_t x = i; x < std::min(i + step, n[2]); ++x) {
        for (std::int64_t y = j; y < std::min(j + step, n[3]); ++y) {
          any = any || known[x * n[3] + y] != kEmpty;
          every = every && known[x * n[3] + y] == kFull;
        }
      }
      text += !any ? ' ' : every ? '#' : '+';
    }
    text += '\n';
  }
  return text;
}

}  // namespace regard
