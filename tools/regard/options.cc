#include "tools/regard/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "tools/regard/option_table.h"
#include "tools/regard/safetensors.h"

namespace regard::cli {
namespace {

using safetensors::quote;

constexpr std::int64_t kMaxThreads = 1024;  // as REGARD_NUM_THREADS

Status invalid_option(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[regard] " + message);
}

Expected<std::vector<BackendRef>> parse_backends(const std::vector<std::string>& lists,
                                                 const char* flag) {
  std::vector<BackendRef> refs;
  for (const std::string& list : lists) {
    std::size_t begin = 0;
    while (begin <= list.size()) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      Expected<BackendRef> ref = parse_backend(list.substr(begin, end - begin));
      if (!ref) return invalid_option(fmt::format("{}: {}", flag, ref.status().message()));
      if (std::find(refs.begin(), refs.end(), *ref) == refs.end()) refs.push_back(*ref);
      begin = end + 1;
    }
  }
  return refs;
}

Expected<double> parse_max_error(const std::string& text) {
  double value = 0.0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
  if (whole && std::isfinite(value) && value >= 0.0) return value;
  return invalid_option("--max-error " + quote(text) + ": expected a finite number of at least 0");
}

Expected<OnFallback> parse_on_fallback(const std::string& text) {
  for (const OnFallback value : {OnFallback::kAllow, OnFallback::kWarn, OnFallback::kError}) {
    if (text == to_string(value)) return value;
  }
  return invalid_option("--on-fallback " + quote(text) + ": expected allow, warn or error");
}

}  // namespace

void add_output_flags(CLI::App& app, OutputOptions& o) {
  add_flag(app, "--json", o.json, "One JSON document on standard output, and no text");
  add_flag(app, "--quiet", o.quiet, "Print results and errors only, no progress and no notes");
}

void add_common_flags(CLI::App& app, CommonOptions& o) {
  const std::vector<std::string> backends = {"flash", "efficient", "math", "cudnn"};
  add_value(app, "--backend", o.backends,
            {"LIST", "Only these, in this order of preference: a,b", "all", backends, true});
  add_value(app, "--deny", o.deny, {"LIST", "Never these backends", "none", backends, true});
  add_value(app, "--prefer", o.prefer,
            {"LIST", "These first, the others after them", "built-in order", backends, true});
  add_value(app, "--max-error", o.max_error,
            {"X", "Refuse backends with a larger declared error", "no limit"});
  add_value(app, "--max-workspace", o.max_workspace,
            {"BYTES", "Refuse backends that need more memory; K, M, G: 1024^n", "no limit"});
  add_value(app, "--require", o.require,
            {"LEVEL",
             "run_to_run, thread_count_invariant, batch_invariant",
             "none",
             {"none", "run_to_run", "thread_count_invariant", "batch_invariant"}});
  add_value(app, "--on-fallback", o.on_fallback,
            {"RULE",
             "Where the first preferred cannot run: allow, warn, error",
             "allow",
             {"allow", "warn", "error"}});
  add_flag(app, "--assume-finite", o.assume_finite,
           "No NaN or infinity lies behind a mask: admits more backends");
  add_value(app, "--self-check", o.self_check,
            {"N", "One call in N compares some of its rows with math", "none does"});
  add_value(app, "--threads", o.threads,
            {"N", "Workers that a plan may use", "REGARD_NUM_THREADS or all CPUs"});
  std::vector<std::string> isas;
  for (const Isa isa : named_isas()) isas.push_back(to_string(isa));
  add_value(app, "--isa", o.isa,
            {"NAME", "Instruction set to use: scalar, avx2, ...", "the best here", isas});
  add_output_flags(app, o.output);
}

