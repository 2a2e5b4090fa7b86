#include "tools/llm/session.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace llm {
namespace {

namespace fs = std::filesystem;
using regard::Dtype;
using regard::Expected;
using regard::Status;
using regard::StatusCode;

Status refused_session(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, message);
}

Expected<regard::Policy> policy_of(const std::string& backend) {
  regard::Policy policy;
  if (backend == "auto") return policy;
  auto parsed = regard::parse_backend(backend);
  if (!parsed) {
    return refused_session(
        "--attention-backend (" + backend +
        ") must be math, flash_attention, efficient_attention, cudnn_attention or auto");
  }
  policy.only = {*parsed};
  return policy;
}

Expected<Dtype> weights_of(const std::string& dtype) {
  const bool has_bf16 = MatrixEngine().has_bf16();
  if (dtype == "auto") return has_bf16 ? Dtype::kBf16 : Dtype::kF32;
  if (dtype == "bf16" && !has_bf16) {
    return refused_session("--dtype (bf16) needs AVX-512, which this CPU lacks; use f32");
  }
  return dtype == "bf16" ? Dtype::kBf16 : Dtype::kF32;
}

Dtype cache_of(const std::string& name, Dtype weights) {
  if (name == "f32") return Dtype::kF32;
  if (name == "bf16") return Dtype::kBf16;
  if (name == "f16") return Dtype::kF16;
  if (name == "int8") return Dtype::kI8;
  if (name == "int4") return Dtype::kU4;
  if (name == "fp8") return Dtype::kF8E4M3;
  return weights;
}

}  // namespace

Expected<KvCache> Session::prepare_cache(const GenerateOptions& generation) {
  Expected<KvCache> cache =
      model.make_cache({cache_dtype, page_size, generation.samples, capacity, hadamard});
  if (!cache) return cache;
  if (Status s = prepare_generation(model, *cache, generation); !s.ok()) return s;
  return cache;
}

Expected<Session> open_session(const Options& options) {
  const Expected<regard::Policy> policy = policy_of(options.attention_backend);
  if (!policy) return policy.status();
  const Expected<Dtype> weights = weights_of(options.dtype);
  if (!weights) return weights.status();
  const Expected<std::string> path = find_model(options.checkpoint);
  if (!path) return path.status();
  Expected<GgufFile> file = GgufFile::open(*path);
  if (!file) return file.status();
  Expected<Tokenizer> tokenizer = Tokenizer::from(file->contents());
  if (!tokenizer) return tokenizer.status();

  std::int32_t threads = static_cast<std::int32_t>(options.threads);
  if (threads == 0) threads = regard::read_env().concurrency;
  omp_set_num_threads(threads);
  Expected<Model> model = Model::load(file->contents(), {*weights, *policy, threads});
  if (!model) return model.status();
  const std::int64_t context = model->config().context;
  if (options.max_seq_length > context) {
    return refused_session("--max-seq-length (" + std::to_string(options.max_seq_length) +
                           ") must be at most the model's context, " + std::to_string(context));
  }
  if (tokenizer->vocab_size() != model->config().vocab) {
    return refused_session("tokenizer.ggml.tokens has " + std::to_string(tokenizer->vocab_size()) +
                           " tokens, and token_embd.weight " +
                           std::to_string(model->config().vocab));
  }
  return Session{*std::move(file),
                 *std::move(tokenizer),
                 *std::move(model),
                 *weights,
                 threads,
                 *policy,
                 cache_of(options.kv_cache, *weights),
                 options.max_seq_length != 0 ? options.max_seq_length : context,
                 options.page_size,
                 options.hadamard};
}

std::string model_directory() {
  if (const char* given = std::getenv("REGARDLLM_MODELDIR")) return given;
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : ".") + "/.cache/regard-llm";
}

std::vector<std::string> list_models() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(model_directory(), error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".gguf") names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Expected<std::string> find_model(const std::string& checkpoint) {
  const std::string directory = model_directory();
  if (checkpoint.empty()) {
    const std::vector<std::string> names = list_models();
    if (names.size() == 1) return directory + "/" + names[0];
    return refused_session("--checkpoint is needed: " + directory + " has " +
                           std::to_string(names.size()) + " GGUF files");
  }
  std::error_code error;
  for (const std::string& path :
       {checkpoint, directory + "/" + checkpoint, directory + "/" + checkpoint + ".gguf"}) {
    // A directory may have a model's name.
    if (fs::exists(path, error) && !fs::is_directory(path, error)) return path;
  }
  return refused_session("--checkpoint (" + checkpoint + ") is neither a file nor a name in " +
                         directory);
}

}  // namespace llm
