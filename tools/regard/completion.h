#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/regard/option_table.h"

namespace regard::cli {

/// A verb as completions show it.
struct VerbInfo {
  std::string name;
  std::string description;
  std::vector<OptionInfo> options;  // and positionals
};
std::vector<VerbInfo> verb_infos(const CLI::App& app);

// The completion script of a shell, made from the app's options.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace regard::cli
