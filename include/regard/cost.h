#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "regard/env.h"
#include "regard/export.h"
#include "regard/machine_rates.h"
#include "regard/params.h"
#include "regard/policy.h"
#include "regard/selection.h"

// How long a problem takes on each backend, predicted from a few terms.

namespace regard {

/// What kernels of CPU backends do alike. Rows are the queries of a sequence times the query heads
/// of a group.
enum class CostKind : std::uint8_t {
  kDecode = 0,  // up to 12 rows, 8 of bf16
  kShort,       // up to 64 rows
  kPrefill,
  kBackward
};
inline constexpr int kCostKindCount = 4;
REGARD_EXPORT const char* to_string(CostKind kind) noexcept;  // "decode", "short", ...

/// Types of q, k and v that cost alike.
enum class CostTypes : std::uint8_t {
  kFloats = 0,  // all of 32 or 64 bits
  kPairs,       // all bf16
  kConverted,   // any other: elements are converted as they are read
  kI8,          // k or v of int8
  kF8,          // k or v of f8e4m3 or f8e5m2, neither of int8
  kU4           // k or v of u4
};
inline constexpr int kCostTypesCount = 6;
/// "floats", "pairs", "converted", "i8", "f8", "u4"
REGARD_EXPORT const char* to_string(CostTypes types) noexcept;

/// The terms of a time. With P the arithmetic peak of the threads at work, F that of f32, R the
/// rate at which the caches or memory that hold the tensors deliver bytes:
///
///     compute = (operations * arithmetic / P) + (scores_of_the_problem * scores / F)
///     seconds = call + (tasks / threads) * task + elements_of_q_out_k_v * rows / F + last_vectors
///               + sqrt(compute^2 + (bytes * memory / R)^2)
///
/// last_vectors: what decode rows take for head dims that do not fill the last vector of a key.
struct CostTerms {
  double call = 0.0;        // seconds
  double task = 0.0;        // seconds; a task is a row block of a head of k and v
  double arithmetic = 1.0;  // one over the share of the peak that products reach
  double scores = 0.0;      // operations of each computed score beside its products
  double rows = 0.0;        // operations of each element of q, out, k and v
  double memory = 1.0;      // one over the share of the rate at which bytes arrive
  double spread = 2.0;      // nine of ten measured times are within this factor of the prediction
  friend bool operator==(const CostTerms&, const CostTerms&) = default;
};

template <class Terms, class F>
constexpr void for_each_cost_term(Terms& terms, F&& f) {
  f("call", terms.call);
  f("task", terms.task);
  f("arithmetic", terms.arithmetic);
  f("scores", terms.scores);
  f("rows", terms.rows);
  f("memory", terms.memory);
  f("spread", terms.spread);
}

/// The terms of a backend for one kind and one group of types.
struct CostEntry {
  BackendId backend = BackendId::kError;
  CostKind kind = CostKind::kPrefill;
  CostTypes types = CostTypes::kFloats;
  CostTerms terms;
  friend bool operator==(const CostEntry&, const CostEntry&) = default;
};

/// The terms of backends on a machine. A value: predictions read nothing else.
struct CostModel {
  std::string source;               // "default rates", "tuning table FILE"
  MachineRates rates;               // of 0: as default_rates()
  std::int64_t l2_bytes = 1 << 20;  // of a thread
  std::int64_t l3_bytes = 1 << 25;
  std::vector<CostEntry> entries;  // at most one of each backend, kind and types

  bool empty() const noexcept { return entries.empty(); }
  REGARD_EXPORT const CostEntry* find(BackendId backend, CostKind kind,
                                      CostTypes types) const noexcept;
  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// Terms that were fitted on another machine, with default_rates(): nothing is measured. Their
/// spread says how far a machine may be from these rates.
REGARD_EXPORT CostModel default_costs(const Env& env);

/// The forward's time or, of params with needs_grad, the backward's, by a call whose plan exists
/// and whose tensors are as near as their size allows. seconds is -1 where the model has no terms
/// for the backend, and for problems on CUDA devices. Sequences have the mean of the lengths that
/// params state (regard/padding.h), around which they are taken to spread evenly. Where the model
/// has no terms of kI8, kF8 or kU4 those of kConverted count. Reads no tensor; allocates nothing.
REGARD_EXPORT PredictedTime predict_time(const CostModel& model, const BackendRef& backend,
                                         const AttentionParams& params, bool backward) noexcept;

/// The forward with keys and values of each format that a cache may have, on one backend: bf16, the
/// formats of 8 bits and u4 (for even head dims) with a scale for each row, and q's own type before
/// them. Other things are as params say. Empty but for forwards of up to 64 rows a sequence on CPUs
/// (CostKind::kDecode and kShort) over more keys than queries, with q of f32, bf16 or f16, without
/// descales, and where the model has no terms.
REGARD_EXPORT std::vector<CacheFormatPrediction> predict_cache_formats(
    const CostModel& model, const BackendRef& backend, const AttentionParams& params);

/// A measured time.
struct CostObservation {
  BackendId backend = BackendId::kError;
  AttentionParams params;
  bool backward = false;
  double seconds = 0.0;
  friend bool operator==(const CostObservation&, const CostObservation&) = default;
};

/// `start` with the terms that predict the observations best: the sum of |log(predicted /
/// measured)| of each backend, kind and types is least where at least `kMinObservations` are given;
/// other entries stay. The spread is that of the observations, at least kMinSpread. Deterministic.
REGARD_EXPORT CostModel fit_costs(const CostModel& start,
                                  std::span<const CostObservation> observations);
inline constexpr int kMinObservations = 8;
inline constexpr double kMinSpread = 1.1;

/// {"source": "default rates", "rates": {...}, "entries": [{"backend": "flash", ...}]}
REGARD_EXPORT std::string to_json(const CostModel& model);

}  // namespace regard
