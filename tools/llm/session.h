#pragma once

#include <string>
#include <vector>

#include "tools/llm/generate.h"
#include "tools/llm/gguf.h"
#include "tools/llm/options.h"
#include "tools/llm/tokenizer.h"

namespace llm {

/// A model that is ready, by the options of a command.
struct Session {
  GgufFile file;
  Tokenizer tokenizer;
  Model model;
  regard::Dtype weights = regard::Dtype::kF32;
  std::int32_t threads = 1;
  regard::Policy policy;  // of attention
  regard::Dtype cache_dtype = regard::Dtype::kF32;
  std::int64_t capacity = 0;  // positions of a sequence
  std::int64_t page_size = 0;
  bool hadamard = false;

  /// A cache for a generation's samples; the model is prepared for generate() with it.
  regard::Expected<KvCache> prepare_cache(const GenerateOptions& generation);
};

regard::Expected<Session> open_session(const Options& options);

/// The directory of models: REGARDLLM_MODELDIR, or ~/.cache/regard-llm.
std::string model_directory();
/// Names of the GGUF files there, sorted.
std::vector<std::string> list_models();
/// The path of a checkpoint: a file, a name in the model directory, with or without ".gguf", or ""
/// for the only file there.
regard::Expected<std::string> find_model(const std::string& checkpoint);

}  // namespace llm
