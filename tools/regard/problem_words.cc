#include "tools/regard/problem_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "tools/regard/run_input.h"

namespace regard::cli {

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

bool names_file(const std::string& argument) {
  const std::string_view name = argument;
  return name.ends_with(".safetensors") || name.ends_with(".record") || name.starts_with("/") ||
         name.starts_with("./") || name.starts_with("../");
}

std::vector<ProblemWords> split_problems(const std::vector<std::string>& arguments) {
  std::vector<ProblemWords> problems;
  bool goes_on = false;  // the last problem is a case that further words belong to
  for (const std::string& argument : arguments) {
    const bool is_file = names_file(argument);
    const bool is_word = !is_file && argument.find(' ') == std::string::npos;
    if (is_word && goes_on) {
      problems.back().text += " " + argument;
    } else {
      problems.push_back({argument, is_file});
    }
    goes_on = is_word;
  }
  return problems;
}

Expected<ProblemWords> one_problem(const std::vector<std::string>& arguments, const char* verb) {
  const bool has_file = std::any_of(arguments.begin(), arguments.end(), names_file);
  if (!has_file) return ProblemWords{joined(arguments), false};
  if (arguments.size() == 1) return ProblemWords{arguments[0], true};
  return Status(StatusCode::kInvalidArgument,
                fmt::format("[{}] expected the words of a case or one file; words that change a "
                            "file's options go into --option",
                            verb));
}

void add_file_flags(CLI::App& app, FileOptions& options) {
  add_value(app, "--option", options.words,
            {"WORDS", "Words of a case, over those of the problem: 'causal diag=br'"});
  add_flag(app, "--grad", options.grad, "The backward too, as the word grad of a case");
}

Expected<Case> case_of(const ProblemWords& problem, const FileOptions& options) {
  if (problem.is_file) {
    // A bad variable is reported whatever the file holds.
    if (const Status status = env_status(read_env()); !status) return status;
    Expected<RunInput> input = load_input(problem.text, joined(options.words), options.grad);
    if (!input) return input.status();
    return std::move(input->c);
  }
  Expected<Case> c = parse_case(problem.text);
  if (!c) return c;
  const std::string changes = joined(options.words) + (options.grad ? " grad" : "");
  return changes.empty() ? c : parse_case(changes, *c);
}

void save_for_backward(AttentionParams& params) {
  const bool saves =
      params.features.has(Feature::kSavedStats) || params.features.has(Feature::kLse);
  if (params.features.has(Feature::kNeedsGrad) && !saves) {
    params.features.set(Feature::kSavedStats);
  }
}

std::vector<std::string> case_word_starts() {
  std::vector<std::string> starts;
  std::istringstream help(case_syntax_help());
  for (std::string line; std::getline(help, line);) {
    std::istringstream columns(line);
    std::string usage;
    columns >> usage;  // "hqN", "diag=tl|br|N|seq", "f64|f32|...", "mask[=B,H,Sq,Skv]"
    if (const std::size_t value = usage.find_first_of("=["); value != std::string::npos) {
      const bool needs_value = usage[value] == '=';
      starts.push_back(usage.substr(0, value) + (needs_value ? "=" : ""));
      continue;
    }
    std::istringstream words(usage);
    for (std::string word; std::getline(words, word, '|');) {
      if (word.find('.') != std::string::npos) continue;  // "..."
      if (word.back() == 'N') word.pop_back();
      starts.push_back(word);
    }
  }
  return starts;
}

}  // namespace regard::cli
