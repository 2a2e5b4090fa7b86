#include "core/describe/mask_blocks.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/functions.h"
#include "cpu/functions/functions.h"
#include "function/program.h"
#include "problem/function_intervals.h"
#include "problem/make_problem.h"

namespace regard {
namespace {

using enum MaskBlocks::Known;

bool reads(const semantics::FunctionProgram& program, semantics::FunctionOp leaf) {
  return std::any_of(program.steps, program.steps + program.count,
                     [&](const semantics::FunctionStep& step) { return step.op == leaf; });
}

bool reads_lengths(const Expression& mask) {
  const auto& program = function::programs_of(mask).value.view;
  return function::uses_of(mask).position || reads(program, semantics::FunctionOp::kLenQ) ||
         reads(program, semantics::FunctionOp::kLenKv);
}

/// Queries and keys: of blocks, or of elements.
struct Area {
  std::int64_t q, kv, count_q, count_kv;
};

/// Along the longer side, into pieces of whole `unit`s.
std::pair<Area, Area> halves(const Area& area, std::int64_t unit) {
  const auto half = [&](std::int64_t count) { return ceil_div(count / 2, unit) * unit; };
  if (area.count_q >= area.count_kv) {
    const std::int64_t n = half(area.count_q);
    return {{area.q, area.kv, n, area.count_kv},
            {area.q + n, area.kv, area.count_q - n, area.count_kv}};
  }
  const std::int64_t n = half(area.count_kv);
  return {{area.q, area.kv, area.count_q, n},
          {area.q, area.kv + n, area.count_q, area.count_kv - n}};
}

/// Fills the blocks of one head.
class HeadBlocks {
 public:
  HeadBlocks(const problem::Problem& p, const problem::Functions& f, const MaskBlocksOptions& o)
      : p_(p),
        f_(f),
        kernel_(cpu::function_kernel(o.isa, sizeof(float))),
        size_q_(o.size_q),
        size_kv_(o.size_kv),
        elements_left_(o.max_elements) {
    const int width = kernel_.lanes * kernel_.vectors;
    const auto layout =
        cpu::function_layout(f.mask, kernel_.vectors, kernel_.lanes * std::int64_t{sizeof(float)});
    registers_.resize(static_cast<std::size_t>(layout.total * kernel_.lanes) + 64);
    scores_.resize(static_cast<std::size_t>(width * kLookedAt));
    queries_.resize(static_cast<std::size_t>(width));
    heads_.resize(static_cast<std::size_t>(width));
  }

  /// False where more elements would have to be looked at than may be.
  bool fill(std::int64_t b, std::int64_t h, MaskBlocks::Known* known) {
    sequence_ = problem::sequence_of(p_, b);
    h_ = h;
    known_ = known;
    blocks_kv_ = ceil_div(p_.seqlen_kv, size_kv_);
    split({0, 0, ceil_div(p_.seqlen_q, size_q_), blocks_kv_});
    return elements_left_ >= 0;
  }

 private:
  static constexpr std::int64_t kLookedAt = 64;  // queries and keys that bounds do not divide

  /// Blocks that bounds do not decide together are divided, down to one, whose elements decide.
  void split(const Area& blocks) {
    if (blocks.count_q == 0 || blocks.count_kv == 0 || elements_left_ < 0) return;
    const std::int64_t q = blocks.q * size_q_, kv = blocks.kv * size_kv_;
    const Area elements{q, kv, std::min(blocks.count_q * size_q_, p_.seqlen_q - q),
                        std::min(blocks.count_kv * size_kv_, p_.seqlen_kv - kv)};
    MaskBlocks::Known known = bounded(elements);
    if (known == kPartial && (blocks.count_q > 1 || blocks.count_kv > 1)) {
      const auto [one, other] = halves(blocks, 1);
      split(one);
      split(other);
      return;
    }
    if (known == kPartial) {
      any_ = false, every_ = true;
      divide(elements);
      known = !any_ ? kEmpty : every_ ? kFull : kPartial;
    }
    for (std::int64_t i = blocks.q; i < blocks.q + blocks.count_q; ++i) {
      std::fill_n(known_ + i * blocks_kv_ + blocks.kv, blocks.count_kv, known);
    }
  }

