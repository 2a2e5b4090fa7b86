#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/message.h"
#include "core/measure/call_counts.h"
#include "core/measure/mean_sequence.h"
#include "regard/machine_rates.h"
#include "regard/padding.h"

// What each way to compute sequences of several lengths costs: FLASH's forward as predict_time()
// (predict_time.cc) has it, with what copies and cleared rows add.

namespace regard {
namespace {

/// What a path does, before any rate is applied.
struct PathWork {
  double operations = 0.0;
  double bytes = 0.0;    // of rows that the kernel reads and writes
  double cleared = 0.0;  // of positions without a row that it clears
  double copied = 0.0;   // that copies between padded and packed tensors read and write
  double seconds = 0.0;  // of what is done once a call
};

PathWork work_of(const AttentionParams& p, const MeanSide& q, const MeanSide& kv,
                 PaddingPath path) {
  const TokenBytes row = token_bytes(p);
  const bool is_packed = p.features.has(Feature::kPacked);
  const bool masked = path == PaddingPath::kMask;
  PathWork work;
  const double pairs =
      masked ? visible_pairs(p, q.extent, kv.extent) : visible_pairs(p, q.length, kv.length);
  work.operations = pairs * static_cast<double>(p.batch) * static_cast<double>(p.num_heads_q) *
                    2.0 * static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const double rows_q = masked ? q.positions : q.rows;
  work.bytes =
      rows_q * (row.q + row.out) + (masked ? kv.positions * (row.kv + 1.0) : kv.rows * row.kv);
  constexpr double kMakeMask = 1.5e-6, kMakeCopies = 1e-6;
  if (masked) work.seconds = kMakeMask;
  if (path != PaddingPath::kPacked) work.cleared = (q.positions - q.rows) * row.out;
  if (is_packed != (path == PaddingPath::kPacked)) {
    // unpad reads and writes the rows; pad reads them and writes every position.
    const double in_q = is_packed ? q.rows + q.positions : 2.0 * q.rows;
    const double in_kv = is_packed ? kv.rows + kv.positions : 2.0 * kv.rows;
    const double back = is_packed ? 2.0 * q.rows : q.rows + q.positions;
    work.seconds = kMakeCopies;
    work.copied = in_q * row.q + in_kv * row.kv + back * row.out;
  }
  return work;
}

/// The call that computes a path. A mask hides whole blocks of keys, which cost as little as those
/// behind a length: every query computes as many as there are on average, and half a block.
AttentionParams params_on(PaddingPath path, AttentionParams p) noexcept {
  if (path != PaddingPath::kMask) return p;  // rows are packed or have lengths
  constexpr std::int64_t kHalfBlock = 4;     // keys
  const MeanSide kv = mean_keys(p);
  p.features.set(Feature::kPacked, false);
  p.features.set(Feature::kSeqlensQ, false);
  p.features.set(Feature::kSeqlensKv);
  p.tokens_q = 0;
  p.tokens_kv = std::min(static_cast<std::int64_t>(kv.rows) + kHalfBlock * p.batch,
                         static_cast<std::int64_t>(kv.positions));
  return p;
}

// Of the rate from memory, by times of 200 batches on a Zen 5: where tensors lie matters little, as
// packed tensors are written and read at once. A token of [B,S,H,D] is one piece, of [B,H,S,D] one
// for each head.
constexpr double kCopyRate = 1.2, kCopyHeadsRate = 0.8, kClearRate = 0.8;
/// The forward, by the default terms where the model has none, and what is copied and cleared.
double predict(const CostModel& model, const AttentionParams& p, const PathWork& work) {
  const CostKind kind = kind_of(p, false);
  const CostEntry* entry = entry_of(model.entries, BackendId::kFlash, kind, types_of(p));
  if (entry == nullptr) entry = entry_of(default_entries(), BackendId::kFlash, kind, types_of(p));
  const double forward = seconds_of(entry->terms, count_call(model, BackendId::kFlash, p, false));
  const double rate = rates_of(model).read_gbps * 1e9;
  const double copy_rate = p.layout_q == Layout::kBshd ? kCopyRate : kCopyHeadsRate;
  return forward + (work.copied / copy_rate + work.cleared / kClearRate) / rate + work.seconds;
}

}  // namespace

const char* to_string(PaddingPath path) noexcept {
  constexpr const char* kNames[] = {"lengths", "mask", "packed"};
  const auto i = static_cast<std::size_t>(path);
  return i < std::size(kNames) ? kNames[i] : "?";
}

const char* to_string(PaddingPolicy policy) noexcept {
  constexpr const char* kNames[] = {"auto", "padded", "packed"};
  const auto i = static_cast<std::size_t>(policy);
  return i < std::size(kNames) ? kNames[i] : "?";
}

Expected<PaddingPolicy> parse_padding_policy(const std::string& name) {
  for (const PaddingPolicy policy :
       {PaddingPolicy::kAuto, PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
    if (name == to_string(policy)) return policy;
  }
  return invalid("parse_padding_policy", "padding (", name, ") must be auto, padded or packed");
}

std::vector<PathPrediction> predict_paths(const AttentionParams& params, const CostModel& model) {
  const bool is_packed = params.features.has(Feature::kPacked);
  const bool has_lengths =
      params.features.has(Feature::kSeqlensQ) || params.features.has(Feature::kSeqlensKv);
  const FeatureSet without_cache = params.features.without(
      {Feature::kPaged, Feature::kCacheBatchIdx, Feature::kCacheLeftpad, Feature::kTreeMask,
       Feature::kAppendKv, Feature::kRotary, Feature::kScales, Feature::kChannelScales});
  if (without_cache != params.features || (!is_packed && !has_lengths)) return {};
  if (params.device.type != DeviceType::kCpu) return {};  // the rates are a CPU's
  const MeanSide q = mean_queries(params), kv = mean_keys(params);
  std::vector<PathPrediction> paths;
  for (int i = 0; i < kPaddingPathCount; ++i) {
    const auto path = static_cast<PaddingPath>(i);
    const PathWork work = work_of(params, q, kv, path);
    paths.push_back({path, work.operations, work.bytes + work.copied,
                     predict(model, params_on(path, params), work)});
  }
  return paths;
}

PaddingPath fastest_path(const std::vector<PathPrediction>& paths) noexcept {
  const PathPrediction* fastest = nullptr;
  for (const PathPrediction& path : paths) {
    if (fastest == nullptr || path.seconds < fastest->seconds) fastest = &path;
  }
  return fastest == nullptr ? PaddingPath::kLengths : fastest->path;
}

}  // namespace regard
