#pragma once

#include <cstdint>
#include <string>

#include "tools/llm/generate.h"

namespace CLI {
class App;
}

namespace llm {

/// The options of all verbs; each verb uses some of them. Names are torchchat's where it has one.
struct Options {
  std::string checkpoint;  // a file, or the name of one in the model directory
  std::string attention_backend = "auto";
  std::string dtype = "auto";     // of weights
  std::string kv_cache = "auto";  // the weights'
  bool hadamard = false;
  std::int64_t page_size = 64;      // 0: no pages
  bool has_page_size = false;       // it was given
  std::int64_t threads = 0;         // 0: all CPUs that the process may use
  std::int64_t max_seq_length = 0;  // 0: the model's context
  bool explain = false;
  bool profile = false;
  bool json = false;

  std::string prompt;
  bool has_prompt = false;
  GenerateOptions generate;
  std::string write_logits;
  std::string comm = "auto";  // of a prompt over ranks

  std::string file;        // of eval
  std::int64_t limit = 0;  // windows; 0: all
  std::int64_t window = 2048;
  bool compare = false;

  std::string system;  // of chat; "": the model's own
  std::string name;    // of where
};

void add_generate(CLI::App& app, Options* options);
void add_chat(CLI::App& app, Options* options);
void add_eval(CLI::App& app, Options* options);
void add_bench(CLI::App& app, Options* options);
void add_where(CLI::App& app, Options* options);

}  // namespace llm
