#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "distributed/agreement.h"
#include "distributed/launcher.h"
#include "distributed/measure_network.h"
#include "tools/llm/commands.h"
#include "tools/llm/mpi_ranks.h"
#include "tools/llm/rank_generate.h"
#include "tools/llm/report.h"
#include "tools/llm/session.h"
#include "tools/llm/terminal.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;
namespace distributed = regard::distributed;

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
void print_samples(const Tokenizer& tokenizer, const std::string& prompt, const Generation& made) {
  const std::string count = std::to_string(made.samples.size());
  for (std::size_t s = 0; s < made.samples.size(); ++s) {
    print("sample " + std::to_string(s + 1) + " of " + count + ":\n" + prompt +
          text_of(tokenizer, made.samples[s]) + "\n\n");
  }
}

int report(Session& session, const Options& options, const std::vector<std::int32_t>& prompt,
           const Generation& made, const Json& more = Json::object()) {
  if (options.json) {
    Json document = {{"prompt_tokens", prompt}};
    document.update(answers_json(session, made));
    document.update(more);
    print(document.dump() + "\n");
  } else {
    if (options.generate.samples > 1) print_samples(session.tokenizer, options.prompt, made);
    complain(rates_text(made));
  }
  print_details(session, options);
  if (made.interrupted) complain("regard-llm: interrupted\n");
  return finish(made.interrupted ? kInterruptedExit : kOk);
}

/// Prints one sample, token by token.
class Printer {
 public:
  Printer(const Tokenizer& tokenizer, const Options& options)
      : tokenizer_(tokenizer),
        streams_(!options.json && options.generate.samples == 1),
        before_(options.prompt) {}
  /// The prompt is shown with the first token: a refused one leaves nothing that looks like an
  /// answer.
  bool add(std::int32_t token) {
    if (!streams_) return true;
    return print(std::exchange(before_, "") + text_.add(tokenizer_.bytes_of(token)));
  }
  void finish() {
    if (streams_) print(before_ + text_.finish() + "\n");
  }

 private:
  const Tokenizer& tokenizer_;
  bool streams_;
  std::string before_;
  Utf8Stream text_;
};

Status check_rank_options(const Options& o) {
  const auto refused = [](const std::string& option, const char* expected) {
    return Status(StatusCode::kInvalidArgument, option + " must be " + expected + " under mpirun");
  };
  if (o.has_page_size && o.page_size != 0) {
    return refused("--page-size (" + std::to_string(o.page_size) + ")", "0");
  }
  if (o.hadamard) return refused("--hadamard", "left out");
  return Status();
}

/// Of one rank: the model and the prompt, once every rank has the same.
struct RankInput {
  std::optional<Session> session;
  std::vector<std::int32_t> prompt;

  Status open(const Options& options) {
    if (Status s = check_rank_options(options); !s.ok()) return s;
    Expected<Session> opened = open_session(options);
    if (!opened) return opened.status();
    session = *std::move(opened);
    Expected<std::vector<std::int32_t>> tokens = prompt_tokens(session->tokenizer, options.prompt);
    if (!tokens) return tokens.status();
    prompt = *std::move(tokens);
    return Status();
  }
  /// What ranks compare.
  std::string text() const {
    std::string made = "weights " + std::string(to_string(session->weights)) + " of " +
                       std::to_string(session->model.weight_bytes()) + " bytes, keys and values " +
                       to_string(session->cache_dtype) + ", " + std::to_string(session->capacity) +
                       " positions, prompt";
    for (const std::int32_t token : prompt) made += " " + std::to_string(token);
    return made;
  }
};

/// The sequence over ranks, with the network's rates where an algorithm is chosen by them.
Expected<std::unique_ptr<RankSequence>> make_sequence(Session& session, const Options& options,
                                                      distributed::Communicator& communicator) {
  RankOptions made;
  made.dtype = session.cache_dtype;
  made.capacity = session.capacity;
  made.threads = session.threads;
  made.policy = session.policy;
  made.algorithm = distributed::parse_algorithm(options.comm).value();
  if (made.algorithm == distributed::Algorithm::kAuto) {
    const auto network = distributed::measure_network(communicator, {});
    if (!network) return network.status();
    made.network = *network;
  }
  return RankSequence::make(session.model, communicator, made);
}

/// Every rank returns the same refusals, which rank 0 states; of other errors each states its own.
RankOutcome fail_on_rank(const distributed::Communicator& communicator, const Status& status) {
  const int code = exit_code_of(status);
  const bool is_everywhere = code == kUsage || code == kNoBackend;
  if (is_everywhere && communicator.rank() != 0) return {code, false};
  return {fail(status), !is_everywhere};
}

RankOutcome generate_on_rank(distributed::Communicator& communicator, const Options& given) {
  Options options = given;
  RankInput input;
  const Status opened = input.open(options);
  const auto agreed = distributed::agree(
      communicator, {}, opened.ok() ? input.text() : "error: " + opened.message(), {}, "generate");
  if (!agreed) return fail_on_rank(communicator, agreed.status());
  if (!opened.ok()) return fail_on_rank(communicator, opened);
  Session& session = *input.session;
  options.generate.end_of_text = session.tokenizer.end_of_text();
  auto sequence = make_sequence(session, options, communicator);
  if (!sequence) return fail_on_rank(communicator, sequence.status());
  Printer printer(session.tokenizer, options);
  const auto made =
      generate_over_ranks(**sequence, input.prompt, options.generate,
                          [&](std::int64_t, std::int32_t token) { return printer.add(token); });
  if (!made) return fail_on_rank(communicator, made.status());
  if (communicator.rank() != 0) return {kOk, false};
  printer.finish();
  if (!options.write_logits.empty()) {
    if (Status s = write_floats(options.write_logits, made->prompt_logits); !s.ok()) {
      return {fail(s), false};
    }
  }
  if (options.explain) complain("\n" + (*sequence)->explain());
  const Json more = {{"ranks", communicator.size()}, {"comm", (*sequence)->comm()}};
  return {report(session, options, input.prompt, *made, more), false};
}

}  // namespace

int refuse_on_ranks(const std::string& message) {
  return run_on_ranks([&](distributed::Communicator& communicator) {
    if (communicator.rank() == 0) complain("regard-llm: " + message + "\n");
    return RankOutcome{kUsage, false};
  });
}

int run_generate(const Options& given) {
  if (distributed::ranks_of_launcher() > 1) {
    return run_on_ranks([&](distributed::Communicator& communicator) {
      return generate_on_rank(communicator, given);
    });
  }
  if (given.comm != "auto") {
    return fail(Status(StatusCode::kInvalidArgument, "--comm (" + given.comm + ") needs mpirun"));
  }
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
  Printer printer(session->tokenizer, options);
  const auto made = generate(
      session->model, *cache, cache->add(), *prompt, options.generate,
      [&](std::int64_t, std::int32_t token) {
        InterruptFlag::forward(interrupt);
        return printer.add(token);
      },
      &interrupt);
  if (!made) return fail(made.status());
  printer.finish();
  if (!options.write_logits.empty()) {
    if (Status s = write_floats(options.write_logits, made->prompt_logits); !s.ok()) {
      return fail(s);
    }
  }
  return report(*session, options, *prompt, *made);
}

}  // namespace llm
