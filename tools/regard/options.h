#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "regard/case.h"
#include "regard/context.h"
#include "regard/policy.h"
#include "regard/status.h"
#include "tools/regard/option_table.h"
#include "tools/regard/output.h"

namespace regard::cli {

/// --json and --quiet, which every verb has that prints results.
void add_output_flags(CLI::App& app, OutputOptions& options);

/// The flags that explain, run, bench and check share, as they were typed.
struct CommonOptions {
  std::vector<std::string> backends;  // each may be a list with commas
  std::vector<std::string> deny;
  std::vector<std::string> prefer;
  std::string max_error;
  std::string max_workspace;
  std::string require;
  std::string on_fallback;
  bool assume_finite = false;
  std::string self_check;
  std::string threads;
  std::string isa;
  OutputOptions output;
};

void add_common_flags(CLI::App& app, CommonOptions& options);

/// The policy of the call that the flags make. --backend is an `only` whose order is `prefer`.
Expected<Policy> policy_of(const CommonOptions& options);

/// This machine with --threads and --isa applied, then the case's own words; an error where an
/// environment variable or a flag cannot be used. `must_run`: instructions that this CPU lacks are
/// an error too, because the result will be executed.
Expected<Env> env_of(const CommonOptions& options, const Case& c, bool must_run);

/// "128", "64K", "2M", "1G" (powers of 1024) as bytes.
Expected<std::int64_t> parse_bytes(const std::string& text);

/// A number of seconds above 0, at most a day.
Expected<double> parse_seconds(const std::string& text, const char* flag);

/// A whole number in [least, most]; `what` names it in the error.
Expected<std::int64_t> parse_whole(const std::string& text, const std::string& what,
                                   std::int64_t min, std::int64_t max);

}  // namespace regard::cli
