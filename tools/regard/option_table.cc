#include "tools/regard/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>

namespace regard::cli {
namespace {

constexpr const char* kChoices = "choices";  // the names of validators that accept everything and
constexpr const char* kLists = "lists";      // hold the choices, "a|b"

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// The description of the validator of that name, "" where the option has none.
std::string validator_text(const CLI::Option& option, const char* name) {
  try {
    // CLI11 offers no const access.
    return const_cast<CLI::Option&>(option).get_validator(name)->get_description();
  } catch (const CLI::OptionNotFound&) {
    return "";
  }
}

/// A name with the dashes that it is typed with.
std::vector<std::string> with_dashes(const std::vector<std::string>& names, const char* dashes) {
  std::vector<std::string> typed;
  for (const std::string& name : names) typed.push_back(dashes + name);
  return typed;
}

OptionInfo info_of(const CLI::Option& option) {
  OptionInfo info;
  info.short_names = with_dashes(option.get_snames(), "-");
  info.long_names = with_dashes(option.get_lnames(), "--");
  info.value = option.get_option_text();
  info.description = option.get_description();
  info.default_text = option.get_default_str();
  info.is_list = !validator_text(option, kLists).empty();
  info.choices = split(validator_text(option, info.is_list ? kLists : kChoices), '|');
  info.is_positional = option.get_positional();
  info.is_required = option.get_required();
  info.is_repeated = option.get_expected_max() > 1;
  return info;
}

void describe(CLI::Option* option, const OptionText& text) {
  option->option_text(text.value);
  option->description(text.description);
  option->default_str(text.default_text);
  if (text.choices.empty()) return;
  const auto accept_all = [](std::string&) { return std::string(); };
  const CLI::Validator holder(accept_all, fmt::format("{}", fmt::join(text.choices, "|")),
                              text.is_list ? kLists : kChoices);
  option->check(holder);
}

template <class T>
void add_value_of(CLI::App& app, const char* names, T& target, const OptionText& text) {
  // One value each, or `--backend math CASE` would take the case for a backend.
  describe(app.add_option(names, target)->allow_extra_args(false), text);
}

class ShortHelp final : public CLI::Formatter {
 public:
  ShortHelp() {
    column_width(kColumn);
    label("Subcommands", "Verbs");
  }

  std::string make_option(const CLI::Option* option, bool) const override {
    const OptionInfo info = info_of(*option);
    return fmt::format("  {:<{}}{}\n", info.usage() + " ", kColumn - 2, info.text());
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    return fmt::format("  {:<{}}{}\n", verb->get_name() + " ", kColumn - 2,
                       verb->get_description());
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string words = name + (app->get_parent() == nullptr ? " VERB" : "") + " [OPTION...]";
    for (const OptionInfo& info : options_of(*app)) {
      if (info.is_positional) words += " " + info.usage();
    }
    return fmt::format("Usage: {}\n", words);
  }

 private:
  static constexpr std::size_t kColumn = 26;
};

}  // namespace

CLI::App* add_verb(CLI::App& app, const char* name, const char* description) {
  return app.add_subcommand(name, description);
}

void add_value(CLI::App& app, const char* names, std::string& target, const OptionText& text) {
  add_value_of(app, names, target, text);
}

void add_value(CLI::App& app, const char* names, std::int64_t& target, const OptionText& text) {
  add_value_of(app, names, target, text);
}

void add_value(CLI::App& app, const char* names, std::vector<std::string>& target,
               const OptionText& text) {
  add_value_of(app, names, target, text);
}

void add_flag(CLI::App& app, const char* names, bool& target, const char* description) {
  describe(app.add_flag(names, target), {"", description});
}

void add_positional(CLI::App& app, const char* name, std::string& target, bool is_required,
                    const OptionText& text) {
  describe(app.add_option(name, target)->required(is_required), text);
}

void add_positional(CLI::App& app, const char* name, std::vector<std::string>& target,
                    bool is_required, const OptionText& text) {
  describe(app.add_option(name, target)->required(is_required), text);
}

void add_footer(CLI::App& verb, const std::string& text) { verb.footer(text); }

std::string OptionInfo::usage() const {
  if (is_positional) {
    const std::string words = value + (is_repeated ? "..." : "");
    return is_required ? words : "[" + words + "]";
  }
  std::vector<std::string> names = short_names;
  names.insert(names.end(), long_names.begin(), long_names.end());
  return fmt::format("{}{}{}", fmt::join(names, ", "), value.empty() ? "" : " ", value);
}

std::string OptionInfo::text() const {
  if (default_text.empty()) return description;
  return fmt::format("{} (default: {})", description, default_text);
}

std::vector<OptionInfo> options_of(const CLI::App& app) {
  std::vector<OptionInfo> infos;
  for (const CLI::Option* option : app.get_options()) infos.push_back(info_of(*option));
  std::stable_partition(infos.begin(), infos.end(),
                        [](const OptionInfo& info) { return !info.is_positional; });
  return infos;
}

std::vector<VerbInfo> verb_infos(const CLI::App& app) {
  std::vector<VerbInfo> infos;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    infos.push_back({verb->get_name(), verb->get_description(), options_of(*verb)});
  }
  return infos;
}

std::string description_of(const CLI::App& app) { return app.get_description(); }

void use_short_help(CLI::App& app) { app.formatter(std::make_shared<ShortHelp>()); }

}  // namespace regard::cli
