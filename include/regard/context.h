#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "regard/backend.h"
#include "regard/cost.h"
#include "regard/env.h"
#include "regard/export.h"
#include "regard/padding.h"
#include "regard/plan.h"
#include "regard/policy.h"
#include "regard/request.h"
#include "regard/selection.h"
#include "regard/self_check.h"
#include "regard/status.h"
#include "regard/trace.h"

namespace regard {

class Context;
struct ContextImpl;
struct FrozenDecisions;

struct PlanCacheCounters {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;      // each is one selection
  std::uint64_t selections = 0;  // more than misses when a backend refused at plan time
  std::uint64_t evictions = 0;
  std::uint64_t refusals = 0;  // learned: a backend's library refused in plan or execute
  std::uint64_t size = 0;
  std::uint64_t capacity = 0;
};

/// Cases that a custom backend must pass before it may be selected: conformance::small_suite(), or
/// your own.
class REGARD_EXPORT ConformanceSuite {
 public:
  virtual ~ConformanceSuite();
  /// `context` has the candidate as `ref`, and the built-in backends. The Status of a failure names
  /// the failing case.
  virtual Status run(Context& context, const BackendRef& ref) const = 0;
};

/// What a line of the log states. Warnings are always written; the others from their level on.
enum class LogLevel : std::uint8_t {
  kWarning = 0,
  kSelect,  // a line for each distinct decision
  kTrace    // and one for each call
};
REGARD_EXPORT const char* to_string(LogLevel level) noexcept;  // "warning", "select", "trace"

/// Receives one line without a newline. Called from any thread, one at a time. It must not call
/// into regard, because it runs under the log's lock.
using LogSink = void (*)(void* user, LogLevel level, std::string_view line);

/// An order of backends and the terms of their times, measured on one machine (docs/selection.md
/// has the file's format). It applies to problems on CPUs if it names a CPU, and to problems on
/// CUDA devices if it names one.
struct TuningTable {
  std::string source;  // a file's name, or "" when empty
  std::string version;
  std::string isa, cpu_model;  // of the CPU; "" names none
  std::int32_t concurrency = 0;
  std::int32_t sm_version = 0;  // of the CUDA device; 0 names none
  std::string device_name;
  struct Rule {
    std::string condition;  // words of a case that must hold, "sq<=32 bf16"; "" always holds
    std::vector<BackendRef> order;
    friend bool operator==(const Rule&, const Rule&) = default;
  };
  std::vector<Rule> rules;  // the first that holds decides
  /// A variant of a backend (Backend::variants) for the problems of a condition. It counts where
  /// the backend has that variant for the problem.
  struct VariantRule {
    std::string condition;
    BackendRef backend;
    std::string variant;
    friend bool operator==(const VariantRule&, const VariantRule&) = default;
  };
  std::vector<VariantRule> variants;  // the first that holds for the chosen backend counts
  CostModel costs;                    // empty: default_costs(); of CPUs
  /// What `regard tune` measured, of which rules and costs were made. Decides nothing.
  struct Time {
    CostObservation observation;  // the median
    double first_quartile = 0.0;  // seconds
    double third_quartile = 0.0;
    std::string variant{};  // "" is the backend's default
    friend bool operator==(const Time&, const Time&) = default;
  };
  std::vector<Time> times;
  bool empty() const noexcept {
    return rules.empty() && variants.empty() && costs.empty() && times.empty();
  }
  friend bool operator==(const TuningTable&, const TuningTable&) = default;
};

REGARD_EXPORT Expected<TuningTable> parse_tuning_table(std::string_view text, std::string source);
/// The file's text; parse_tuning_table() of it gives the table back.
REGARD_EXPORT std::string to_text(const TuningTable& table);
/// The folder in which `regard tune` keeps what it measured in an environment (version, compiler,
/// ISA, CPU, threads), below the user's cache folder; "" where the user has none. A Context made of
/// read_env() takes the table of its file table.txt unless REGARD_TUNING names another, or "none".
REGARD_EXPORT std::string tuning_folder(const Env& env);

/// Environment, policy, backends, plan cache, threads: everything that outlives a call. Safe to use
/// from many threads; setters take effect for calls that start later.
class REGARD_EXPORT Context {
 public:
  Context();  // read_env(), the built-in backends, the default pool
  explicit Context(Env env, std::size_t plan_cache_capacity = 256);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// The Env that was read or given, with concurrency() as it is now. Its CUDA devices may be
  /// unread: with_devices() adds them.
  Env env() const;
  /// Workers that a plan may use: the Env's until set, 1 to kMaxConcurrency. Plans made later use
  /// the new number; a Plan that you hold keeps its own. It may be set while calls run: they finish
  /// as they began, surplus threads of the Context's own pool end, and new ones start with the next
  /// call. Results have the same bits with any number.
  std::int32_t concurrency() const;
  Status set_concurrency(std::int32_t concurrency);
  Policy policy() const;
  void set_policy(Policy policy);
  /// Null restores the Context's own pool. The executor must outlive its use.
  void set_executor(Executor* executor);
  Executor& executor();
  void set_tuning(TuningTable table);
  /// Null restores stderr.
  void set_log_sink(LogSink sink, void* user);
  /// What is logged; REGARD_LOG's until it is called.
  void set_log_level(LogLevel level);
  /// Calls the function after each call that this Context or one of its plans runs. Null, with
  /// which a Context begins, ends that, and nothing is measured. Returns once no thread is in the
  /// former function, so that what its `user` points at may be freed.
  void set_trace(TraceFunction function, void* user);

