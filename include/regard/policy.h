#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "regard/export.h"
#include "regard/status.h"

namespace regard {

/// PyTorch's SDPBackend numbers.
enum class BackendId : std::int8_t {
  kError = -1,
  kMath = 0,
  kFlash = 1,
  kEfficient = 2,
  kCudnn = 3,
  kCustom = 4
};

/// A backend: its id, and for a custom one its name, which may be registered later. A built-in one
/// converts from its id: policy.only = {{BackendId::kFlash}}, plan.backend() == BackendId::kFlash.
struct BackendRef {
  BackendId id = BackendId::kError;
  std::string custom_name;  // "mine" of "custom:mine"; empty for built-in backends

  BackendRef() = default;
  BackendRef(BackendId backend, std::string name = {})  // NOLINT: implicit by design
      : id(backend), custom_name(std::move(name)) {}
  friend bool operator==(const BackendRef&, const BackendRef&) = default;
};

/// "math", "flash", "efficient", "cudnn", "custom:mine", "error".
REGARD_EXPORT std::string to_string(const BackendRef& ref);

/// Case-insensitive; accepts PyTorch's spellings too: FLASH_ATTENTION, EFFICIENT_ATTENTION,
/// MEMORY_EFFICIENT, CUDNN_ATTENTION, SDPBackend.MATH.
REGARD_EXPORT Expected<BackendRef> parse_backend(std::string_view name);

/// Levels of reproducibility; each includes the ones before it.
enum class Determinism : std::uint8_t {
  kNone = 0,
  kRunToRun,
  kThreadCountInvariant,
  kBatchInvariant
};
REGARD_EXPORT const char* to_string(Determinism level) noexcept;
REGARD_EXPORT Expected<Determinism> parse_determinism(std::string_view name);

enum class OnFallback : std::uint8_t { kAllow = 0, kWarn, kError };
REGARD_EXPORT const char* to_string(OnFallback value) noexcept;

/// What a caller allows and prefers. Unset fields leave the choice to the next source.
struct Policy {
  std::optional<std::vector<BackendRef>> only;    // nothing else may run
  std::vector<BackendRef> deny;                   // these may not run
  std::optional<std::vector<BackendRef>> prefer;  // an order; lower sources' follow, then the rest
  std::optional<Determinism> require;
  std::optional<double> max_error;  // against Verdict::error_bound
  std::optional<std::int64_t> max_workspace_bytes;
  std::optional<OnFallback> on_fallback;
  std::optional<bool> assume_finite;  // waives Feature::kNonFiniteBehindMask
  // One call in so many recomputes some of its rows on MATH (regard/self_check.h); 0: none does
  std::optional<std::int64_t> self_check;
  std::optional<bool> self_check_deny;        // a backend that fails may not run from then on
  std::optional<std::string> self_check_dir;  // where failures leave files; unset: the user's cache

  friend bool operator==(const Policy&, const Policy&) = default;
};

template <class P, class F>
constexpr void for_each_policy_field(P& p, F&& f) {
  f("only", p.only);
  f("deny", p.deny);
  f("prefer", p.prefer);
  f("require", p.require);
  f("max_error", p.max_error);
  f("max_workspace_bytes", p.max_workspace_bytes);
  f("on_fallback", p.on_fallback);
  f("assume_finite", p.assume_finite);
  f("self_check", p.self_check);
  f("self_check_deny", p.self_check_deny);
  f("self_check_dir", p.self_check_dir);
}

/// Checks the rules that need no problem: limits of at least 0. `where` is the function that the
/// message names.
REGARD_EXPORT Status validate(const Policy& policy, const char* where);

REGARD_EXPORT std::size_t hash_value(const Policy& policy);
REGARD_EXPORT std::string to_string(const Policy& policy);  // "only=flash,math max_error=0.001"
REGARD_EXPORT std::string to_json(const Policy& policy);

/// The scopes that are open on a thread, to be passed to another one.
class CapturedPolicy;

/// Applies a policy to every call of this thread while the object exists. Scopes must be destroyed
/// in reverse order, on the thread that made them.
class REGARD_EXPORT ScopedPolicy {
 public:
  enum Mode : std::uint8_t {
    kNarrow,  // only: intersected with outer scopes; the rest merges
    kReplace  // hides outer scopes, never the Context or the environment
  };
  explicit ScopedPolicy(Policy policy, Mode mode = kNarrow);
  /// Opens, on this thread, all scopes that were captured on another (as one kReplace).
  explicit ScopedPolicy(const CapturedPolicy& captured);
  ~ScopedPolicy();
  ScopedPolicy(const ScopedPolicy&) = delete;
  ScopedPolicy& operator=(const ScopedPolicy&) = delete;

 private:
  struct Node;
  friend class CapturedPolicy;
  friend struct ScopeStack;
  std::shared_ptr<const Node> previous_;
};

class REGARD_EXPORT CapturedPolicy {
 public:
  CapturedPolicy() = default;
  bool empty() const noexcept { return node_ == nullptr; }

 private:
  friend class ScopedPolicy;
  friend CapturedPolicy capture_policy();
  std::shared_ptr<const ScopedPolicy::Node> node_;
};

/// The scopes that are open on this thread now. Other threads do not inherit them by themselves.
REGARD_EXPORT CapturedPolicy capture_policy();

}  // namespace regard