Expected<Policy> policy_of(const CommonOptions& o) {
  Policy policy;
  Expected<std::vector<BackendRef>> only = parse_backends(o.backends, "--backend");
  if (!only) return only.status();
  if (!only->empty()) policy.prefer = policy.only = *only;
  Expected<std::vector<BackendRef>> deny = parse_backends(o.deny, "--deny");
  if (!deny) return deny.status();
  policy.deny = *deny;
  Expected<std::vector<BackendRef>> prefer = parse_backends(o.prefer, "--prefer");
  if (!prefer) return prefer.status();
  if (!prefer->empty()) policy.prefer = *prefer;
  if (!o.max_error.empty()) {
    Expected<double> value = parse_max_error(o.max_error);
    if (!value) return value.status();
    policy.max_error = *value;
  }
  if (!o.max_workspace.empty()) {
    Expected<std::int64_t> value = parse_bytes(o.max_workspace);
    if (!value) return value.status();
    policy.max_workspace_bytes = *value;
  }
  if (!o.require.empty()) {
    Expected<Determinism> value = parse_determinism(o.require);
    if (!value) return invalid_option("--require: " + value.status().message());
    policy.require = *value;
  }
  if (!o.on_fallback.empty()) {
    Expected<OnFallback> value = parse_on_fallback(o.on_fallback);
    if (!value) return value.status();
    policy.on_fallback = *value;
  }
  if (o.assume_finite) policy.assume_finite = true;
  if (!o.self_check.empty()) {
    constexpr std::int64_t kMax = 1'000'000'000;
    Expected<std::int64_t> value = parse_whole(o.self_check, "--self-check", 0, kMax);
    if (!value) return value.status();
    policy.self_check = *value;
  }
  return policy;
}

Expected<Env> env_of(const CommonOptions& o, const Case& c, bool must_run) {
  Env env = read_env();
  if (Status status = env_status(env); !status) return status;
  if (!o.threads.empty()) {
    Expected<std::int64_t> threads = parse_whole(o.threads, "--threads", 1, kMaxThreads);
    if (!threads) return threads.status();
    env.concurrency = static_cast<std::int32_t>(*threads);
  }
  if (!o.isa.empty()) {
    Expected<Isa> isa = parse_isa(o.isa);
    if (!isa) return invalid_option("--isa: " + isa.status().message());
    env.isa = *isa;
  }
  if (must_run && c.params.device.type != DeviceType::kCpu) {
    return invalid_option(
        fmt::format("device {}: tensors lie on the cpu; only explain describes others",
                    to_string(c.params.device.type)));
  }
  const Isa available = env.isa_available;
  env = apply_overrides(env, c);
  if (must_run && !available.includes(env.isa)) {
    return invalid_option(
        fmt::format("isa {}: this CPU has {}; only explain describes other machines",
                    to_string(env.isa), to_string(available)));
  }
  return env;
}

Expected<std::int64_t> parse_whole(const std::string& text, const std::string& what,
                                   std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
  if (whole && value >= min && value <= max) return value;
  return invalid_option(
      fmt::format("{} {}: expected a whole number from {} to {}", what, quote(text), min, max));
}

Expected<double> parse_seconds(const std::string& text, const char* flag) {
  constexpr double kDay = 86400.0;
  double value = 0.0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
  if (whole && value > 0.0 && value <= kDay) return value;
  return invalid_option(
      fmt::format("{} {}: expected a number of seconds above 0, at most 86400", flag, quote(text)));
}

Expected<std::int64_t> parse_bytes(const std::string& text) {
  const auto bad = [&] {
    return invalid_option("--max-workspace " + quote(text) +
                          ": expected a number of bytes, with K, M or G for powers of 1024");
  };
  std::string digits = text;
  int shift = 0;
  if (!digits.empty()) {
    const std::size_t unit = std::string_view("KMG").find(digits.back());
    if (unit != std::string_view::npos) {
      shift = 10 * (static_cast<int>(unit) + 1);
      digits.pop_back();
    }
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  Expected<std::int64_t> value = parse_whole(digits, "", 0, kMax >> shift);
  if (!value) return bad();
  return *value << shift;
}

}  // namespace regard::cli
