#include <algorithm>

#include "tools/llm/commands.h"
#include "tools/llm/report.h"
#include "tools/llm/session.h"
#include "tools/llm/terminal.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

/// A conversation over one sequence of the cache, which keeps what all turns have in common.
class Conversation {
 public:
  Conversation(Session& session, KvCache& cache, const ChatTemplate& chat, const Options& options)
      : session_(session), cache_(cache), chat_(chat), options_(options), sequence_(cache.add()) {
    reset();
  }

  void reset() {
    messages_.clear();
    const std::string& system = options_.system.empty() ? chat_.default_system() : options_.system;
    if (!system.empty()) messages_.push_back({"system", system});
  }

  /// Prints the answer as it comes. A turn that fails leaves the conversation as it was.
  Expected<Generation> answer(const std::string& question) {
    messages_.push_back({"user", question});
    const auto tokens = chat_.encode(session_.tokenizer, messages_, true);
    Expected<Generation> made = tokens ? generate_answer(*tokens) : tokens.status();
    if (!made) {
      messages_.pop_back();
      return made;
    }
    messages_.push_back({"assistant", session_.tokenizer.decode(made->samples[0])});
    return made;
  }

 private:
  Expected<Generation> generate_answer(const std::vector<std::int32_t>& tokens) {
    const auto same =
        std::mismatch(tokens.begin(), tokens.end(), computed_.begin(), computed_.end());
    // At least one token goes through the model, whose logits begin the answer.
    const auto kept = std::min<std::ptrdiff_t>(same.first - tokens.begin(),
                                               static_cast<std::ptrdiff_t>(tokens.size()) - 1);
    cache_.truncate(sequence_, kept);
    computed_.resize(static_cast<std::size_t>(kept));
    regard::Interrupt interrupt(InterruptFlag::poll);
    Utf8Stream text;
    const std::span<const std::int32_t> rest(tokens.begin() + kept, tokens.end());
    Expected<Generation> made = generate(
        session_.model, cache_, sequence_, rest, options_.generate,
        [&](std::int64_t, std::int32_t token) {
          InterruptFlag::forward(interrupt);
          return options_.json || print(text.add(session_.tokenizer.bytes_of(token)));
        },
        &interrupt);
    if (!made) return made;
    if (!options_.json) print(text.finish() + "\n");
    computed_ = tokens;
    computed_.insert(computed_.end(), made->samples[0].begin(), made->samples[0].end());
    computed_.resize(static_cast<std::size_t>(cache_.length(sequence_)));
    return made;
  }

  Session& session_;
  KvCache& cache_;
  const ChatTemplate& chat_;
  const Options& options_;
  std::int32_t sequence_;
  std::vector<Message> messages_;
  std::vector<std::int32_t> computed_;  // the cache's tokens
};

int answer_once(Conversation& conversation, Session& session, const Options& options) {
  const auto made = conversation.answer(options.prompt);
  if (!made) return fail(made.status());
  if (options.json) {
    print(answers_json(session, *made).dump() + "\n");
  } else {
    complain(rates_text(*made));
  }
  print_details(session, options);
  return finish(made->interrupted ? kInterruptedExit : kOk);
}

int talk(Conversation& conversation, Session& session, const Options& options) {
  complain("Ctrl-C stops an answer. /reset begins anew; /bye or Ctrl-D ends.\n");
  LineReader lines;
  std::string line, rates;  // of the last answer
  while (lines.read("> ", &line)) {
    if (line == "/bye") break;
    if (line == "/reset") conversation.reset();
    if (line.empty() || line == "/reset") continue;
    InterruptFlag::lower();
    const auto made = conversation.answer(line);
    const bool interrupted =
        made ? made->interrupted : made.status().code() == regard::StatusCode::kInterrupted;
    InterruptFlag::lower();
    if (!made && !interrupted) {
      const int code = fail(made.status());
      if (code != kUsage) return finish(code);
    }
    if (made) rates = rates_text(*made);
    if (interrupted) complain("[stopped]\n");
    if (made && made->context_full) complain("[the context is full: /reset begins anew]\n");
    if (made && made->new_tokens >= options.generate.max_new_tokens) {
      complain("[stopped after --max-new-tokens " + std::to_string(made->new_tokens) + "]\n");
    }
    if (!print("")) break;
  }
  if (!rates.empty()) complain("\nThe last answer:" + rates);
  print_details(session, options);
  return finish(InterruptFlag::raised() ? kInterruptedExit : kOk);
}

}  // namespace

int run_chat(const Options& given) {
  if (given.json && !given.has_prompt) {
    return fail(Status(regard::StatusCode::kInvalidArgument,
                       "--json needs --prompt: a chat of several answers is not one document"));
  }
  Expected<Session> session = open_session(given);
  if (!session) return fail(session.status());
  Options options = given;
  options.generate.end_of_text = session->tokenizer.end_of_text();
  const Expected<ChatTemplate> chat = ChatTemplate::from(session->file.contents());
  if (!chat) return fail(chat.status());
  Expected<KvCache> cache = session->prepare_cache(options.generate);
  if (!cache) return fail(cache.status());
  const InterruptFlag interrupts;
  Conversation conversation(*session, *cache, *chat, options);
  return options.has_prompt ? answer_once(conversation, *session, options)
                            : talk(conversation, *session, options);
}

}  // namespace llm
