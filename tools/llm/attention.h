#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "regard/attention.h"
#include "tools/llm/kv_cache.h"
#include "tools/llm/model_config.h"
#include "tools/llm/rotary.h"

namespace llm {

/// Lends regard the OpenMP threads that also compute oneDNN's products, so that one team of threads
/// exists.
class OpenMpExecutor final : public regard::Executor {
 public:
  void run(int workers, Task task, void* state) override;
};

/// New rows of a step: q [batch, rows, heads, D], k and v [batch, rows, heads_kv, D] with `stride`
/// elements from one token to the next, of `dtype`; out is dense.
struct StepRows {
  std::int64_t batch = 0, rows = 0;
  std::int64_t stride = 0;
  regard::Dtype dtype = regard::Dtype::kF32;
  void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
};

/// Attention of a model's layers by regard: keys and queries are rotated, keys and values appended
/// to the cache, and attended, in one call. One plan serves all steps of a phase.
class Attention {
 public:
  /// `policy` says which backend may run.
  Attention(const ModelConfig& config, std::vector<float> rotary_scale, regard::Policy policy,
            std::int32_t threads);

  /// The type that q and new rows have for a cache: its own, or f32 and bf16 beside 8 bits.
  static regard::Dtype dtype_of_rows(regard::Dtype cache, regard::Dtype weights) noexcept;

  /// Makes the plan of a phase ("prefill", "decode", ...) for steps of at most such rows of a
  /// cache, if the one that is there does not serve them; it serves later what it served before,
  /// too, unless the cache is of another kind. Reads and writes no rows.
  regard::Status prepare(const std::string& phase, const StepRows& rows, KvCache& cache);
  /// One layer; the cache's batch is that of begin_step(), the phase was prepared.
  regard::Status run(const std::string& phase, std::int64_t layer, const StepRows& rows,
                     KvCache& cache, regard::Interrupt* interrupt);

  /// Why each phase runs on its backend.
  std::string explain() const;
  const std::map<std::string, regard::Plan>& plans() const noexcept { return plans_; }

 private:
  regard::AttentionRequest request_of(const StepRows& rows, std::int64_t layer, KvCache& cache);

  ModelConfig config_;
  std::vector<float> rotary_scale_;
  regard::Policy policy_;
  OpenMpExecutor executor_;
  regard::Context context_;
  RotaryTables rotary_;  // of the positions of the caches that were prepared
  std::map<std::string, regard::Plan> plans_;
  std::map<std::string, regard::AttentionParams> planned_;  // what each was made for
  std::vector<std::byte> workspace_;
};

}  // namespace llm
