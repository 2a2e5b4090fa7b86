#pragma once

#include "tools/llm/generate.h"
#include "tools/llm/rank_sequence.h"

namespace llm {

/// generate() of one sample over ranks: rank 0 draws each token, `on_token` is called there alone,
/// and every rank returns the tokens. Refuses more samples and drafts.
regard::Expected<Generation> generate_over_ranks(RankSequence& sequence,
                                                 std::span<const std::int32_t> prompt,
                                                 const GenerateOptions& options,
                                                 const OnToken& on_token);

}  // namespace llm
