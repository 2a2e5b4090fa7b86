#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/measure/call_counts.h"
#include "core/measure/mean_sequence.h"

namespace regard {
namespace {

// Of pairs of bf16 more than 8 rows are row blocks.
constexpr std::int64_t kDecodeRows = 12, kDecodePairRows = 8, kShortRows = 64;

std::int64_t rows_of(const AttentionParams& p, std::int64_t len_q) noexcept {
  return p.num_heads_kv > 0 ? len_q * (p.num_heads_q / p.num_heads_kv) : 0;
}

/// f32 elements of a vector.
std::int64_t lanes_of(const Isa& isa) noexcept {
  if (isa.includes(Isa::kAvx512)) return 16;
  if (isa.includes(Isa::kAvx2)) return 8;
  return isa.includes(Isa::kNeon) ? 4 : 1;
}

/// Seconds that bytes of a working set of `footprint` bytes take, read again and again.
double level_seconds(const CostModel& model, const MachineRates& rates, double bytes,
                     double footprint) noexcept {
  const double threads = std::max(rates.threads, 1);
  const double l2 = static_cast<double>(model.l2_bytes) * threads;
  const double l3 = l2 + static_cast<double>(model.l3_bytes);
  const double memory_rate = rates.read_gbps * 1e9;
  const double l3_rate = 2.5 * memory_rate;
  const double l2_rate = std::max(60e9 * threads, l3_rate);
  const double size = std::max(footprint, 1.0);
  const double in_l2 = std::min(1.0, l2 / size);
  const double in_l3 = std::min(1.0, l3 / size) - in_l2;
  return bytes * (in_l2 / l2_rate + in_l3 / l3_rate + (1.0 - in_l2 - in_l3) / memory_rate);
}

/// Operations of each score that features add to those of a plain one, at the same rate.
double feature_operations(const AttentionParams& p) noexcept {
  double operations = 0.0;
  const auto add = [&](Feature feature, double count) {
    if (p.features.has(feature)) operations += count;
  };
  add(Feature::kAttnMask, 4.0);
  add(Feature::kAttnBias, 1.0);
  add(Feature::kAlibi, 0.2);
  add(Feature::kSoftcap, 3.0);
  add(Feature::kDropout, 2.0);
  add(Feature::kSegmentIds, 0.4);
  if (!p.score_function.empty()) operations += 2.0;
  if (!p.mask_function.empty()) operations += 1.0;
  if (p.features.has(Feature::kScoreCallback)) operations += 20.0;
  return operations;
}

/// Elements of a tensor that is broadcast to all scores.
double elements_of(BroadcastDims dims, const AttentionParams& p) noexcept {
  double elements = 1.0;
  const std::int64_t extents[] = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
  for (int i = 0; i < 4; ++i) {
    if ((dims >> i & 1) != 0) elements *= static_cast<double>(extents[i]);
  }
  return elements;
}

/// Bytes of masks and biases.
double mask_bytes(const AttentionParams& p) noexcept {
  double bytes = 0.0;
  if (p.features.has(Feature::kAttnMask)) bytes += elements_of(p.mask_dims, p);
  if (p.features.has(Feature::kAttnBias)) {
    bytes += elements_of(p.bias_dims, p) * static_cast<double>(size_of(p.dtype_bias));
  }
  return bytes;
}

/// Nanoseconds that a key of decode rows takes longer where head_dim does not fill its last vector:
/// once, for each row of queries, and once where elements are converted by other vectors.
struct TailTime {
  double key, row, conversion;
};
// By CostTypes, of 117 GFLOP/s a thread: by times of FLASH on a Zen 4, but for u4 times 0.15 since
// tails are loaded under a mask (1,172 times on a Zen 5).
constexpr TailTime kTails[] = {{1.5, 0.75, 0}, {2.7, 0.5, 0},  {3, 1, 0},
                               {2, 0.9, 0},    {3.8, 0.45, 5}, {70, 3, 0}};
constexpr double kTailPeak = 117e9;

/// Operations of f32 that take as long as a key's last vectors.
double tail_operations(const MachineRates& rates, BackendId backend,
                       const AttentionParams& p) noexcept {
  constexpr std::int64_t kF8Codes = 64;  // that are converted at once
  const CostTypes types = types_of(p);
  const std::int64_t lanes = lanes_of(rates.isa);
  const bool is_narrow = p.dtype_q == Dtype::kBf16 && types != CostTypes::kConverted;
  const std::int64_t step = backend == BackendId::kMath            ? lanes
                            : types == CostTypes::kU4              ? kGroupSize
                            : is_narrow || types == CostTypes::kF8 ? 2 * lanes
                                                                   : lanes;
  const auto has_tail = [&](std::int64_t vector) {
    return 0.5 *
           ((p.head_dim_qk % vector != 0 ? 1.0 : 0.0) + (p.head_dim_v % vector != 0 ? 1.0 : 0.0));
  };
  // A last vector of f32 that is full is half as long to convert as one that is not.
  const bool is_half = backend != BackendId::kMath &&
                       (types == CostTypes::kI8 || types == CostTypes::kU4) &&
                       has_tail(lanes) == 0.0;
  const TailTime tail = kTails[static_cast<int>(types)];
  const double rows = static_cast<double>(rows_of(p, mean_queries(p).length));
  const double nanoseconds =
      (is_half ? 0.5 : 1.0) * has_tail(step) * (tail.key + tail.row * rows) +
      (backend == BackendId::kMath ? 0.0 : has_tail(kF8Codes) * tail.conversion);
  return nanoseconds * 1e-9 * kTailPeak;
}

/// Keys that a row of queries computes beside those that it sees, where a mask ends: half of a
/// vector of rows and of a block of keys in FLASH's and EFFICIENT's forward, half of a row block
/// and of a tile elsewhere. (With 32 for all, 84 % of 70 causal problems were predicted within 1.3
/// times, and 71 % of 24 windows; with these 94 % and 92 %.)
double hidden_keys(const MachineRates& rates, BackendId backend, bool backward) noexcept {
  constexpr double kBlockKeys = 8.0, kHalfRowBlock = 32.0, kBackward = 20.0;
  if (backward) return kBackward;
  if (backend == BackendId::kMath) return kHalfRowBlock;
  return 0.5 * (static_cast<double>(lanes_of(rates.isa)) + kBlockKeys);
}

/// The pairs of sequences whose longest and mean are known, over those of sequences that are all as
/// long as the mean: lengths are taken to lie evenly around it.
double spread_of_lengths(const MeanSide& q, const MeanSide& kv, std::int64_t batch) noexcept {
  if (batch < 2 || q.length == 0 || kv.length == 0) return 1.0;
  const auto half_range = [](const MeanSide& side) {
    const double room = static_cast<double>(side.extent) / static_cast<double>(side.length) - 1.0;
    return std::clamp(room, 0.0, 1.0);
  };
  const double sequences = static_cast<double>(batch);
  return 1.0 + half_range(q) * half_range(kv) / 3.0 * (1.0 - 1.0 / (sequences * sequences));
}

/// Pairs of a query and a key that a call computes, of a head of a sequence on average.
double computed_pairs(const MachineRates& rates, BackendId backend, const AttentionParams& p,
                      bool backward) noexcept {
  const MeanSide q = mean_queries(p), kv = mean_keys(p);
  const double all = static_cast<double>(q.length) * static_cast<double>(kv.length);
  double pairs = visible_pairs(p, q.length, kv.length);
  if (pairs < all) {
    const bool sees_less = p.diagonal == Diagonal::kBottomRight && p.window_right >= 0;
    const std::int64_t rows = sees_less ? std::min(q.length, kv.length) : q.length;
    pairs =
        std::min(all, pairs + hidden_keys(rates, backend, backward) * static_cast<double>(rows));
  }
  return pairs * spread_of_lengths(q, kv, p.batch);
}

/// Threads that have something to do: 3 tasks that cannot be divided keep 2 threads as busy as 1.5.
double threads_at_work(const MachineRates& rates, double finest_tasks, double products,
                       bool is_divided) noexcept {
  constexpr double kProductsOfAThread = 1 << 17;
  const double worth = std::floor(products / kProductsOfAThread);
  const double tasks = is_divided ? finest_tasks : std::floor(finest_tasks);
  const double threads =
      std::clamp(std::min(tasks, worth), 1.0, static_cast<double>(std::max(rates.threads, 1)));
  return is_divided ? threads : tasks / std::ceil(tasks / threads);
}

/// How many times as fast workers of FLASH's backward compute a head side by side as one does
/// (src/cpu/backward/args.h): in as many phases as it has blocks of rows or of keys, whichever are
/// more, each takes one pair of blocks, of up to 192 rows and of 128 keys.
double backward_side_by_side(std::int64_t rows, std::int64_t keys) noexcept {
  constexpr std::int64_t kMostRows = 192, kVectors = 48, kKeys = 128;
  const auto divided = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  if (rows == 0 || keys == 0) return 1.0;
  const std::int64_t row_blocks = divided(rows, kMostRows), key_blocks = divided(keys, kKeys);
  const std::int64_t block_rows = divided(divided(rows, row_blocks), kVectors) * kVectors;
  const double pairs = static_cast<double>(rows) * static_cast<double>(keys);
  const double phases = static_cast<double>(std::max(row_blocks, key_blocks));
  return std::max(pairs / (phases * static_cast<double>(block_rows * kKeys)), 1.0);
}

}  // namespace

MachineRates rates_of(const CostModel& model) noexcept {
  MachineRates rates = model.rates;
  const MachineRates typical = default_rates(rates.isa, rates.threads);
  const auto complete = [](double* rate, double other) {
    if (!(*rate > 0.0)) *rate = other;
  };
  complete(&rates.f32_gflops, typical.f32_gflops);
  complete(&rates.f64_gflops, typical.f64_gflops);
  complete(&rates.bf16_gflops, typical.bf16_gflops);
  complete(&rates.read_gbps, typical.read_gbps);
  return rates;
}

CostKind kind_of(const AttentionParams& p, bool backward) noexcept {
  if (backward) return CostKind::kBackward;
  const std::int64_t rows = rows_of(p, mean_queries(p).length);
  if (rows <= (types_of(p) == CostTypes::kPairs ? kDecodePairRows : kDecodeRows)) {
    return CostKind::kDecode;
  }
  return rows <= kShortRows ? CostKind::kShort : CostKind::kPrefill;
}

CostTypes types_of(const AttentionParams& p) noexcept {
  const auto all = [&](Dtype dtype) {
    return p.dtype_q == dtype && p.dtype_k == dtype && p.dtype_v == dtype;
  };
  if (all(Dtype::kF32) || all(Dtype::kF64)) return CostTypes::kFloats;
  const auto any = [&](Dtype dtype) { return p.dtype_k == dtype || p.dtype_v == dtype; };
  if (any(Dtype::kU4)) return CostTypes::kU4;
  if (any(Dtype::kI8)) return CostTypes::kI8;
  if (is_f8(p.dtype_k) || is_f8(p.dtype_v)) return CostTypes::kF8;
  const bool is_pairs = all(Dtype::kBf16) && !p.features.has(Feature::kDescales);
  return is_pairs ? CostTypes::kPairs : CostTypes::kConverted;
}

/// The peak of the kernel that runs: AMX multiplies in row blocks of the forward, and in FLASH's
/// backward; decode rows of bf16 multiply caches of 8 bits as pairs, and those of u4 in bytes where
/// a vector of codes is whole groups (src/cpu/decode/product_forms.h).
double arithmetic_gflops(const MachineRates& rates, BackendId backend, CostKind kind,
                         const AttentionParams& p) noexcept {
  const bool in_rows = kind == CostKind::kPrefill || kind == CostKind::kShort;
  const bool has_amx = kind == CostKind::kBackward ? backend == BackendId::kFlash
                                                   : in_rows && backend != BackendId::kMath;
  if (rates.isa.includes(Isa::kAmxBf16) && !has_amx) {
    return p.dtype_q == Dtype::kF64 ? rates.f64_gflops : rates.f32_gflops;
  }
  constexpr std::int64_t kCodes = 128;
  const bool has_forms = types_of(p) == CostTypes::kU4
                             ? p.head_dim_qk % kCodes == 0 && p.head_dim_v % kCodes == 0
                             : types_of(p) > CostTypes::kConverted;
  const bool has_pairs = kind == CostKind::kDecode && backend != BackendId::kMath &&
                         p.dtype_q == Dtype::kBf16 && has_forms;
  return has_pairs ? rates.bf16_gflops : peak_gflops(rates, p);
}

CallCounts count_call(const CostModel& model, BackendId backend, const AttentionParams& p,
                      bool backward) noexcept {
  const MachineRates rates = rates_of(model);
  const MeanSide q = mean_queries(p), kv = mean_keys(p);
  const CostKind kind = kind_of(p, backward);
  const std::int64_t rows = rows_of(p, q.length), lanes = lanes_of(rates.isa);
  const double heads = static_cast<double>(p.batch) * static_cast<double>(p.num_heads_q);
  const double kv_heads = static_cast<double>(p.batch) * static_cast<double>(p.num_heads_kv);
  // Vectors of rows are computed whole, but for decode rows.
  const std::int64_t whole = (rows + lanes - 1) / lanes * lanes;
  const double rounding = kind == CostKind::kDecode || rows == 0
                              ? 1.0
                              : static_cast<double>(whole) / static_cast<double>(rows);
  const double all_pairs = static_cast<double>(q.length) * static_cast<double>(kv.length);
  const double pairs = computed_pairs(rates, backend, p, backward);
  const double dims = static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const double per_pair =
      backward ? 2.0 * static_cast<double>(3 * p.head_dim_qk + 2 * p.head_dim_v) : 2.0 * dims;

  const bool is_few = rows <= kShortRows && !backward;
  const bool splits = backend != BackendId::kMath && is_few;
  constexpr double kSplitKeys = 512.0;
  const double split_count =
      splits ? std::clamp(static_cast<double>(kv.length) / kSplitKeys, 1.0, 16.0) : 1.0;
  // FLASH's workers share the splits of a head where heads are few.
  const bool shares_splits =
      backend == BackendId::kFlash && kv_heads < 4.0 * static_cast<double>(rates.threads);
  const double row_tasks =
      static_cast<double>((rows + lanes - 1) / std::max<std::int64_t>(lanes, 1));
  const double side_by_side =
      backward && backend == BackendId::kFlash ? backward_side_by_side(rows, kv.length) : row_tasks;
  const double finest = !is_few         ? kv_heads * side_by_side
                        : shares_splits ? kv_heads * std::floor(split_count)
                                        : kv_heads;
  const double products = all_pairs * heads * dims;
  const bool is_divided = !is_few && side_by_side > 1.0;
  const double threads = threads_at_work(rates, std::max(finest, 1.0), products, is_divided);
  const double share = threads / static_cast<double>(std::max(rates.threads, 1));
  const double f32_peak =
      (p.dtype_q == Dtype::kF64 ? rates.f64_gflops : rates.f32_gflops) * 1e9 * share;

  CallCounts counts;
  constexpr double kTaskRows = 48.0;
  const double tasks = kv_heads * std::max(1.0, std::ceil(static_cast<double>(rows) / kTaskRows));
  counts.tasks = tasks * split_count / threads;
  counts.arithmetic = pairs * heads * rounding * per_pair /
                      (arithmetic_gflops(rates, backend, kind, p) * 1e9 * share);
  // Decode rows are reduced four at a time, however many of them there are.
  const double groups = kind == CostKind::kDecode && backend != BackendId::kMath && rows > 0
                            ? 4.0 * static_cast<double>((rows + 3) / 4) / static_cast<double>(rows)
                            : rounding;
  counts.scores = pairs * heads * groups * (1.0 + feature_operations(p)) / f32_peak;
  const double head_keys = kv_heads * visible_keys_of(p, q.length, kv.length);
  if (kind == CostKind::kDecode) {
    counts.tails = head_keys * tail_operations(rates, backend, p) / f32_peak;
  }
  const double kv_elements = head_keys * dims;
  counts.rows = (heads * static_cast<double>(q.length) * dims + kv_elements) *
                (backward ? 2.0 : 1.0) / f32_peak;
  const TokenBytes token = token_bytes(p);
  const double keys = static_cast<double>(p.batch) * visible_keys_of(p, q.length, kv.length);
  double bytes = q.rows * (token.q + token.out) + keys * token.kv;
  if (backward) bytes *= 2.0;
  bytes += mask_bytes(p);
  counts.memory = level_seconds(model, rates, bytes, bytes);
  if (backend == BackendId::kMath) {  // scores of a row block are written and read
    const double score_bytes = static_cast<double>(
        bytes_of(p.dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32, kv.length));
    const double block = std::min(static_cast<double>(rows), kTaskRows) * score_bytes;
    counts.memory += level_seconds(
        model, rates, 3.0 * heads * static_cast<double>(q.length) * score_bytes, block * threads);
  }
  return counts;
}

double seconds_of(const CostTerms& t, const CallCounts& c) noexcept {
  const double compute = c.arithmetic * t.arithmetic + c.scores * t.scores;
  const double memory = c.memory * t.memory;
  return t.call + c.tasks * t.task + c.rows * t.rows + c.tails + std::hypot(compute, memory);
}

const CostEntry* entry_of(std::span<const CostEntry> entries, BackendId backend, CostKind kind,
                          CostTypes types) noexcept {
  const CostEntry* const own = find_entry(entries, backend, kind, types);
  if (own != nullptr || types <= CostTypes::kConverted) return own;
  return find_entry(entries, backend, kind, CostTypes::kConverted);
}

PredictedTime predict_time(const CostModel& model, const BackendRef& backend,
                           const AttentionParams& params, bool backward) noexcept {
  if (params.device.type != DeviceType::kCpu) return {};
  const CostKind kind = kind_of(params, backward);
  const CostTypes types = types_of(params);
  const CostEntry* entry = entry_of(model.entries, backend.id, kind, types);
  if (entry == nullptr) return {};
  const CallCounts counts = count_call(model, backend.id, params, backward);
  return {seconds_of(entry->terms, counts), entry->terms.spread};
}

}  // namespace regard
