#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/llm/generate.h"
#include "tools/llm/session.h"

namespace llm {

using Json = nlohmann::ordered_json;

/// Rates and peak memory, as torchchat prints them.
std::string rates_text(const Generation& generation);

/// The text of a sample; bytes that are no UTF-8 become U+FFFD.
std::string text_of(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens);

/// Tokens and text of each sample, rates, what each phase ran on, and why it ended.
Json answers_json(const Session& session, const Generation& made);

/// Backend and kernel of each phase.
Json phases_json(const Model& model);

/// What --explain and --profile add, on standard error.
void print_details(Session& session, const Options& options);

}  // namespace llm
