#pragma once

#include <string>
#include <vector>

#include "regard/case.h"
#include "regard/status.h"
#include "tools/regard/option_table.h"

namespace regard::cli {

/// A problem as it was typed: a case in words, or the name of a safetensors file.
struct ProblemWords {
  std::string text;
  bool is_file = false;
};

/// The words with spaces between them.
std::string joined(const std::vector<std::string>& words);

/// Whether an argument names a file: it ends in .safetensors or .record, or begins with "/", "./"
/// or "../". No word of a case does.
bool names_file(const std::string& argument);

/// The problems of a line. An argument with a space is a case of its own, a file's name is a
/// problem; other arguments that stand together are the words of one case.
std::vector<ProblemWords> split_problems(const std::vector<std::string>& arguments);

/// The one problem of a line; an error where there are several.
Expected<ProblemWords> one_problem(const std::vector<std::string>& arguments, const char* verb);

/// What stands for the words of a problem in help; completions offer words of cases and files.
inline constexpr const char* kProblemValue = "CASE|FILE";

/// The options of a verb that takes files and cases alike, as run has them.
struct FileOptions {
  std::vector<std::string> words;  // each may be several
  bool grad = false;
};
void add_file_flags(CLI::App& app, FileOptions& options);

/// The problem as a case, without its tensors. A file's is what run would compute, after every
/// check that run makes of a file.
Expected<Case> case_of(const ProblemWords& problem, const FileOptions& options);

/// A backward reads what its forward saved: a case of `grad` alone saves statistics.
void save_for_backward(AttentionParams& params);

/// The words that a case may begin with, "causal", "hq", "diag=", as completions offer them.
std::vector<std::string> case_word_starts();

}  // namespace regard::cli
