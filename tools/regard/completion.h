#pragma once

#include <string>

#include "tools/regard/option_table.h"

namespace regard::cli {

// The completion script of a shell, made from the app's options.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace regard::cli
