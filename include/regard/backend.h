#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "regard/env.h"
#include "regard/export.h"
#include "regard/params.h"
#include "regard/policy.h"
#include "regard/request.h"
#include "regard/selection.h"
#include "regard/status.h"

// What a backend is. docs/adding_a_backend.md walks through one.

namespace regard {

/// A combination of element types that a backend computes, and how exact it is there.
struct DtypeClaim {
  Dtype q = Dtype::kF32;
  Dtype kv = Dtype::kF32;
  Dtype out = Dtype::kF32;
  double error_bound = 0.0;  // measured normwise error for |score| <= 16
  // 16 or 8 bits: probabilities (in a backward also the scores' gradients) are rounded to it before
  // they are multiplied.
  Dtype probs = Dtype::kF32;
  // From here on; of several claims of the same types the last that the machine satisfies holds.
  Isa min_isa = Isa::kScalar;
  std::int32_t min_sm = 0;  // compute capability * 10
};

struct HeadDimClaim {
  std::int64_t min = 1;
  std::int64_t max = 1;
  std::int64_t multiple_of = 1;
};

/// The capability record of one direction: the selector, the launcher, the docs table and the tests
/// read this and nothing else.
struct Claims {
  bool offered = false;  // the direction exists at all
  std::vector<DtypeClaim> dtypes;
  FeatureSet features{};
  HeadDimClaim head_dim_qk{};
  HeadDimClaim head_dim_v{};
  std::array<bool, 3> layouts{true, true, true};  // by Layout
  std::int32_t min_align_log2 = 0;                // of q, k, v and out
};

struct BackendInfo {
  BackendRef ref;
  std::string summary;  // one sentence for docs and `regard devices`
  DeviceType device = DeviceType::kCpu;
  Isa min_isa = Isa::kScalar;
  std::int32_t min_sm = 0;  // of CUDA backends: the smallest compute capability * 10
  bool built = true;
  std::string not_built_reason;  // what to do: "configure with -DREGARD_CUDA=ON"
  Determinism determinism = Determinism::kNone;
  // Its keys keep extents exact, and a plan runs calls of its own extents alone.
  bool needs_exact_extents = false;
  Claims forward;
  Claims backward;
};

/// What a backend decided for a key: rules, never a list of tasks. Immutable.
struct KernelPlan {
  std::string kernel;  // a name for people: "efficient_portable_f32"
  Isa isa = Isa::kScalar;
  std::int32_t sm = 0;       // the compute capability * 10 that CUDA kernels need; 0 elsewhere
  std::int32_t workers = 1;  // concurrent workers at most
  std::int64_t tile_q = 0;
  std::int64_t tile_kv = 0;
  std::int64_t workspace_bytes = 0;   // exact, a multiple of 64
  std::shared_ptr<const void> state;  // the backend's own
};

/// "efficient_avx2_f32 (avx2), workers 2, tile_q 96, tile_kv 64, workspace 207.1 KiB"
REGARD_EXPORT std::string to_string(const KernelPlan& kernel);

/// A backend states claims, plans from a key and executes; it reads no environment, no policy and,
/// before execute, no tensor.
class REGARD_EXPORT Backend {
 public:
  virtual ~Backend();
  virtual const BackendInfo& info() const = 0;

  /// True when the key can run in `env`. With `refusals`, appends every failed requirement (none
  /// when true). The default is check_claims on info(); override to add relations between fields.
  virtual bool supports(const AttentionKey& key, const Env& env,
                        std::vector<Refusal>* refusals) const;

  /// Bytes that plan() will state, known before any plan; saturates at INT64_MAX.
  virtual std::int64_t workspace_bytes(const AttentionKey& key, const Env& env) const = 0;

  /// Builds all that execute needs. StatusCode::kRefusedAtPlan: a vendor library refused what the
  /// record allows; the Context remembers it and selects again, visibly. kUnavailable: the library
  /// lacks memory or a handle now; the Context selects again for this call alone.
  virtual Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const = 0;

  /// Builds what execute needs for these buffers and a key does not hold, such as their strides.
  /// May allocate; reads no element. attention() calls it before execute. Errors as of plan(). The
  /// default does nothing.
  virtual Status prepare(const KernelPlan& plan, const AttentionParams& params,
                         const Buffers& buffers) const;

  /// `params` are the call's own (exact extents, within the plan's); buffers are checked; the
  /// launch has an executor and a workspace of at least workspace_bytes, 64-byte aligned. Must not
  /// allocate. On CUDA, params.device is current and the call only launches work on launch.stream:
  /// it neither waits nor reads a tensor from the host (lengths are unchecked: kernels clamp them).
  /// kRefusedAtPlan, before anything is written: as in plan(), and attention() runs another
  /// backend.
  virtual Status execute(const KernelPlan& plan, const AttentionParams& params,
                         const Buffers& buffers, const Launch& launch) const = 0;

  /// The same for the backward, called only where info().backward is offered and the key has
  /// Feature::kNeedsGrad. The defaults refuse (that of prepare_backward does nothing): a backend
  /// that offers it overrides the other three.
  /// info().backward.features state what it may be given: kSavedStats and kLse (the two kinds of
  /// saved statistics), kDLse, kDelta.
  virtual std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env) const;
  /// The same under a policy's limit: at most max_bytes where the backward runs in so few, with the
  /// same bits, else the fewest that it runs in. execute_backward's plan then states these. The
  /// default is at least backward_workspace_bytes.
  virtual std::int64_t backward_workspace_within(const AttentionKey& key, const Env& env,
                                                 std::int64_t max_bytes) const;
  virtual Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const;
  virtual Status prepare_backward(const KernelPlan& plan, const AttentionParams& params,
                                  const Buffers& buffers, const GradBuffers& gradients) const;
  /// In `buffers`, lse, saved_stats and scores_out are absent and out is an input.
  virtual Status execute_backward(const KernelPlan& plan, const AttentionParams& params,
                                  const Buffers& buffers, const GradBuffers& gradients,
                                  const Launch& launch) const;
};

/// The record applied to a key: true when nothing is refused.
REGARD_EXPORT bool check_claims(const BackendInfo& info, const AttentionKey& key, const Env& env,
                                std::vector<Refusal>* refusals);

}  // namespace regard