  MaskBlocks::Known bounded(const Area& area) {
    const auto range = [](std::int64_t first, std::int64_t count) {
      return problem::Interval{static_cast<double>(first),
                               static_cast<double>(first) + static_cast<double>(count - 1)};
    };
    problem::FunctionBox box;
    box.b = range(sequence_.b, 1);
    box.h = range(h_, 1);
    box.q = range(area.q, area.count_q);
    box.kv = range(area.kv, area.count_kv);
    box.position = range(saturating_add(area.q, sequence_.band.shift), area.count_q);
    box.len_q = range(sequence_.len_q, 1);
    box.len_kv = range(sequence_.band.len_kv, 1);
    problem::bound_steps(f_.mask, f_.captured, box, area.count_q + area.count_kv, bounds_);
    const problem::Interval result = bounds_[f_.mask.result];
    return result.hi == 0.0 ? kEmpty : result.lo == 1.0 ? kFull : kPartial;
  }

  /// Within a block, until it is known to be partial: by bounds where these decide, which finds the
  /// edges of documents sooner than elements do.
  void divide(const Area& area) {
    const bool is_small = area.count_q <= kLookedAt && area.count_kv <= kLookedAt;
    if (is_small) return look(area);
    const auto [one, other] = halves(area, kLookedAt);
    for (const Area& half : {one, other}) {
      if (any_ && !every_) return;
      const MaskBlocks::Known known = bounded(half);
      any_ = any_ || known == kFull;
      every_ = every_ && known != kEmpty;
      if (known == kPartial) divide(half);
    }
  }

  /// At elements, by the kernel that calls evaluate them with; until the block is known to be
  /// partial.
  void look(const Area& area) {
    const std::int64_t width = kernel_.lanes * kernel_.vectors;
    cpu::FunctionTile tile;
    tile.query = queries_.data();
    tile.head = heads_.data();
    tile.b = static_cast<std::int32_t>(sequence_.b);
    tile.shift = static_cast<std::int32_t>(sequence_.band.shift);
    tile.len_q = static_cast<std::int32_t>(sequence_.len_q);
    tile.len_kv = static_cast<std::int32_t>(sequence_.band.len_kv);
    tile.vectors = kernel_.vectors;
    tile.key = area.kv;
    tile.size = area.count_kv;
    auto* const memory = reinterpret_cast<char*>(
        (reinterpret_cast<std::uintptr_t>(registers_.data()) + 63) / 64 * 64);
    for (std::int64_t q = area.q; q < area.q + area.count_q; q += width) {
      tile.rows = std::min(width, area.q + area.count_q - q);
      elements_left_ -= tile.size * width;
      if (elements_left_ < 0) return;
      for (std::int64_t w = 0; w < width; ++w) {
        const auto at = static_cast<std::size_t>(w);
        queries_[at] = q + std::min(w, tile.rows - 1);  // lanes past the rows repeat the last
        heads_[at] = h_;
      }
      std::fill(scores_.begin(), scores_.end(), 0.0f);
      kernel_.mask(f_, tile, scores_.data(), memory);
      std::int64_t visible = 0;
      for (std::int64_t x = 0; x < tile.size * width; ++x) {
        visible += scores_[static_cast<std::size_t>(x)] == 0.0f;
      }
      any_ = any_ || visible > 0;
      every_ = every_ && visible == tile.size * width;
      if (any_ && !every_) return;
    }
  }

