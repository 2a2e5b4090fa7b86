#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  // The type to which probabilities (in a backward also the gradients of scores) are rounded before
  // they are multiplied, if it has 16 or 8 bits.
  Dtype probs = Dtype::kF32;
  // The claim holds from this instruction set or compute capability on. Of several claims of the
  // same types the last one that the machine satisfies holds.
  Isa min_isa = Isa::kScalar;
  std::int32_t min_sm = 0;  // compute capability * 10
  // Of a backward where q has 8-bit floats: the type of d_q, d_k and d_v; empty: any.
  std::optional<Dtype> gradients{};
};

struct HeadDimClaim {
  std::int64_t min = 1;
  std::int64_t max = 1;
  std::int64_t multiple_of = 1;
};

/// What a backend supports in one direction. The selector, the documents and the tests read this
/// record and nothing else.
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
  // Its keys have exact extents, and a plan accepts only calls with its own extents.
  bool needs_exact_extents = false;
  Claims forward;
  Claims backward;
};

/// How a backend runs a key: rules, never a list of tasks. Immutable.
struct KernelPlan {
  std::string kernel;  // a name for people: "efficient_portable_f32"
  Isa isa = Isa::kScalar;
  std::int32_t sm = 0;       // the compute capability * 10 that CUDA kernels need; 0 elsewhere
  std::int32_t workers = 1;  // concurrent workers at most
  std::int64_t tile_q = 0;
  std::int64_t tile_kv = 0;
  std::int64_t workspace_bytes = 0;   // exact, a multiple of 64
  std::shared_ptr<const void> state;  // the backend's own
  std::string variant;                // of Backend::variants(); "" is the backend's default
  std::string variant_source;         // what names it: "tuning table FILE"; "" for the default
};

/// "efficient_avx2_f32 (avx2), workers 2, tile_q 96, tile_kv 64, workspace 207.1 KiB", then ",
/// variant row_blocks_2 of tuning table FILE" where it is not the default
REGARD_EXPORT std::string to_string(const KernelPlan& kernel);

/// A backend states what it supports, makes plans from keys and executes them. It reads no
/// environment, no policy and, before execute, no tensor.
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

  /// Builds everything that execute needs. Returns kRefusedAtPlan where a vendor library refuses
  /// what the record allows; the Context remembers it, selects again and says so. Returns
  /// kUnavailable where the library lacks memory or a handle now; the Context selects again for
  /// this call alone.
  virtual Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const = 0;

  /// Names of other ways to run the forward of this key, of letters, digits and '_', which `regard
  /// tune` measures beside plan()'s. Each computes the same bits as plan()'s in at most as much
  /// workspace, so that a tuning table may choose one whatever a policy requires. The default is
  /// none.
  virtual std::vector<std::string> variants(const AttentionKey& key, const Env& env) const;
  /// plan() of one of variants(). The default refuses every name.
  virtual Expected<KernelPlan> plan_variant(const AttentionKey& key, const Env& env,
                                            std::string_view variant) const;

  /// Builds what execute needs for these buffers and a key does not contain, such as their strides.
  /// May allocate; reads no element. attention() calls it before execute. Errors are those of
  /// plan(). The default does nothing.
  virtual Status prepare(const KernelPlan& plan, const AttentionParams& params,
                         const Buffers& buffers) const;

  /// `params` are the call's own: exact extents, at most the plan's. Buffers are checked; the
  /// launch has an executor and a workspace of at least workspace_bytes, aligned to 64 bytes. Must
  /// not allocate. On CUDA, params.device is current and the call only launches work on
  /// launch.stream: it neither waits nor reads a tensor on the host (lengths are unchecked: kernels
  /// clamp them). May return kRefusedAtPlan before anything is written: as in plan(), and
  /// attention() runs another backend.
  virtual Status execute(const KernelPlan& plan, const AttentionParams& params,
                         const Buffers& buffers, const Launch& launch) const = 0;

  /// The same for the backward, called only where info().backward is offered and the key has
  /// Feature::kNeedsGrad. The defaults refuse (prepare_backward's does nothing), so a backend that
  /// offers a backward overrides the other three.
  /// info().backward.features state what it may be given: kSavedStats and kLse (the two kinds of
  /// saved statistics), kDLse, kDelta.
  virtual std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env) const;
  /// The workspace of the backward under a policy's limit: at most max_bytes if it can run in that,
  /// with the same bits, else the least that it can run in. execute_backward's plan then states
  /// this number. The default is backward_workspace_bytes.
  virtual std::int64_t backward_workspace_within(const AttentionKey& key, const Env& env,
                                                 std::int64_t max_bytes) const;
  virtual Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const;
  virtual Status prepare_backward(const KernelPlan& plan, const AttentionParams& params,
                                  const Buffers& buffers, const GradBuffers& gradients) const;
  /// In `buffers`, lse, saved_stats, scores_out and out_amax are absent and out is an input.
  virtual Status execute_backward(const KernelPlan& plan, const AttentionParams& params,
                                  const Buffers& buffers, const GradBuffers& gradients,
                                  const Launch& launch) const;
};

/// Compares a key with a record; true when nothing is refused.
REGARD_EXPORT bool check_claims(const BackendInfo& info, const AttentionKey& key, const Env& env,
                                std::vector<Refusal>* refusals);

}  // namespace regard
