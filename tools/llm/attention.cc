#include "tools/llm/attention.h"

#include <algorithm>
#include <string>
#include <utility>

namespace llm {

using regard::Dtype;
using regard::make_view;
using regard::Status;

namespace {

/// Whether problems differ in the rows of a step alone.
bool same_cache(const regard::AttentionParams& a, const regard::AttentionParams& b) {
  return a.dtype_q == b.dtype_q && a.dtype_k == b.dtype_k && a.page_size == b.page_size &&
         a.num_pages == b.num_pages && a.seqlen_kv == b.seqlen_kv;
}

}  // namespace

void OpenMpExecutor::run(int workers, Task task, void* state) {
#pragma omp parallel for schedule(dynamic, 1)
  for (int worker = 0; worker < workers; ++worker) task(state, worker);
}

Attention::Attention(const ModelConfig& config, std::vector<float> rotary_scale,
                     regard::Policy policy, std::int32_t threads)
    : config_(config), rotary_scale_(std::move(rotary_scale)), policy_(std::move(policy)) {
  regard::check(context_.set_concurrency(threads));
  context_.set_executor(&executor_);
}

Dtype Attention::dtype_of_rows(Dtype cache, Dtype weights) noexcept {
  return regard::size_of(cache) == 1 ? weights : cache;
}

regard::AttentionRequest Attention::request_of(const StepRows& r, std::int64_t layer,
                                               KvCache& cache) {
  const ModelConfig& c = config_;
  const std::int64_t d = c.head_dim, sequence = r.rows * r.stride;
  regard::AttentionRequest request;
  cache.bind(layer, &request);
  request.q = make_view(r.q, r.dtype, {r.batch, c.heads, r.rows, d}, {sequence, d, r.stride, 1});
  request.k_new =
      make_view(r.k, r.dtype, {r.batch, c.heads_kv, r.rows, d}, {sequence, d, r.stride, 1});
  request.v_new =
      make_view(r.v, r.dtype, {r.batch, c.heads_kv, r.rows, d}, {sequence, d, r.stride, 1});
  request.out = make_view(r.out, r.dtype, {r.batch, c.heads, r.rows, d},
                          {r.rows * c.q_width(), d, c.q_width(), 1});
  request.rotary_cos = make_view(rotary_.cos(), {rotary_.positions(), c.rotary_dim / 2});
  request.rotary_sin = make_view(rotary_.sin(), {rotary_.positions(), c.rotary_dim / 2});
  request.options.rotary_interleaved = true;  // GGUF's rows of q and k are permuted for that
  request.options.is_causal = true;
  request.options.diagonal = regard::Diagonal::kBottomRight;
  return request;
}

Status Attention::prepare(const std::string& phase, const StepRows& rows, KvCache& cache) {
  // As many positions as a cache has: those of the file's context may be far more.
  if (Status s = rotary_.reserve(config_, rotary_scale_, cache.capacity()); !s.ok()) return s;
  cache.begin_step(std::vector<std::int32_t>(static_cast<std::size_t>(rows.batch), 0), 0);
  auto params = regard::describe(request_of(rows, 0, cache));
  if (!params) return params.status();
  const auto found = planned_.find(phase);
  if (found != planned_.end() && same_cache(found->second, *params)) {
    const regard::AttentionParams& planned = found->second;
    if (planned.batch >= rows.batch && planned.seqlen_q >= rows.rows) return Status();
    params->batch = std::max(params->batch, planned.batch);
    params->seqlen_q = std::max(params->seqlen_q, planned.seqlen_q);
  }
  auto made = regard::plan(context_, *params, policy_);
  if (!made) return made.status();
  const auto bytes = static_cast<std::size_t>(made->workspace_bytes()) + 64;
  if (workspace_.size() < bytes) workspace_.resize(bytes);
  plans_[phase] = *std::move(made);
  planned_[phase] = *params;
  return Status();
}

Status Attention::run(const std::string& phase, std::int64_t layer, const StepRows& rows,
                      KvCache& cache, regard::Interrupt* interrupt) {
  const auto at = (reinterpret_cast<std::uintptr_t>(workspace_.data()) + 63) / 64 * 64;
  regard::Launch launch;
  launch.executor = &executor_;
  launch.workspace = {reinterpret_cast<void*>(at), workspace_.size() - 64};
  launch.interrupt = interrupt;
  return regard::execute(plans_.at(phase), request_of(rows, layer, cache), launch);
}

std::string Attention::explain() const {
  std::string text;
  for (const auto& [name, plan] : plans_) {
    text += name + "\n" + to_string(plan.selection()) + "\n";
  }
  return text;
}

}  // namespace llm
