#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/llm/generate.h"
#include "tools/llm/session.h"

namespace llm {

using Json = nlohmann::ordered_json;

/// Rates and peak memory, as torchchat prints them.
std::string rates_text(const Generation& generation);
Json rates_json(const Generation& generation);

/// Tokens and text of each sample.
Json samples_json(const Tokenizer& tokenizer, const Generation& made);

/// Backend and kernel of each phase.
Json phases_json(const Model& model);

/// What --explain and --profile add, on standard error.
void print_details(Session& session, const Options& options);

}  // namespace llm
