#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "tools/llm/clock.h"
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

/// The same model in f32 with a cache of f32 behind one another: what formats are compared with.
struct Reference {
  Expected<Session> session;
  Expected<KvCache> cache;

  explicit Reference(Options options)
      : session(open_session(in_f32(&options))), cache(regard::Status()) {
    if (session) cache = session->prepare_cache(options.generate);
  }
  static const Options& in_f32(Options* options) {
    options->dtype = options->kv_cache = "f32";
    options->page_size = 0;
    return *options;
  }
};

Json result_json(const Perplexity& made, bool compared, double seconds, const Model& model) {
  Json document = {{"perplexity", made.value()}, {"mean_loss", made.mean_loss},
                   {"tokens", made.tokens},      {"windows", made.windows},
                   {"seconds", seconds},         {"phases", phases_json(model)}};
  if (compared) document["mean_divergence"] = made.mean_divergence;
  return document;
}

std::string result_text(const Perplexity& made, bool compared, double seconds) {
  std::string text =
      fmt::format("perplexity {:.6f} of {} tokens in {} windows, {:.1f} tokens/s\n", made.value(),
                  made.tokens, made.windows, static_cast<double>(made.tokens) / seconds);
  if (compared) text += fmt::format("divergence from f32 {:.3e}\n", made.mean_divergence);
  return text;
}

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
  Expected<KvCache> cache = session->prepare_cache(options.generate);
  if (!cache) return fail(cache.status());
  std::unique_ptr<Reference> reference;
  ScoredModel compared;
  if (options.compare) {
    reference = std::make_unique<Reference>(options);
    if (!reference->session) return fail(reference->session.status());
    if (!reference->cache) return fail(reference->cache.status());
    compared = {&reference->session->model, &*reference->cache};
  }
  const InterruptFlag interrupts;
  regard::Interrupt interrupt(InterruptFlag::poll);
  const Clock::time_point start = Clock::now();
  const auto made = measure_perplexity({&session->model, &*cache}, compared, *tokens,
                                       {options.window, options.limit}, &interrupt);
  if (!made) return fail(made.status());
  const double seconds = seconds_since(start);
  print(options.json ? result_json(*made, options.compare, seconds, session->model).dump() + "\n"
                     : result_text(*made, options.compare, seconds));
  print_details(*session, options);
  return finish(kOk);
}

}  // namespace llm
