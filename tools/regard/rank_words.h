#pragma once

#include <optional>
#include <string>
#include <vector>

#include "distributed/attention.h"
#include "regard/case.h"

namespace regard::cli {

/// The words that spread a problem over ranks, beside those of its case.
struct RankWords {
  int ranks = 0;
  distributed::Options options;
};

/// Removes cp=N, topology=NxM, comm=NAME, network=US,GBS and layout=NAME from `words`. Nothing
/// where there is no cp; without cp the others are errors.
Expected<std::optional<RankWords>> take_rank_words(std::vector<std::string>* words);

/// What the words mean, a line each.
const char* rank_words_help();

/// The plan for a case's problem.
Expected<distributed::Plan> plan_of(const RankWords& words, const Case& c);

}  // namespace regard::cli
