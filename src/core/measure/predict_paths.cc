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
  if (path != PaddingPath::kPacked) work.cleared = (q.positions - q.rows) * row.out;
  if (is_packed != (path == PaddingPath::kPacked)) {
    // unpad reads and writes the rows; pad reads them and writes every position.
    const double in_q = is_packed ? q.rows + q.positions : 2.0 * q.rows;
    const double in_kv = is_packed ? kv.rows + kv.positions : 2.0 * kv.rows;
    const double back = is_packed ? 2.0 * q.rows : q.rows + q.positions;
    work.copied = in_q * row.q + in_kv * row.kv + back * row.out;
  }
  return work;
}

/// The call that computes a path. Keys that a mask hides in whole blocks cost as little as those
/// behind a length: every query sees as many as there are on average.
AttentionParams params_on(PaddingPath path, AttentionParams p) noexcept {
  if (path != PaddingPath::kMask) return p;  // rows are packed or have lengths
  const MeanSide kv = mean_keys(p);
  p.features.set(Feature::kPacked, false);
  p.features.set(Feature::kSeqlensQ, false);
  p.features.set(Feature::kSeqlensKv);
  p.tokens_q = 0;
  p.tokens_kv = static_cast<std::int64_t>(kv.rows);
  return p;
}

// Of the rate from memory, on a Zen 4: one thread copies 24 GB/s wherever tensors lie, as packed
// tensors are new memory in each call, and clears 8 GB/s. Of 102 batches 84 % are predicted within
// 1.3 times; with rates of caches for copies 75 %.
constexpr double kCopyRate = 0.67, kClearRate = 0.22;

/// The forward, by the default terms where the model has none, and what is copied and cleared.
double predict(const CostModel& model, const AttentionParams& p, const PathWork& work) {
  const CostKind kind = kind_of(p, false);
  const CostEntry* entry = entry_of(model.entries, BackendId::kFlash, kind, types_of(p));
  if (entry == nullptr) entry = entry_of(default_entries(), BackendId::kFlash, kind, types_of(p));
  const double forward = seconds_of(entry->terms, count_call(model, BackendId::kFlash, p, false));
  const double rate = rates_of(model).read_gbps * 1e9;
  return forward + (work.copied / kCopyRate + work.cleared / kClearRate) / rate;
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
