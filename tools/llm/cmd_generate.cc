#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "tools/llm/commands.h"
#include "tools/llm/report.h"
#include "tools/llm/session.h"
#include "tools/llm/terminal.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;

Status write_floats(const std::string& path, const std::vector<float>& values) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.close();
  if (!file) {
    std::error_code error;  // a file that is not whole must not stay; a device must
    if (std::filesystem::is_regular_file(path, error)) std::remove(path.c_str());
    return Status(StatusCode::kUnavailable, "cannot write " + path);
  }
  return Status();
}

/// The prompt's tokens, behind the start of text where the model wants one.
Expected<std::vector<std::int32_t>> prompt_tokens(const Tokenizer& tokenizer,
                                                  const std::string& prompt) {
  Expected<std::vector<std::int32_t>> tokens = tokenizer.encode(prompt, true);
  if (tokens && tokenizer.adds_start()) tokens->insert(tokens->begin(), tokenizer.start_of_text());
  return tokens;
}

/// One sample appears as it is made; several appear one after the other at the end.
bool print_samples(const Tokenizer& tokenizer, const Generation& made) {
  for (std::size_t s = 0; s < made.samples.size(); ++s) {
    const std::string text = text_of(tokenizer, made.samples[s]);
    if (!print("sample " + std::to_string(s + 1) + ":" + text + "\n\n")) {
      return false;
    }
  }
  return true;
}

int report(Session& session, const Options& options, const std::vector<std::int32_t>& prompt,
           const Generation& made) {
  if (options.json) {
    Json document = {{"prompt_tokens", prompt}};
    document.update(answers_json(session, made));
    print(document.dump() + "\n");
  } else {
    if (options.generate.samples > 1) print_samples(session.tokenizer, made);
    complain(rates_text(made));
  }
  print_details(session, options);
  if (made.interrupted) complain("regard-llm: interrupted\n");
  return finish(made.interrupted ? kInterruptedExit : kOk);
}

}  // namespace

int run_generate(const Options& given) {
  Expected<Session> session = open_session(given);
  if (!session) return fail(session.status());
  Options options = given;
  options.generate.end_of_text = session->tokenizer.end_of_text();
  const auto prompt = prompt_tokens(session->tokenizer, options.prompt);
  if (!prompt) return fail(prompt.status());
  Expected<KvCache> cache = session->prepare_cache(options.generate);
  if (!cache) return fail(cache.status());
  const InterruptFlag interrupts;
  regard::Interrupt interrupt(InterruptFlag::poll);
  const bool streams = !options.json && options.generate.samples == 1;
  // The prompt is shown with the first token: a refused one leaves nothing that looks like an
  // answer.
  std::string before = options.prompt;
  Utf8Stream text;
  const auto made = generate(
      session->model, *cache, cache->add(), *prompt, options.generate,
      [&](std::int64_t, std::int32_t token) {
        if (!streams) return true;
        return print(std::exchange(before, "") + text.add(session->tokenizer.bytes_of(token)));
      },
      &interrupt);
  if (!made) return fail(made.status());
  if (streams) print(before + text.finish() + "\n");
  if (!options.write_logits.empty()) {
    if (Status s = write_floats(options.write_logits, made->prompt_logits); !s.ok()) {
      return fail(s);
    }
  }
  return report(*session, options, *prompt, *made);
}

}  // namespace llm