  const problem::Problem& p_;
  const problem::Functions& f_;
  const cpu::FunctionKernel& kernel_;
  const std::int64_t size_q_, size_kv_;
  std::vector<float> registers_, scores_;
  std::vector<std::int64_t> queries_, heads_;
  problem::Interval bounds_[semantics::kMaxFunctionSteps];
  problem::Sequence sequence_{};
  std::int64_t h_ = 0, blocks_kv_ = 0, elements_left_;
  MaskBlocks::Known* known_ = nullptr;
  bool any_ = false, every_ = true;  // of a block's elements so far
};

constexpr TensorView Buffers::*kCapturedBuffers[] = {
    &Buffers::captured0, &Buffers::captured1, &Buffers::captured2, &Buffers::captured3,
    &Buffers::captured4, &Buffers::captured5, &Buffers::captured6, &Buffers::captured7};

/// The captured tensors that the function reads; a call's others are another function's.
Buffers captured_of(const AttentionParams& params, const Buffers& buffers) {
  const function::Uses uses = function::uses_of(params.mask_function);
  Buffers captured;
  for (int i = 0; i < kMaxCaptured; ++i) {
    if (uses.of_slot[i].rank != 0) captured.*kCapturedBuffers[i] = buffers.*kCapturedBuffers[i];
  }
  return captured;
}

Status check_block_request(const AttentionParams& p, const Buffers& captured,
                           const MaskBlocksOptions& o, const char* where) {
  if (p.mask_function.empty()) {
    return invalid(where, "mask_function (absent) must be given");
  }
  for (const auto& [name, size] :
       {std::pair{"block_size_q", o.size_q}, std::pair{"block_size_kv", o.size_kv}}) {
    if (size < 1 || size > (1 << 20)) {
      return invalid(where, name, " (", size, ") must be 1 to ", 1 << 20);
    }
  }
  if (Status s = validate(p, where); !s.ok()) return s;
  for (int i = 0; i < kMaxCaptured; ++i) {
    const TensorView& view = captured.*kCapturedBuffers[i];
    if (!view.present() || view.device.type == DeviceType::kCpu) continue;
    return invalid(where, "captured", i, " must lie in host memory");
  }
  AttentionParams alone = p;
  alone.score_function = {};
  if (Status s = check_captured(captured, alone, where); !s.ok()) return s;
  alone.features.set(Feature::kCaptured, function::uses_of(p.mask_function).captured);
  return check_captured_data(captured, alone, where);
}

Status check_lengths(const AttentionParams& params, const char* where) {
  const FeatureSet data{Feature::kSeqlensQ, Feature::kSeqlensKv, Feature::kPacked, Feature::kPaged};
  const bool has_lengths = params.features.without(data) != params.features;
  if (!has_lengths || !reads_lengths(params.mask_function)) return {};
  return invalid(where, "mask_function (", params.mask_function.text(),
                 ") must not read q_len, kv_len or q_pos where lengths are data");
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

Expected<MaskBlocks> mask_blocks(const AttentionParams& params, const Buffers& buffers,
                                 const MaskBlocksOptions& options, const char* where) {
  Buffers captured = captured_of(params, buffers);
  captured.diagonal_offset = buffers.diagonal_offset;
  const AttentionParams p = mask_params(params);
  if (Status s = check_block_request(p, captured, options, where); !s.ok()) return s;
  if (Status s = check_lengths(params, where); !s.ok()) return s;
  problem::Problem problem;
  problem::Functions functions;
  problem::make_problem(p, captured, &problem, &functions);
  const semantics::FunctionProgram& program = functions.mask;
  MaskBlocks blocks;
  blocks.reads_lengths = reads_lengths(p.mask_function);
  std::int64_t* const n = blocks.shape;
  n[0] = reads(program, semantics::FunctionOp::kBatch) ? p.batch : 1;
  n[1] = reads(program, semantics::FunctionOp::kHead) ? p.num_heads_q : 1;
  n[2] = ceil_div(p.seqlen_q, options.size_q);
  n[3] = ceil_div(p.seqlen_kv, options.size_kv);
  const std::int64_t of_head = saturating_mul(n[2], n[3]);
  const std::int64_t count = saturating_mul(of_head, saturating_mul(n[0], n[1]));
  if (count > options.max_blocks) {
    return failure(StatusCode::kOverflow, where, "blocks (", count, ") must be at most ",
                   options.max_blocks);
  }
  blocks.known.resize(static_cast<std::size_t>(count));
  HeadBlocks head(problem, functions, options);
  for (std::int64_t x = 0; x < n[0] * n[1]; ++x) {
    if (head.fill(x / n[1], x % n[1], blocks.known.data() + x * of_head)) continue;
    return failure(StatusCode::kOverflow, where, "elements to look at must be at most ",
                   options.max_elements);
  }
  blocks.empty = std::count(blocks.known.begin(), blocks.known.end(), kEmpty);
  blocks.partial = std::count(blocks.known.begin(), blocks.known.end(), kPartial);
  return blocks;
}

}  // namespace regard
