#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "conformance/captured.h"
#include "conformance/fill.h"
#include "conformance/problem.h"
#include "conformance/rng.h"
#include "oracle/expression.h"
#include "oracle/number.h"
#include "oracle/padded.h"
#include "oracle/rules.h"

namespace regard::conformance {
namespace {

constexpr std::uint64_t kCapturedFillStream = 0x6361707475726564;
constexpr std::uint64_t kBlockStream = 0x626c6f636b73;

using oracle::NodeOp;

/// The tensor whose elements score_function only adds to what it computes: -inf is a mask there.
int added_slot(const Case& c) {
  if (c.params.score_function.empty()) return -1;
  const Expected<oracle::Function> f = oracle::Function::parse(c.params.score_function.text());
  if (!f || f->nodes().back().op != NodeOp::kAdd) return -1;
  int added = -1, reads = 0;
  for (int k = 0; k < 2; ++k) {
    const auto n = static_cast<std::size_t>(f->nodes().back().args[k]);
    if (f->nodes()[n].op == NodeOp::kGather) added = f->nodes()[n].slot;
  }
  for (const oracle::Node& n : f->nodes()) reads += n.op == NodeOp::kGather && n.slot == added;
  return reads == 1 ? added : -1;
}

/// As documents, as padding, or as indices have them.
double captured_int(const CapturedSpec& spec, bool is_masks, const TensorView& view, const Rng& rng,
                    std::int64_t last, std::uint64_t n) {
  const double draw = rng.uniform_at(n);
  constexpr double kMax = static_cast<double>(kMaxCapturedIndex);
  if (view.dtype == Dtype::kBool) return draw < 0.5 ? 0.0 : 1.0;
  const double style = rng.uniform_at(~std::uint64_t{0});
  if (!spec.is_index && style < 0.6) {
    const auto run = 1 + static_cast<std::int64_t>(rng.uniform_at(~std::uint64_t{1}) * 40.0);
    return static_cast<double>(std::min(last / run, kMaxCapturedIndex));
  }
  if (!spec.is_index && is_masks && style < 0.8 && view.dtype != Dtype::kU8) {
    if (draw < 0.1) return -1.0;
    if (draw < 0.15) return static_cast<double>(std::numeric_limits<std::int32_t>::max());
    if (draw < 0.2) return static_cast<double>(std::numeric_limits<std::int32_t>::min());
  }
  return std::floor(draw * (kMax + 1.0));
}

}  // namespace

void fill_captured(const Case& c, AttentionGradRequest* request) {
  const auto specs = captured_of(c);
  const int added = added_slot(c);
  const std::string& score = c.params.score_function.text();
  for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
    const TensorView& view = request->*oracle::kCaptured[slot];
    if (!view.present()) continue;
    const CapturedSpec& spec = specs[static_cast<std::size_t>(slot)];
    const Rng rng(c.data.seed, kCapturedFillStream + static_cast<std::uint64_t>(slot));
    // Large integers would make scores of score_function large.
    const bool is_masks = score.find("i" + std::to_string(slot)) == std::string::npos;
    std::uint64_t position = 0;
    for_each_element(view, [&](const std::int64_t(&at)[kMaxRank], unsigned char* element) {
      const std::uint64_t n = position++;
      double value = 0.75 * rng.normal_at(n);
      if (slot == added && rng.uniform_at(~n) < 0.04) {
        value = -std::numeric_limits<double>::infinity();
      }
      if (spec.is_int) value = captured_int(spec, is_masks, view, rng, at[view.rank - 1], n);
      oracle::encode(value, element, view.dtype);
    });
  }
}

namespace {

struct BlockFacts {
  bool any_true = false, any_false = false;
};

/// What mask_function is at the places of a block that a sequence has.
void add_places(const oracle::Rules& rules, std::int64_t b, std::int64_t h, std::int64_t block_q,
                std::int64_t block_kv, BlockFacts* facts) {
  const AttentionOptions& options = rules.request().options;
  const std::int64_t begin_q = block_q * options.block_size_q;
  const std::int64_t begin_kv = block_kv * options.block_size_kv;
  const std::int64_t end_q = std::min(begin_q + options.block_size_q, rules.len_q(b));
  const std::int64_t end_kv = std::min(begin_kv + options.block_size_kv, rules.len_kv(b));
  for (std::int64_t i = begin_q; i < end_q; ++i) {
    for (std::int64_t j = begin_kv; j < end_kv; ++j) {
      const oracle::FunctionPlace place = rules.function_place({b, h, i, j});
      const bool visible = rules.functions().see(place, oracle::Fault::kNone).visible;
      (visible ? facts->any_true : facts->any_false) = true;
    }
  }
}

}  // namespace

void fill_block_mask(const Case& c, AttentionGradRequest* request) {
  const TensorView& mask = request->block_mask;
  if (!mask.present()) return;
  AttentionGradRequest mask_alone = *request;
  mask_alone.options.score_function = {};
  const Expected<oracle::Padded> padded = oracle::Padded::make(mask_alone);
  if (!padded) return;  // the oracle will say so
  const oracle::Rules rules(padded->request(), oracle::Fault::kNone);
  const Rng rng(c.data.seed, kBlockStream);
  std::uint64_t position = 0;
  for_each_element(mask, [&](const std::int64_t(&at)[kMaxRank], unsigned char* element) {
    BlockFacts facts;
    for (std::int64_t b = 0; b < c.params.batch; ++b) {
      for (std::int64_t h = 0; h < c.params.num_heads_q; ++h) {
        const bool of_b = mask.shape[0] == 1 || at[0] == b;
        const bool of_h = mask.shape[1] == 1 || at[1] == h;
        if (of_b && of_h) add_places(rules, b, h, at[2], at[3], &facts);
      }
    }
    // Some blocks are stated as such of which nothing is known; those without a place as any.
    const double draw = rng.uniform_at(position++);
    double stated = 1.0;
    if (facts.any_true != facts.any_false && draw < 0.8) stated = facts.any_true ? 2.0 : 0.0;
    if (!facts.any_true && !facts.any_false) stated = std::floor(3.0 * draw);
    oracle::encode(stated, element, mask.dtype);
  });
}

}  // namespace regard::conformance
