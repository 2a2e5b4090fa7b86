#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "distributed/attention.h"
#include "regard/attention.h"
#include "tools/llm/model.h"
#include "tools/llm/rotary.h"

namespace llm {

struct RankOptions {
  regard::Dtype dtype = regard::Dtype::kF32;  // of keys and values: f32, bf16 or f16
  std::int64_t capacity = 0;                  // positions of the sequence, at most
  regard::Policy policy;                      // of attention
  std::int32_t threads = 1;
  regard::distributed::Algorithm algorithm = regard::distributed::Algorithm::kAuto;
  regard::distributed::Network network;
  regard::distributed::MessageLimits limits;
};

/// One sequence over ranks. Every rank has the whole model. Of the prompt each computes its own
/// tokens, in zigzag, and keeps their keys and values; each later token is computed by all, and one
/// of them keeps it. A position's keys and values are on one rank alone. Every rank calls the
/// same functions with the same tokens.
class RankSequence {
 public:
  /// `model` and `communicator` must outlive it.
  static regard::Expected<std::unique_ptr<RankSequence>> make(
      Model& model, regard::distributed::Communicator& communicator, const RankOptions& options);

  /// Appends the prompt to the empty sequence. Rank 0 receives the logits of its last token, valid
  /// until the next call; the others nothing.
  regard::Expected<std::span<const float>> prefill(std::span<const std::int32_t> prompt);
  /// The same of one more token.
  regard::Expected<std::span<const float>> decode(std::int32_t token);
  /// Copies rank 0's bytes to every rank.
  regard::Status share(std::span<std::byte> data);

  int rank() const noexcept { return communicator_.rank(); }
  int ranks() const noexcept { return communicator_.size(); }
  std::int64_t length() const noexcept { return length_; }
  std::int64_t capacity() const noexcept { return options_.capacity; }
  /// Positions whose keys and values this rank has.
  std::int64_t own_positions() const noexcept { return rows_; }
  Model& model() noexcept { return model_; }
  /// The prompt's algorithm, "" before; and what every algorithm was predicted to cost.
  std::string comm() const;
  std::string explain() const;

 private:
  RankSequence(Model& model, regard::distributed::Communicator& communicator,
               const RankOptions& options);
  regard::Status reserve();
  regard::distributed::Options whole(std::int64_t seqlen_q, std::int64_t seqlen_kv) const;
  /// Rotates q and k of a step's rows, and keeps k and v of the last `kept` ones.
  void keep(std::int64_t layer, const StepRows& step, std::span<const std::int64_t> positions,
            std::int64_t kept);
  regard::AttentionRequest request_of(const StepRows& step) const;
  regard::Status attend_prompt(std::int64_t layer, const StepRows& step,
                               std::span<const std::int64_t> positions, std::int64_t length);
  regard::Status attend_token(std::int64_t layer, const StepRows& step, std::int64_t rows);

  Model& model_;
  regard::distributed::Communicator& communicator_;
  RankOptions options_;
  OpenMpExecutor executor_;
  regard::Context context_;
  RotaryTables rotary_;
  std::int64_t length_ = 0;               // of the sequence
  std::int64_t rows_ = 0, max_rows_ = 0;  // of this rank
  std::vector<RowMemory> k_, v_;          // of each layer, [heads_kv, max_rows_, head_dim]
  regard::distributed::Plan prompt_plan_, token_plan_;
  bool has_prompt_ = false;
  std::vector<float> logits_;  // that another rank computed
};

}  // namespace llm
