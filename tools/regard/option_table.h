#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// CLI11's app is the one table of verbs and options: help, shell completions and the manual page
// are made from it. What an option needs besides is kept in the option itself.

namespace regard::cli {

/// How an option is shown and completed.
struct OptionText {
  const char* value = "";  // what stands for its value: "N", "FILE"; "" of a flag
  const char* description = "";
  const char* default_text = "";          // without the option; "" where that is nothing
  std::vector<std::string> choices = {};  // the words that the value may be; empty: any
  bool is_list = false;                   // of choices, with commas
};

/// Adds an option that takes one value each time it is given.
template <class T>
CLI::Option* add_value(CLI::App& app, const char* names, T& target, const OptionText& text);

CLI::Option* describe_option(CLI::Option* option, const OptionText& text);

template <class T>
CLI::Option* add_value(CLI::App& app, const char* names, T& target, const OptionText& text) {
  // One value each, or `--backend math CASE` would take the case for a backend.
  return describe_option(app.add_option(names, target)->allow_extra_args(false), text);
}

/// An option of an app as help, completions and manual show it.
struct OptionInfo {
  std::vector<std::string> short_names;  // "-o"
  std::vector<std::string> long_names;   // "--output"
  std::string value;                     // "FILE"; empty of a flag
  std::string description;
  std::string default_text;
  std::vector<std::string> choices;
  bool is_list = false;
  bool is_positional = false;
  bool is_required = false;
  bool is_repeated = false;  // a positional that takes several words

  /// "-o, --output FILE"; of a positional "FILE" or "[CASE...]".
  std::string usage() const;
  /// The description with the default: "Workers that a plan may use (default: all CPUs)".
  std::string text() const;
};

/// Options first, then positionals, each in the order in which they were added.
std::vector<OptionInfo> options_of(const CLI::App& app);

/// The verbs in the order in which they were added.
std::vector<const CLI::App*> verbs_of(const CLI::App& app);

/// Help with one line an option. Verbs that are added later inherit it.
void use_short_help(CLI::App& app);

}  // namespace regard::cli
