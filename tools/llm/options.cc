#include "tools/llm/options.h"

#include <CLI/CLI.hpp>

namespace llm {
namespace {

constexpr std::int64_t kMaxThreads = 1024;
constexpr std::int64_t kMaxPageSize = 1024;
constexpr std::int64_t kMaxTokensOption = std::int64_t{1} << 24;

void add_model_options(CLI::App& app, Options* o) {
  app.add_option("--checkpoint", o->checkpoint,
                 "GGUF file, or the name of one in the model directory [the only one there]");
  app.add_option("--attention-backend", o->attention_backend,
                 "math, flash_attention, efficient_attention, cudnn_attention or auto")
      ->capture_default_str();
  app.add_option("--dtype", o->dtype, "of weights: f32, bf16 or auto (bf16 where it is faster)")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  app.add_option("--kv-cache", o->kv_cache, "of keys and values; auto is the weights' type")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "f16", "int8", "fp8", "int4"}))
      ->capture_default_str();
  app.add_flag("--hadamard", o->hadamard,
               "rotates keys and queries by the Walsh-Hadamard matrix, which evens outliers out");
  app.add_option("--page-size", o->page_size, "positions in a page of the cache; 0: no pages")
      ->check(CLI::Range(std::int64_t{0}, kMaxPageSize))
      ->capture_default_str();
  app.add_option("--threads", o->threads, "0 takes all CPUs that the process may use")
      ->check(CLI::Range(std::int64_t{0}, kMaxThreads))
      ->capture_default_str();
  app.add_option("--max-seq-length", o->max_seq_length,
                 "positions of a sequence, answer included [the model's context]")
      ->check(CLI::Range(std::int64_t{1}, kMaxTokensOption));
  app.add_flag("--explain", o->explain, "what attention runs on in each phase, and why");
  app.add_flag("--profile", o->profile, "time by operation");
  app.add_flag("--json", o->json, "one JSON document on standard output");
}

void add_sampling(CLI::App& app, Options* o) {
  app.add_option("--max-new-tokens", o->generate.max_new_tokens, "of each answer")
      ->check(CLI::Range(std::int64_t{1}, kMaxTokensOption))
      ->capture_default_str();
  app.add_option("--temperature", o->generate.sampling.temperature,
                 "0 takes the most probable token")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  app.add_option("--top-k", o->generate.sampling.top_k,
                 "tokens that may be drawn, the most probable; 0: all")
      ->check(CLI::Range(std::int64_t{0}, kMaxTokensOption))
      ->capture_default_str();
  app.add_option("--seed", o->generate.sampling.seed, "of the draws")->capture_default_str();
  app.add_option("--prompt-lookup", o->generate.prompt_lookup,
                 "drafts of so many tokens from earlier text, verified at once; 0: none")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{64}))
      ->capture_default_str();
}

}  // namespace

void add_generate(CLI::App& app, Options* o) {
  add_model_options(app, o);
  app.add_option("--prompt", o->prompt, "the text that is continued")->required();
  add_sampling(app, o);
  app.add_option("--num-samples", o->generate.samples, "answers, which share the prompt's pages")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}))
      ->capture_default_str();
  app.add_option("--comm", o->comm,
                 "under mpirun, of the prompt's attention: p2p, all_gather, a2a or auto (the least "
                 "predicted time)")
      ->check(CLI::IsMember({"auto", "p2p", "all_gather", "a2a"}))
      ->capture_default_str();
  app.add_option("--write-logits", o->write_logits,
                 "file for the logits of the prompt's last token, f32");
}

void add_chat(CLI::App& app, Options* o) {
  add_model_options(app, o);
  app.add_option("--prompt", o->prompt, "one message, whose answer ends the program");
  app.add_option("--system", o->system, "the system message [the model's own]");
  add_sampling(app, o);
}

void add_eval(CLI::App& app, Options* o) {
  add_model_options(app, o);
  app.add_option("file", o->file, "UTF-8 text")->required();
  app.add_option("--limit", o->limit, "windows of the text; 0: all")
      ->check(CLI::Range(std::int64_t{0}, kMaxTokensOption))
      ->capture_default_str();
  app.add_option("--window", o->window, "tokens that are scored together")
      ->check(CLI::Range(std::int64_t{2}, kMaxTokensOption))
      ->capture_default_str();
  app.add_flag("--compare", o->compare,
               "the divergence of the distributions from those of f32 weights and cache, too");
}

void add_bench(CLI::App& app, Options* o) { add_model_options(app, o); }

void add_where(CLI::App& app, Options* o) {
  app.add_option("name", o->name, "of a file in the model directory")->required();
}

}  // namespace llm
