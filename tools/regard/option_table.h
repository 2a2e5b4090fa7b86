#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;  // its header takes nine seconds to compile: option_table.cc and main.cc alone include
            // it
}

// CLI11's app is the one table of verbs and options: help, shell completions and the manual page
// are made from it. What an option needs besides is kept in the option itself.

namespace regard::cli {

/// How an option is shown and completed.
struct OptionText {
  const char* value = "";  // what stands for its value: "N", "FILE"
  const char* description = "";
  const char* default_text = "";          // without the option; "" where that is nothing
  std::vector<std::string> choices = {};  // the words that the value may be; empty: any
  bool is_list = false;                   // of choices, with commas
};

CLI::App* add_verb(CLI::App& app, const char* name, const char* description);

/// Adds an option that takes one value each time it is given.
void add_value(CLI::App& app, const char* names, std::string& target, const OptionText& text);
void add_value(CLI::App& app, const char* names, std::int64_t& target, const OptionText& text);
void add_value(CLI::App& app, const char* names, std::vector<std::string>& target,
               const OptionText& text);
void add_flag(CLI::App& app, const char* names, bool& target, const char* description);

/// Adds a word without dashes; several words where the target is a list.
void add_positional(CLI::App& app, const char* name, std::string& target, bool is_required,
                    const OptionText& text);
void add_positional(CLI::App& app, const char* name, std::vector<std::string>& target,
                    bool is_required, const OptionText& text);

/// What stands below the options of a verb's help.
void add_footer(CLI::App& verb, const std::string& text);

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

/// A verb as completions and the manual show it.
struct VerbInfo {
  std::string name;
  std::string description;
  std::vector<OptionInfo> options;  // and positionals
};

/// The verbs in the order in which they were added.
std::vector<VerbInfo> verb_infos(const CLI::App& app);

/// What the program is for.
std::string description_of(const CLI::App& app);

/// Help with one line an option. Verbs that are added later inherit it.
void use_short_help(CLI::App& app);

}  // namespace regard::cli