  std::vector<BackendInfo> backends() const;
  PlanCacheCounters plan_cache_counters() const;
  SelfCheckCounters self_check_counters() const;
  /// The first 16 violations, oldest first.
  std::vector<SelfCheckViolation> self_check_violations() const;
  /// Where calls are recorded: case, direction and how often (regard/record.h). "" ends it, and
  /// writes what there is. REGARD_RECORD's file until it is called.
  Status set_record(const std::string& path);
  /// Compares the decisions with those that this Context makes (regard/frozen.h); kInvalidArgument
  /// with every difference, and nothing changes. From then on a plan for one of these cases that
  /// differs is refused, too. Empty ends it.
  Status set_replay(FrozenDecisions frozen);
  /// Frees leased workspaces that are not in use.
  void trim();
  std::int64_t leased_workspace_bytes() const;

 private:
  friend struct ContextImpl;
  std::unique_ptr<ContextImpl> impl_;
};

/// Made at the first use, never destroyed.
REGARD_EXPORT Context& default_context();

/// Runs the suite on the backend, then makes it selectable as "custom:<name>". If it fails, the
/// Status names the failing case and nothing changes.
REGARD_EXPORT Expected<BackendRef> register_backend(Context& context, std::string name,
                                                    std::shared_ptr<const Backend> backend,
                                                    const ConformanceSuite& suite);

/// The policy that holds for a call of this thread: what `call`, the open scopes, the Context and
/// the environment state together.
REGARD_EXPORT Policy resolved_policy(Context& context, const Policy& call = {});

/// Which backend a call would run on, with every reason of every backend.
REGARD_EXPORT Selection explain(Context& context, const AttentionParams& params,
                                const Policy& policy = {});
/// The same on a described machine, with the policy, tuning table and custom backends of `context`.
REGARD_EXPORT Selection explain(Context& context, const AttentionParams& params,
                                const Policy& policy, const Env& machine);
/// Built-in backends on a described machine.
REGARD_EXPORT Selection explain(const AttentionParams& params, const Policy& policy,
                                const Env& machine);

REGARD_EXPORT Expected<Plan> plan(Context& context, const AttentionParams& params,
                                  const Policy& policy = {});

/// Builds what execute() needs for the strides of these buffers: with CUDNN, a graph for strides
/// that are not dense. May allocate. attention() calls it by itself.
REGARD_EXPORT Status prepare(const Plan& plan, const Buffers& buffers);
REGARD_EXPORT Status prepare_backward(const Plan& plan, const Buffers& buffers,
                                      const GradBuffers& gradients);

/// Checks buffers against the plan, then computes. Decides nothing, allocates nothing and reads no
/// environment.
REGARD_EXPORT Status execute(const Plan& plan, const Buffers& buffers, const Launch& launch = {});

/// The same for the backward of a plan that was made with needs_grad. In `buffers`, `out` is an
/// input, and the forward's other outputs are not used. Reads no policy.
REGARD_EXPORT Status execute_backward(const Plan& plan, const Buffers& buffers,
                                      const GradBuffers& gradients, const Launch& launch = {});

/// describe, plan and execute in one.
REGARD_EXPORT Status attention(Context& context, const AttentionRequest& request,
                               const Policy& policy = {}, const Launch& launch = {});

/// attention() of padded sequences by the path that sequences.policy names (regard/padding.h):
/// q, k, v and out are [B,H,S,D] whose positions hold rows where the Lengths say so. Every other
/// position of out is exactly 0 and of lse -inf. Results do not depend on the path: lengths and
/// packed give the same bits, a mask gives them within the tolerance. Diagonals, windows and ALiBi
/// measure within a sequence, without its padding. saved_stats has (-inf, 0) at every other
/// position. Reads the Lengths, and copies where the path is packed; sequences.q and .kv must have
/// the batch and seqlen of q and k. Refused by name: tensors on a device, tensors of lengths beside
/// the Lengths, and what the path cannot express.
REGARD_EXPORT Status attention_padded(Context& context, const AttentionRequest& request,
                                      const PaddedSequences& sequences, const Policy& policy = {},
                                      const Launch& launch = {});

/// Which backend attention_padded() would run on, for the path that it would take; `paths` of the
/// Selection hold those that can compute the call. Fails as attention_padded() does.
REGARD_EXPORT Expected<Selection> explain_padded(Context& context, const AttentionRequest& request,
                                                 const PaddedSequences& sequences,
                                                 const Policy& policy = {});

/// attention() of sequences over pages that have their first `shared_prefix_kv` keys in common: the
/// keys of the prefix are read once for all queries, the others by their sequence, and merge_states
/// merges both. shared_prefix_kv is a multiple of the page size; the first pages of every sequence
/// are the same, and every query sees all keys of the prefix. The result is that of attention()
/// within the tolerance; other than there, its bits depend on the batch. 0 is attention() itself.
/// Two calls run, and are traced. Refused by name, before anything is written: keys outside of
/// pages, and what relates queries to keys of the prefix (a left window, ALiBi, masks, biases,
/// segments, dropout, scores_out), tensors on a device, descales [B,Hkv] and a backward.
REGARD_EXPORT Status attention_shared_prefix(Context& context, const AttentionRequest& request,
                                             std::int64_t shared_prefix_kv,
                                             const Policy& policy = {}, const Launch& launch = {});

/// Which backends the two calls of attention_shared_prefix() run on: the Selection of the call over
/// each sequence's own keys, whose `prefix` holds that of the call over the shared ones. `params`
/// are those that describe() makes of the request; no data is read, so lengths and page tables are
/// not checked, and predicted times of the own call count all seqlen_kv keys. Fails as
/// attention_shared_prefix() does, without data. 0: explain().
REGARD_EXPORT Expected<Selection> explain_shared_prefix(Context& context,
                                                        const AttentionParams& params,
                                                        std::int64_t shared_prefix_kv,
                                                        const Policy& policy = {});

/// The gradients of an attention() call with needs_grad. Without a plan in request.saved it selects
/// and plans as plan() does, among backends whose backward takes what was saved. With a plan, the
/// plan's backend runs, whatever scopes, Context and environment say; `policy` may only restrict it
/// further (only, deny, require, max_error, max_workspace_bytes), for the backward alone.
/// kNoBackend, with every reason, where that leaves nothing.
REGARD_EXPORT Status attention_backward(Context& context, const AttentionGradRequest& request,
                                        const Policy& policy = {}, const Launch& launch = {});

/// The gradients of an attention_padded() call with needs_grad, as attention_backward() computes
/// them, of padded tensors. Nothing that a position without a row holds reaches them; d_q, d_k and
/// d_v are 0 there. With a plan in request.saved (the forward's Launch::planned receives it) the
/// path is that of the forward, whatever sequences.policy says; without one it is chosen as
/// attention_padded() does. Every path takes the statistics that any path saved. Refuses what
/// attention_padded() refuses, before it writes anything.
REGARD_EXPORT Status attention_padded_backward(Context& context,
                                               const AttentionGradRequest& request,
                                               const PaddedSequences& sequences,
                                               const Policy& policy = {},
                                               const Launch& launch = {});

}  // namespace regard
