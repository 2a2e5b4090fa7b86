#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "regard/context.h"
#include "regard/export.h"
#include "regard/params.h"
#include "regard/status.h"

// Decisions as a file: what runs for each of some cases on this machine, and everything that this
// depends on. Context::set_replay and REGARD_REPLAY=FILE hold a program to them, and diff() says
// how two machines differ (docs/self_check.md has the file's format).

namespace regard {

/// What runs for one case.
struct FrozenDecision {
  std::string words;    // of the case
  std::string backend;  // "error" where none can run
  std::string decided_by;
  std::string forward;   // "flash_avx2_f32 avx2 workers=2 tile_q=96 tile_kv=64"
  std::string backward;  // "" without a backward
  std::string
      refusals;  // of the backends that were not chosen: "efficient usable, cudnn not built"
  friend bool operator==(const FrozenDecision&, const FrozenDecision&) = default;
};

struct FrozenDecisions {
  std::string source;  // a file's name, or "" when made here
  /// By name, in a fixed order: version, compiler, isa, cpu, threads, policy, tuning, ...
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<FrozenDecision> decisions;

  bool empty() const noexcept { return decisions.empty(); }
};

/// The decisions of a Context for cases, under its policy and `policy`.
REGARD_EXPORT Expected<FrozenDecisions> freeze(Context& context,
                                               const std::vector<AttentionParams>& cases,
                                               const Policy& policy = {});

/// Parses a file's text; errors name the line. parse_frozen(to_string(x), "") equals x.
REGARD_EXPORT Expected<FrozenDecisions> parse_frozen(std::string_view text,
                                                     const std::string& source);
REGARD_EXPORT std::string to_string(const FrozenDecisions& frozen);

/// Why a line of two logs differs.
enum class DifferenceCause : std::uint8_t {
  kVersion = 0,  // of regard or its compiler
  kIsa,          // the instruction set, or the CPU
  kThreads,
  kPolicy,
  kTable,       // of tuning
  kCapability,  // a device, a library, or what a backend refuses
  kCase         // only one of the two has it
};
REGARD_EXPORT const char* to_string(DifferenceCause cause) noexcept;  // "version", "isa", ...

struct FrozenDifference {
  DifferenceCause cause = DifferenceCause::kVersion;
  std::string what;  // a name of the environment, or a case and what differs in it
  std::string a, b;
  friend bool operator==(const FrozenDifference&, const FrozenDifference&) = default;
};

/// Every line in which the two differ, the environment first. A case's line has the first cause
/// whose environment differs and may explain it; kCapability where none does.
REGARD_EXPORT std::vector<FrozenDifference> diff(const FrozenDecisions& a,
                                                 const FrozenDecisions& b);
REGARD_EXPORT std::string to_string(const std::vector<FrozenDifference>& differences);

}  // namespace regard
