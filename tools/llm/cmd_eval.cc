#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "tools/llm/commands.h"
#include "tools/llm/perplexity.h"
#include "tools/llm/report.h"
#include "tools/llm/session.h"
#include "tools/llm/terminal.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;

Expected<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || text.str().empty()) {
    return Status(StatusCode::kInvalidArgument, "cannot read a text from " + path);
  }
  return text.str();
}

bool poll_interrupt(void*) noexcept { return InterruptFlag::raised(); }

}  // namespace

int run_eval(const Options& options) {
  const Expected<std::string> text = read_text(options.file);
  if (!text) return fail(text.status());
  Expected<Session> session = open_session(options);
  if (!session) return fail(session.status());
  if (options.window > session->capacity) {
    return fail(Status(StatusCode::kInvalidArgument,
                       fmt::format("--window ({}) must be at most --max-seq-length, {}",
                                   options.window, session->capacity)));
  }
  const auto tokens = session->tokenizer.encode(*text, false);
  if (!tokens) return fail(tokens.status());
  Expected<KvCache> cache = session->make_cache(1);
  if (!cache) return fail(cache.status());
  if (Status s = prepare_generation(session->model, *cache, options.generate); !s.ok()) {
    return fail(s);
  }
  const InterruptFlag interrupts;
  regard::Interrupt interrupt(poll_interrupt);
  const auto start = std::chrono::steady_clock::now();
  const auto made = measure_perplexity(session->model, *cache, *tokens, options.window,
                                       options.limit, &interrupt);
  if (!made) return fail(made.status());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json) {
    print(Json{{"perplexity", made->value()},
               {"mean_loss", made->mean_loss},
               {"tokens", made->tokens},
               {"windows", made->windows},
               {"seconds", seconds},
               {"phases", phases_json(session->model)}}
              .dump() +
          "\n");
  } else {
    print(fmt::format("perplexity {:.6f} of {} tokens in {} windows, {:.1f} tokens/s\n",
                      made->value(), made->tokens, made->windows,
                      static_cast<double>(made->tokens) / seconds));
  }
  print_details(*session, options);
  return finish(kOk);
}

}  // namespace llm
