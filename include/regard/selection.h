#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "regard/env.h"
#include "regard/export.h"
#include "regard/padding.h"
#include "regard/params.h"
#include "regard/policy.h"

namespace regard {

enum class RefusalCode : std::uint8_t {
  kNotBuilt = 0,  // terminal
  kDevice,        // terminal: the backend serves another device
  kIsa,           // terminal: the machine lacks instructions
  kDenied,        // policy.deny
  kNotInOnly,     // policy.only
  kDirection,     // needs_grad is set and the backend has no backward for this problem
  kDtype,
  kFeature,
  kHeadDimQk,
  kHeadDimV,
  kLayout,
  kAlignment,
  kDeterminism,  // policy.require
  kErrorBound,   // policy.max_error
  kWorkspace,    // policy.max_workspace_bytes, or not representable
  kLearned,      // refused by its library, in plan or execute, for this key: terminal
  kCustom,       // a backend's own rule
  kCount
};
REGARD_EXPORT const char* to_string(RefusalCode code) noexcept;  // "not_built", ...

/// The one change that removes a refusal: of the params, or of the policy where `field` begins with
/// "policy.".
struct Fix {
  enum class Op : std::uint8_t { kNone = 0, kSet, kClear, kAtMost };
  Op op = Op::kNone;
  std::string field;  // a params field, a feature's name, or "policy.only", ...
  std::string value;  // for kSet and kAtMost
  friend bool operator==(const Fix&, const Fix&) = default;
};

/// "set dtype to bf16", "remove attn_bias", "reduce head_dim_qk to 256", "" for none.
REGARD_EXPORT std::string to_string(const Fix& fix);

/// Applies the change; the params are canonical again afterwards.
REGARD_EXPORT Status apply_fix(const Fix& fix, AttentionParams* params, Policy* policy);

/// One failed requirement of one backend, as data that to_string makes a sentence of.
struct Refusal {
  RefusalCode code = RefusalCode::kCustom;
  // What the backend supports ("1 to 256") or the policy allows ("307200"). For kFeature: where the
  // feature is supported ("only with f8e4m3"), "" for nowhere. For kCustom and kLearned: a sentence
  // without its subject ("needs two sequences").
  std::string limit;
  std::string actual;  // what was requested, or what the backend needs or is
  Fix fix;
  bool in_backward = false;  // the backward refuses; the forward may well run
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

/// A sentence whose subject is the backend: "supports head_dim_qk 1 to 256, got 512; reduce it to
/// 256, or use math". `alternative`: a backend that runs the case as it stands; kError: none.
REGARD_EXPORT std::string to_string(const Refusal& refusal, const BackendRef& alternative = {});

/// The four facts of a candidate as one status.
enum class VerdictStatus : std::uint8_t {
  kChosen = 0,  // runs
  kUsable,      // could run; another was preferred
  kExcluded,    // could run; the policy excludes it
  kCannotRun,   // does not support the problem on this machine
  kNotBuilt     // is not part of this build
};
/// "chosen", "usable", "excluded by policy", "cannot run", "not built"
REGARD_EXPORT const char* to_string(VerdictStatus status) noexcept;

/// A time that a cost model predicts (regard/cost.h).
struct PredictedTime {
  double seconds = -1.0;  // -1: no prediction
  double spread = 0.0;    // nine of ten calls take from seconds / spread to seconds * spread
  bool known() const noexcept { return seconds >= 0.0; }
  friend bool operator==(const PredictedTime&, const PredictedTime&) = default;
};

/// One candidate's four facts, cost and quality, and every reason against it.
struct Verdict {
  BackendRef backend;
  DeviceType device = DeviceType::kCpu;  // that the backend serves
  bool built = false;
  bool enabled = false;  // by policy
  bool usable = false;   // built, and no refusal of its own (policy aside)
  bool chosen = false;
  std::int64_t workspace_bytes = -1;           // at the rounded key; -1: not usable
  std::int64_t backward_workspace_bytes = -1;  // -1: not usable, or without needs_grad
  PredictedTime forward_time;                  // of the problem as requested
  PredictedTime backward_time;                 // unknown without needs_grad
  double error_bound = -1.0;                   // measured, |score| <= 16; -1: not usable
  Determinism determinism = Determinism::kNone;
  bool needs_exact_extents = false;
  std::vector<Refusal> refusals;  // policy's included

