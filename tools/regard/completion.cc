#include "tools/regard/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/regard/problem_words.h"

namespace regard::cli {
namespace {

std::string spaced(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<std::string> all_names(const OptionInfo& option) {
  std::vector<std::string> names = option.short_names;
  names.insert(names.end(), option.long_names.begin(), option.long_names.end());
  return names;
}

bool is_flag(const OptionInfo& option) { return !option.is_positional && option.value.empty(); }
bool takes_file(const OptionInfo& option) { return option.value == "FILE"; }
bool takes_problem(const OptionInfo& option) {
  return option.value == kProblemValue || option.value == "WORD";
}

/// `text` between single quotes, for every shell here; `escape` stands for a quote within.
std::string quoted(const std::string& text, const char* escape) {
  std::string out = "'";
  for (const char c : text) c == '\'' ? out.append(escape) : out.append(1, c);
  return out + "'";
}

// ---- bash

std::string bash_values(const OptionInfo& option) {
  if (takes_file(option)) return "_regard_files '*'";
  if (takes_problem(option)) return "_regard_problem";
  if (option.choices.empty()) return ":";
  return fmt::format("{} \"{}\"", option.is_list ? "_regard_list" : "_regard_words",
                     spaced(option.choices));
}

std::string bash_verb(const VerbInfo& verb) {
  std::string out = fmt::format("    {})\n      case $prev in\n", verb.name);
  std::vector<std::string> names;
  std::string positional = ":";
  for (const OptionInfo& option : verb.options) {
    if (option.is_positional) {
      positional = bash_values(option);
      continue;
    }
    const std::vector<std::string> own = all_names(option);
    names.insert(names.end(), own.begin(), own.end());
    if (is_flag(option)) continue;
    out += fmt::format("        {}) {}; return ;;\n", fmt::join(own, "|"), bash_values(option));
  }
  out += "      esac\n";
  return out + fmt::format("      if [[ $cur == -* ]]; then _regard_words \"{}\"; else {}; fi ;;\n",
                           spaced(names), positional);
}

constexpr const char* kBashHead =
    R"sh(# bash completion for regard; made by `regard completion bash`

_regard_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }

# Words with commas between them: a,b
_regard_list() { mapfile -t COMPREPLY < <(compgen -P "${cur%"${cur##*,}"}" -W "$1" -- "${cur##*,}"); }

_regard_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -X "!$1" -- "$cur"; compgen -d -- "$cur")
}

_regard_problem() {
  local words
  _regard_words "$regard_case_words"
  words=("${COMPREPLY[@]}")
  # A word goes on after its name: hq8, diag=br.
  [[ ${#words[@]} == 1 && ! $words =~ ^($regard_whole_words)$ ]] && compopt -o nospace 2>/dev/null
  [[ ${#words[@]} == 0 ]] && _regard_files '*.safetensors' && return
  COMPREPLY=("${words[@]}")
}

)sh";

constexpr const char* kBashBody = R"sh(_regard() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} == -* ]] || { verb=${COMP_WORDS[i]}; break; }
  done
  case $verb in
)sh";

// ---- zsh

/// Text within the brackets and colons of an _arguments specification.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_values(const OptionInfo& option) {
  const std::string message = zsh_text(option.value);
  if (takes_file(option)) return message + ":_files";
  if (takes_problem(option)) return message + ":_regard_problem";
  if (option.choices.empty()) return message + ": ";
  if (option.is_list)
    return fmt::format("{}:_sequence compadd - {}", message, spaced(option.choices));
  return fmt::format("{}:({})", message, spaced(option.choices));
}

std::string zsh_spec(const OptionInfo& option) {
  constexpr const char* kQuote = "'\\''";
  if (option.is_positional) {
    return quoted((option.is_repeated ? "*:" : "1:") + zsh_values(option), kQuote);
  }
  std::vector<std::string> names = all_names(option);
  const std::string text = fmt::format("[{}]{}", zsh_text(option.text()),
                                       is_flag(option) ? "" : ":" + zsh_values(option));
  if (names.size() == 1) return quoted(names[0] + text, kQuote);
  return fmt::format("{}{{{}}}{}", quoted(fmt::format("({})", spaced(names)), kQuote),
                     fmt::join(names, ","), quoted(text, kQuote));
}

// ---- fish

std::string fish_option(const std::string& verb, const OptionInfo& option) {
  constexpr const char* kQuote = "\\'";
  std::string out = fmt::format("complete -c regard -n '__fish_seen_subcommand_from {}'", verb);
  if (option.is_positional) {
    if (takes_file(option)) return out + " -F\n";
    if (!takes_problem(option)) {
      return out + fmt::format(" -f -a {}\n", quoted(spaced(option.choices), kQuote));
    }
    return out + fmt::format(" -k -a {}\n", quoted("(__fish_complete_suffix .safetensors) " +
                                                       spaced(case_word_starts()),
                                                   kQuote));
  }
  for (const std::string& name : option.short_names) out += " -s " + name.substr(1);
  for (const std::string& name : option.long_names) out += " -l " + name.substr(2);
  if (takes_file(option)) out += " -r -F";
  if (!is_flag(option) && !takes_file(option)) {
    out += " -x";
    if (!option.choices.empty()) out += " -a " + quoted(spaced(option.choices), kQuote);
  }
  return out + " -d " + quoted(option.text(), kQuote) + "\n";
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> starts;
  std::vector<std::string> whole;  // words that need nothing more
  for (const std::string& word : case_word_starts()) {
    starts.push_back(word);
    if (parse_case("sq1 d1 " + word)) whole.push_back(word);
  }
  std::string out = kBashHead;
  out += fmt::format("regard_case_words=\"{}\"\nregard_whole_words='{}'\n\n", spaced(starts),
                     fmt::join(whole, "|"));
  out += kBashBody;
  std::vector<std::string> first;
  for (const VerbInfo& verb : verb_infos(app)) {
    first.push_back(verb.name);
    out += bash_verb(verb);
  }
  for (const OptionInfo& option : options_of(app)) {
    for (const std::string& name : all_names(option)) first.push_back(name);
  }
  out += fmt::format("    '') _regard_words \"{}\" ;;\n", spaced(first));
  return out + "  esac\n}\n\ncomplete -F _regard regard\n";
}

std::string zsh_completion(const CLI::App& app) {
  std::string verbs, cases;
  for (const VerbInfo& verb : verb_infos(app)) {
    verbs += "    " + quoted(verb.name + ":" + zsh_text(verb.description), "'\\''") + "\n";
    cases += fmt::format("        {})\n          _arguments -s", verb.name);
    for (const OptionInfo& option : verb.options) cases += " \\\n            " + zsh_spec(option);
    cases += " ;;\n";
  }
  std::string options;
  for (const OptionInfo& option : options_of(app)) options += zsh_spec(option) + " ";
  return fmt::format(
      R"sh(#compdef regard
# zsh completion for regard; made by `regard completion zsh`

_regard_problem() {{
  _files -g '*.safetensors'
  compadd -S '' -- {}
}}

_regard() {{
  local context state state_descr line
  typeset -A opt_args
  local -a verbs=(
{}  )
  _arguments -C {}'1: :->verb' '*:: :->rest'
  case $state in
    verb) _describe -t verbs verb verbs ;;
    rest)
      case $words[1] in
{}      esac ;;
  esac
}}

_regard "$@"
)sh",
      spaced(case_word_starts()), verbs, options, cases);
}

std::string fish_completion(const CLI::App& app) {
  constexpr const char* kQuote = "\\'";
  std::string out =
      "# fish completion for regard; made by `regard completion fish`\n\ncomplete -c regard -f\n";
  for (const OptionInfo& option : options_of(app)) {
    out += "complete -c regard -n __fish_use_subcommand";
    for (const std::string& name : option.short_names) out += " -s " + name.substr(1);
    for (const std::string& name : option.long_names) out += " -l " + name.substr(2);
    out += " -d " + quoted(option.text(), kQuote) + "\n";
  }
  for (const VerbInfo& verb : verb_infos(app)) {
    out += fmt::format("\ncomplete -c regard -n __fish_use_subcommand -a {} -d {}\n", verb.name,
                       quoted(verb.description, kQuote));
    for (const OptionInfo& option : verb.options) out += fish_option(verb.name, option);
  }
  return out;
}

}  // namespace regard::cli
