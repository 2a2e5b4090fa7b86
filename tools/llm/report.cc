#include "tools/llm/report.h"

#include <fmt/format.h>

#include "tools/llm/terminal.h"

namespace llm {
namespace {

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

double total_seconds(const Generation& g) { return g.prefill_seconds + g.decode_seconds; }

Json rates_json(const Generation& g) {
  return {{"prompt_tokens", g.prompt_tokens},
          {"new_tokens", g.new_tokens},
          {"first_token_s", g.prefill_seconds},
          {"decode_s", g.decode_seconds},
          {"prompt_tokens_per_s", rate(g.prompt_tokens, g.prefill_seconds)},
          {"total_tokens_per_s", rate(g.new_tokens, total_seconds(g))},
          {"next_tokens_per_s", rate(g.decode_tokens, g.decode_seconds)},
          {"drafted", g.drafted},
          {"accepted", g.accepted},
          {"peak_memory_bytes", peak_memory_bytes()}};
}

}  // namespace

std::string rates_text(const Generation& g) {
  std::string text = fmt::format(
      "\n{} prompt tokens, {} new ones in {:.3f} s\n"
      "total throughput:        {:.2f} tokens/s\n"
      "first-token throughput:  {:.2f} tokens/s: {:.4f} s, {:.1f} prompt tokens/s\n",
      g.prompt_tokens, g.new_tokens, total_seconds(g), rate(g.new_tokens, total_seconds(g)),
      rate(1, g.prefill_seconds), g.prefill_seconds, rate(g.prompt_tokens, g.prefill_seconds));
  if (g.decode_tokens > 0) {
    text += fmt::format("next-token throughput:   {:.2f} tokens/s\n",
                        rate(g.decode_tokens, g.decode_seconds));
  }
  if (g.drafted > 0) {
    text +=
        fmt::format("drafts:                  {} of {} tokens accepted\n", g.accepted, g.drafted);
  }
  text += fmt::format("peak memory:             {:.2f} GB\n",
                      static_cast<double>(peak_memory_bytes()) * 1e-9);
  if (g.context_full) text += "stopped: the context is full\n";
  return text;
}

Json phases_json(const Model& model) {
  Json phases = Json::object();
  for (const auto& [name, plan] : model.attention().plans()) {
    phases[name] = {{"backend", to_string(plan.backend())}, {"kernel", plan.kernel().kernel}};
  }
  return phases;
}

std::string text_of(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens) {
  Utf8Stream stream;
  const std::string text = stream.add(tokenizer.decode(tokens));
  return text + stream.finish();
}

Json answers_json(const Session& session, const Generation& made) {
  Json samples = Json::array();
  for (const auto& tokens : made.samples) {
    samples.push_back({{"tokens", tokens}, {"text", text_of(session.tokenizer, tokens)}});
  }
  return {{"samples", samples},
          {"rates", rates_json(made)},
          {"phases", phases_json(session.model)},
          {"context_full", made.context_full},
          {"interrupted", made.interrupted}};
}

void print_details(Session& session, const Options& options) {
  if (options.explain) complain("\n" + session.model.attention().explain());
  if (options.profile) complain("\n" + session.model.profile().to_string());
}

}  // namespace llm
