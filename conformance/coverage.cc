#include "conformance/coverage.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>

#include "conformance/layout.h"
#include "oracle/expression.h"
#include "oracle/functions.h"

namespace regard::conformance {
namespace {

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string count_text(std::int64_t count, std::int64_t of) {
  char text[48];
  std::snprintf(text, sizeof text, "%7lld %5.1f %%", static_cast<long long>(count),
                of == 0 ? 0.0 : 100.0 * static_cast<double>(count) / static_cast<double>(of));
  return text;
}

bool exclude_each_other(Feature a, Feature b) {
  const auto is = [&](Feature x, Feature y) { return (a == x && b == y) || (a == y && b == x); };
  return is(Feature::kCausal, Feature::kWindowRight) ||
         is(Feature::kDiagonalBottomRight, Feature::kDiagonalOffset) ||
         is(Feature::kDiagonalBottomRight, Feature::kDiagonalPerSequence) ||
         is(Feature::kDiagonalOffset, Feature::kDiagonalPerSequence) ||
         is(Feature::kPacked, Feature::kScoresOut) ||
         is(Feature::kScales1x32, Feature::kScales1x128) ||
         is(Feature::kScales1x32, Feature::kScales128x128) ||
         is(Feature::kScales1x128, Feature::kScales128x128) ||
         is(Feature::kFutureScales, Feature::kScales1x32) ||
         is(Feature::kFutureScales, Feature::kScales1x128) ||
         is(Feature::kScales1x32, Feature::kAppendKv) ||
         is(Feature::kScales1x128, Feature::kAppendKv) ||
         is(Feature::kScales128x128, Feature::kAppendKv) ||
         is(Feature::kFutureScales, Feature::kAppendKv) ||
         is(Feature::kScales128x128, Feature::kPaged) ||
         is(Feature::kFutureScales, Feature::kPaged) || is(Feature::kScalesQ, Feature::kRotary) ||
         is(Feature::kScalesQ, Feature::kRotaryInterleaved) ||
         is(Feature::kScalesQ, Feature::kKvDtypesDiffer) ||
         is(Feature::kQuantizedProbs, Feature::kKvDtypesDiffer) ||
         is(Feature::kScalesQ, Feature::kPositions) || is(Feature::kScalesQ, Feature::kHadamard) ||
         is(Feature::kPacked, Feature::kCacheBatchIdx) ||
         is(Feature::kPaged, Feature::kCacheBatchIdx);
}

/// Whether a case of the backend may have both: what a backward is given needs its claims.
bool claims_pair(const BackendInfo& info, Feature a, Feature b) {
  constexpr FeatureSet kGiven{Feature::kDLse, Feature::kDelta};
  const Claims& claims = kGiven.has(a) || kGiven.has(b) ? info.backward : info.forward;
  constexpr FeatureSet kOutputs{Feature::kScoresOut, Feature::kOutAmax};
  const bool written = kOutputs.has(a) || kOutputs.has(b);
  return claims.features.has(a) && claims.features.has(b) && (&claims == &info.forward || !written);
}

bool expanded(const TensorView& view) {
  for (int dim = 0; dim < view.rank; ++dim) {
    if (view.shape[dim] > 1 && view.strides[dim] == 0) return true;
  }
  return false;
}

bool dense(const TensorView& view) { return footprint(view) == view.num_elements(); }

}  // namespace

FeatureSet features_of(const Case& c) {
  FeatureSet features = c.params.features;
  features.set(Feature::kNonFiniteBehindMask, c.data.poison);
  return features;
}

void Coverage::add_trait(const std::string& trait, bool present) {
  traits_[trait] += present ? 1 : 0;
}

void Coverage::add_case(const PreparedCase& prepared) {
  const Case& c = prepared.source;
  const AttentionParams& p = c.params;
  ++cases_;
  const FeatureSet features = features_of(c);
  for (int n = 0; n < kFeatureCount; ++n) {
    if (features.has(static_cast<Feature>(n))) ++features_[n];
  }
  const auto& rows = prepared.truth.rows;
  add_trait("rows dead", std::any_of(rows.begin(), rows.end(), [](const oracle::RowFacts& f) {
              return !f.padding && f.visible_keys == 0;
            }));
  add_trait("rows structural", std::any_of(rows.begin(), rows.end(), [](const auto& f) {
              return f.smax > 0.1 / 4 * 0x1p24;
            }));
  add_trait("behind masks: poison", c.data.poison);
  add_trait("empty any", p.batch == 0 || p.num_heads_q == 0 || p.seqlen_q == 0 || p.seqlen_kv == 0);
  add_trait("empty batch", p.batch == 0);
  add_trait("empty heads", p.num_heads_q == 0);
  add_trait("empty seqlen_q", p.seqlen_q == 0);
  add_trait("empty seqlen_kv", p.seqlen_kv == 0);
  add_trait(std::string("data ") + to_string(c.data.kind));
  add_trait(std::string("dtype ") + to_string(p.dtype_q));
  if (p.dtype_q != p.dtype_k) add_trait(std::string("keys of dtype ") + to_string(p.dtype_k));
  if (p.dtype_k != p.dtype_v) add_trait(std::string("values of dtype ") + to_string(p.dtype_v));
  for (const std::int64_t size : {1, 3, 63, 65, 127, 257}) {
    add_trait("length " + std::to_string(size), p.seqlen_q == size || p.seqlen_kv == size);
  }
  if (p.features.has(Feature::kAttnMask)) add_trait("mask dims " + std::to_string(p.mask_dims));
  if (p.features.has(Feature::kAttnBias)) add_trait("bias dims " + std::to_string(p.bias_dims));
  add_memory_traits(prepared);
  add_function_traits(prepared);
}

void Coverage::add_function_traits(const PreparedCase& prepared) {
  const auto& rows = prepared.truth.rows;
  add_trait("rows undecided", std::any_of(rows.begin(), rows.end(),
                                          [](const oracle::RowFacts& f) { return f.undecided; }));
  const AttentionRequest& r = prepared.problem.request();
  const AttentionOptions& o = r.options;
  const AttentionParams& p = prepared.source.params;
  add_trait("functions recognised",
            !(o.score_function == p.score_function) || !(o.mask_function == p.mask_function));
  std::set<std::string> seen;
  for (const Expression* expression : {&p.score_function, &p.mask_function}) {
    if (expression->empty()) continue;
    const Expected<oracle::Function> function = oracle::Function::parse(expression->text());
    if (!function) continue;
    for (const oracle::Node& node : function->nodes()) {
      seen.insert(std::string("operator ") + oracle::name_of(node.op));
      if (node.op != oracle::NodeOp::kGather) continue;
      seen.insert("captured rank " + std::to_string(node.count));
      seen.insert(std::string("captured ") + to_string((r.*oracle::kCaptured[node.slot]).dtype));
    }
  }
  if (r.block_mask.present()) {
    for_each_element(r.block_mask, [&](const auto&, const unsigned char* element) {
      constexpr const char* kStates[] = {"blocks false", "blocks either", "blocks true"};
      seen.insert(kStates[*element]);
    });
  }
  for (const std::string& trait : seen) add_trait(trait);
}

void Coverage::add_memory_traits(const PreparedCase& prepared) {
  const AttentionRequest& r = prepared.problem.request();
  const AttentionParams& p = prepared.source.params;
  const struct {
    const char* name;
    const TensorView& view;
    std::int32_t align_log2;
  } main[] = {{"q", r.q, p.align_q_log2},
              {"k", r.k, p.align_k_log2},
              {"v", r.v, p.align_v_log2},
              {"out", r.out, p.align_out_log2}};
  for (const auto& tensor : main) {
    const std::string name = std::string("tensor ") + tensor.name + " ";
    add_trait(name + to_string(layout_of(tensor.view)));
    add_trait(name + "padded", !dense(tensor.view) && !expanded(tensor.view));
    add_trait(name + "unaligned", tensor.align_log2 < kMaxAlignLog2);
  }
  add_trait("tensor k expanded", expanded(r.k));
  add_trait("tensor v expanded", expanded(r.v));
  add_trait("tensor qkv packed", arrange(prepared.source).packed_qkv);
  const auto add_loose = [&](const char* name, const TensorView& view) {
    if (!view.present()) return;
    add_trait(std::string("tensor ") + name + " expanded", expanded(view));
    add_trait(std::string("tensor ") + name + " padded", !dense(view) && !expanded(view));
  };
  add_loose("attn_mask", r.attn_mask);
  add_loose("attn_bias", r.attn_bias);
  add_loose("lse", r.lse);
  add_loose("scores_out", r.scores_out);
}

void Coverage::add_run(const PreparedCase& prepared, const BackendRef& backend, Outcome outcome) {
  const std::string name = to_string(backend);
  auto found = std::find_if(backends_.begin(), backends_.end(),
                            [&](const BackendCounts& counts) { return counts.name == name; });
  if (found == backends_.end()) {
    backends_.emplace_back();
    found = backends_.end() - 1;
    found->name = name;
  }
  ++found->outcomes[static_cast<int>(outcome)];
  if (outcome == Outcome::kRefused) return;
  const FeatureSet features = features_of(prepared.source);
  for (int a = 0; a < kFeatureCount; ++a) {
    if (!features.has(static_cast<Feature>(a))) continue;
    for (int b = 0; b < kFeatureCount; ++b) {
      if (features.has(static_cast<Feature>(b))) {
        ++found->pairs[static_cast<std::size_t>(a * kFeatureCount + b)];
      }
    }
  }
}

const Coverage::BackendCounts* Coverage::find(const BackendRef& backend) const {
  const std::string name = to_string(backend);
  for (const BackendCounts& counts : backends_) {
    if (counts.name == name) return &counts;
  }
  return nullptr;
}

std::int64_t Coverage::count(const BackendRef& backend, Feature a, Feature b) const {
  const BackendCounts* counts = find(backend);
  if (counts == nullptr) return 0;
  return counts->pairs[static_cast<std::size_t>(a) * kFeatureCount + static_cast<std::size_t>(b)];
}

std::int64_t Coverage::count(const std::string& trait) const {
  const auto found = traits_.find(trait);
  return found == traits_.end() ? 0 : found->second;
}

std::vector<std::string> Coverage::missing_pairs(const BackendInfo& info,
                                                 std::int64_t at_least) const {
  std::vector<std::string> missing;
  for (int a = 0; a < kFeatureCount; ++a) {
    for (int b = a; b < kFeatureCount; ++b) {
      const Feature fa = static_cast<Feature>(a), fb = static_cast<Feature>(b);
      if (!claims_pair(info, fa, fb) || exclude_each_other(fa, fb)) continue;
      const std::int64_t n = count(info.ref, fa, fb);
      if (n >= at_least) continue;
      missing.push_back(to_string(info.ref) + ": " + to_string(fa) + " with " + to_string(fb) +
                        ": " + std::to_string(n));
    }
  }
  return missing;
}

/// The rarest pair among features that ever ran on the backend.
std::string Coverage::pairs_line(const BackendCounts& counts) const {
  std::int64_t pairs = 0, min = std::numeric_limits<std::int64_t>::max();
  std::string names = "none";
  const auto at = [&](int a, int b) {
    return counts.pairs[static_cast<std::size_t>(a * kFeatureCount + b)];
  };
  for (int a = 0; a < kFeatureCount; ++a) {
    for (int b = a + 1; b < kFeatureCount; ++b) {
      const Feature fa = static_cast<Feature>(a), fb = static_cast<Feature>(b);
      if (at(a, a) == 0 || at(b, b) == 0 || exclude_each_other(fa, fb)) continue;
      ++pairs;
      if (at(a, b) >= min) continue;
      min = at(a, b);
      names = std::string(to_string(fa)) + " with " + to_string(fb);
    }
  }
  return std::to_string(pairs) + " pairs of features, the rarest " + names + " in " +
         std::to_string(pairs == 0 ? 0 : min) + " cases";
}

std::string Coverage::table() const {
  std::string text = "coverage of " + std::to_string(cases_) + " cases\n";
  for (const BackendCounts& counts : backends_) {
    text += "  " + padded(counts.name, 12) + "passed " + std::to_string(counts.outcomes[0]) +
            ", refused " + std::to_string(counts.outcomes[1]) + ", failed " +
            std::to_string(counts.outcomes[2]) + "; " + pairs_line(counts) + "\n";
  }
  text += "  " + padded("feature", 26) + "  cases      %";
  for (const BackendCounts& counts : backends_) text += "   ran on " + padded(counts.name, 10);
  text += "\n";
  for (int n = 0; n < kFeatureCount; ++n) {
    if (features_[n] == 0) continue;
    text +=
        "  " + padded(to_string(static_cast<Feature>(n)), 24) + count_text(features_[n], cases_);
    for (const BackendCounts& counts : backends_) {
      const auto ran = counts.pairs[static_cast<std::size_t>(n * kFeatureCount + n)];
      text += padded("", 8) + padded(std::to_string(ran), 12);
    }
    text += "\n";
  }
  for (const auto& [trait, count] : traits_) {
    text += "  " + padded(trait, 24) + count_text(count, cases_) + "\n";
  }
  return text;
}

}  // namespace regard::conformance
