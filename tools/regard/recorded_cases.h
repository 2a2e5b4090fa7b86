#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "regard/params.h"
#include "regard/record.h"
#include "regard/status.h"
#include "tools/regard/problem_words.h"

namespace regard::cli {

/// A problem, and how many of its calls a record counts; 0 where it does not come from one.
struct CountedProblem {
  ProblemWords words;
  std::uint64_t calls = 0;
};

/// The cases of a record, the most frequent first. Forward and backward of one case are one
/// problem, with the word grad.
std::vector<CountedProblem> cases_of(const Record& record);

/// The problems of a line, each record replaced by its cases.
Expected<std::vector<CountedProblem>> expand_records(const std::vector<ProblemWords>& problems);

/// The text of a file of at most 64 MiB.
Expected<std::string> read_text(const std::string& path);

}  // namespace regard::cli