  REGARD_EXPORT VerdictStatus status() const noexcept;
  /// Of both directions; -1 where one that is needed has no prediction.
  REGARD_EXPORT double predicted_seconds(bool needs_grad) const noexcept;
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// Shares of the blocks of kMaskBlock queries by as many keys, 0 to 1.
struct MaskShares {
  static constexpr std::int64_t kMaskBlock = 128;
  double empty = 0.0;    // mask_function and the window hide all of it: it is skipped
  double partial = 0.0;  // neither that nor whole: each element is evaluated
  friend bool operator==(const MaskShares&, const MaskShares&) = default;
};

/// The fastest candidate beside the chosen one, among those that could run under the policy.
struct RunnerUp {
  BackendRef backend;
  double ratio = 0.0;  // its predicted time over the chosen backend's; below 1 it may be faster
  // Changes of one extent, from each of which on it is predicted to be the faster one, and the
  // policy with which it is chosen. Each stands alone.
  std::vector<Fix> changes;
  friend bool operator==(const RunnerUp&, const RunnerUp&) = default;
};

/// A call whose keys and values have another format (predict_cache_formats() in regard/cost.h).
struct CacheFormatPrediction {
  static constexpr std::int64_t kMaxKeys = 1 << 20;
  Dtype dtype = Dtype::kBf16;  // of k and v
  double bytes = 0.0;          // of a token's keys and values of all heads, with their scales
  double seconds = 0.0;
  double ratio = 0.0;  // the seconds with bf16 over these: above 1 this format is faster
  // It is predicted to be faster than bf16 from this number of keys of a sequence on, the lowest
  // power of two of 16 to kMaxKeys; none where it is not faster with kMaxKeys, and for bf16.
  std::optional<std::int64_t> faster_from;
  friend bool operator==(const CacheFormatPrediction&, const CacheFormatPrediction&) = default;
};

/// A decision and everything that led to it.
struct Selection {
  AttentionParams params;           // as requested
  AttentionParams key_params;       // extents rounded: what was judged
  Policy policy;                    // as resolved
  BackendRef chosen;                // kError when nothing can run
  std::string decided_by;           // "built-in order", "call policy (only)", "REGARD_BACKEND", ...
  std::vector<Verdict> candidates;  // in the order of preference
  std::string cost_source;          // of predicted times: "default rates", "tuning table FILE"
  std::optional<RunnerUp> runner_up;     // none where no other one could run, or has a prediction
  std::vector<EnvVariable> environment;  // those that are set
  std::vector<std::string> warnings;
  // Padded with lengths, with a mask, or packed, by the same rates and terms; empty where params
  // have no lengths.
  std::vector<PathPrediction> paths;
  // Formats of a cache on the chosen backend; empty where predict_cache_formats() is.
  std::vector<CacheFormatPrediction> cache_formats;
  // Of explain_shared_prefix(): the call over the shared keys, which runs first; else empty.
  std::vector<Selection> prefix;
  // None without a mask_function, where it reads data (captured tensors, lengths, an offset), and
  // where finding it out would take long: beyond 65,536 blocks, for one.
  std::optional<MaskShares> mask_shares;

  bool ok() const noexcept { return chosen.id != BackendId::kError; }
  REGARD_EXPORT const Verdict* find(const BackendRef& ref) const noexcept;
  /// A backend that runs the case as it stands: the chosen one, else the first that the policy
  /// alone excludes; kError: none.
  REGARD_EXPORT BackendRef alternative() const;
  friend bool operator==(const Selection&, const Selection&) = default;
};

/// The table for people: a status for each backend, and its reasons as sentences. ASCII, at most
/// 100 columns where reasons allow. `verbose` adds the four facts, and the backends of CUDA devices
/// where the case is on a CPU and the policy names none of them.
REGARD_EXPORT std::string to_string(const Selection& selection, bool verbose = false);
/// One JSON object: case, chosen, decided_by, candidates[...], environment, warnings, ...
REGARD_EXPORT std::string to_json(const Selection& selection);

}  // namespace regard
