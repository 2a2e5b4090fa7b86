#include "backends/cudnn/backend.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "backends/cudnn/info.h"
#include "backends/cudnn/plan_state.h"
#include "backends/cudnn/record.h"
#include "base/checked.h"
#include "base/message.h"
#include "platform/device_memory.h"

namespace regard::cudnn {
namespace {

std::string version_text(std::int32_t version) {
  return concat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

bool has_device(const Env& env) noexcept { return !env.device_name.empty(); }

/// The library's version on the described machine: a machine without a device is taken to have the
/// newest that is recorded. 0: a device, and no library.
std::int32_t version_of(const Env& env) noexcept {
  return env.cudnn_version != 0 || has_device(env) ? env.cudnn_version : records().back().version;
}

bool is_empty(const AttentionParams& p) noexcept {
  return p.batch == 0 || p.num_heads_q == 0 || p.seqlen_q == 0 || p.seqlen_kv == 0;
}

const Denied* find_denied(std::int32_t version, Traits traits) noexcept {
  for (const Denied& d : denied()) {
    const bool meant = d.traits == 0 || (d.traits & traits) != 0;
    if (d.first <= version && version <= d.last && meant) return &d;
  }
  return nullptr;
}

/// Rows behind the last key and its window see nothing. The node for f16 refuses them in its own
/// words, that for 8 bits covers none of them.
bool may_have_dead_rows(const AttentionParams& p) noexcept {
  return is_f8(p.dtype_q) && p.window_left >= 0 && p.seqlen_q > p.seqlen_kv;
}

/// What of 8-bit inputs and descales the claims cannot express; no text where all is well.
Refusal f8_refusal(const AttentionParams& p) {
  if (!is_f8(p.dtype_q)) {
    if (!p.features.has(Feature::kDescales)) return {};
    const char* const name = to_string(Feature::kDescales);
    return {RefusalCode::kFeature, "only with f8e4m3", name, {Fix::Op::kClear, name, ""}};
  }
  if (may_have_dead_rows(p)) {
    const char* const name = to_string(Feature::kSeqlenQGreaterKv);
    return {RefusalCode::kFeature, "only without window_left", name, {Fix::Op::kClear, name, ""}};
  }
  struct Dim {
    RefusalCode code;
    const char* field;
    std::int64_t value;
  };
  for (const Dim& dim : {Dim{RefusalCode::kHeadDimQk, "head_dim_qk", p.head_dim_qk},
                         Dim{RefusalCode::kHeadDimV, "head_dim_v", p.head_dim_v}}) {
    const std::int64_t up = std::min(round_up(dim.value, kHeadDimStepF8), kMaxHeadDim);
    if (dim.value == up) continue;
    return {dim.code,
            concat(kHeadDimStepF8, " to ", kMaxHeadDim, " in multiples of ", kHeadDimStepF8),
            std::to_string(dim.value),
            {Fix::Op::kSet, dim.field, std::to_string(up)}};
  }
  return {};
}

/// What would make the node for 8 bits run, or another.
Fix f8_fix(const Record& record, AttentionParams p, std::int32_t sm_version) {
  if (!is_f8(p.dtype_q)) return {};
  p.dtype_out = p.dtype_q;
  if (find_refusal(record, p, Node::kSdpaF8, sm_version) != nullptr) {
    return {Fix::Op::kSet, "dtype", to_string(Dtype::kBf16)};
  }
  return {Fix::Op::kSet, "dtype_out", to_string(p.dtype_out)};
}

/// Why the library of that version does not run the problem; no text where it does.
Refusal library_refusal(const AttentionParams& p, std::int32_t version, std::int32_t sm_version) {
  if (version == 0) return {RefusalCode::kCustom, "needs libcudnn.so.9", "none was found", {}};
  const std::string cudnn = "cuDNN " + version_text(version);
  if (const Denied* d = find_denied(version, traits_of(p))) {
    return {RefusalCode::kCustom, "needs another version than " + cudnn, d->reason, {}};
  }
  const Record* record = find_record(version);
  if (record == nullptr) {
    const std::string oldest = version_text(records().front().version);
    return {RefusalCode::kCustom, "needs cuDNN " + oldest + " or newer", "found " + cudnn, {}};
  }
  if (recorded_sm(sm_version) == 0) {
    return {RefusalCode::kDevice,
            "a CUDA device of compute capability 8.0 to 10.x",
            concat(sm_version / 10, ".", sm_version % 10),
            {}};
  }
  if (is_empty(p)) {
    return {RefusalCode::kCustom, "does not support empty tensors", "an extent is 0", {}};
  }
  if (Refusal refusal = f8_refusal(p); !refusal.limit.empty()) return refusal;
  const char* words = find_refusal(*record, p, forward_node(p), sm_version);
  const bool in_backward = words == nullptr;
  if (in_backward && p.features.has(Feature::kNeedsGrad)) {
    words = find_refusal(*record, p, Node::kSdpaBackward, sm_version);
  }
  if (words == nullptr) return {};
  std::string text = words;
  if (text.ends_with('.')) text.pop_back();
  return {RefusalCode::kCustom, "is refused by " + cudnn, text, f8_fix(*record, p, sm_version),
          in_backward};
}

/// The most that an engine may take. What the frontend itself takes in a backward is the first sum:
/// d_q in f32, a number a row, and d_k and d_v for every query head; engines may double it.
std::int64_t engine_bytes(const AttentionParams& p, Node node) noexcept {
  constexpr std::int64_t kFixed = std::int64_t{8} << 20;
  constexpr std::int64_t kMaxSplits = 32, kSplitRows = 64;
  const std::int64_t heads = saturating_mul(p.batch, p.num_heads_q);
  const std::int64_t rows = saturating_mul(heads, p.seqlen_q);
  if (is_forward(node)) {
    if (p.seqlen_q > kSplitRows) return kFixed;
    const std::int64_t part = saturating_mul(rows, 4 * (p.head_dim_v + 2));
    return round_up(saturating_add(kFixed, saturating_mul(kMaxSplits, part)), 64);
  }
  const std::int64_t padded = saturating_mul(heads, saturating_add(p.seqlen_q, 128));
  const std::int64_t q_side = saturating_mul(padded, 4 * (p.head_dim_qk + 64 + 2));
  const std::int64_t keys = saturating_mul(heads, saturating_add(p.seqlen_kv, 128));
  const std::int64_t kv_side = saturating_mul(keys, 4 * (p.head_dim_qk + p.head_dim_v));
  const std::int64_t sum = saturating_mul(2, saturating_add(q_side, kv_side));
  return round_up(saturating_add(kFixed, sum), 64);
}

/// Room for the gradients that a caller leaves out, which cuDNN computes all the same.
struct Unwanted {
  explicit Unwanted(const AttentionParams& p) noexcept {
    const auto bytes = [&](std::int64_t heads, std::int64_t rows, std::int64_t dim) {
      const std::int64_t elements =
          saturating_mul(saturating_mul(p.batch, heads), saturating_mul(rows, dim));
      return round_up(saturating_mul(elements, 2), 64);
    };
    d_q = bytes(p.num_heads_q, p.seqlen_q, p.head_dim_qk);
    d_k = bytes(p.num_heads_kv, p.seqlen_kv, p.head_dim_qk);
    d_v = bytes(p.num_heads_kv, p.seqlen_kv, p.head_dim_v);
  }
  std::int64_t total() const noexcept { return saturating_add(saturating_add(d_q, d_k), d_v); }
  std::int64_t d_q, d_k, d_v;
};

// The stride of an extent of 1 means nothing: the dense one stays, so that such tensors need no
// graph of their own.
template <std::size_t kRank>
void take(const TensorView& view, std::int64_t (&strides)[kRank]) {
  for (std::size_t i = 0; i < kRank; ++i) {
    if (view.shape[i] > 1) strides[i] = view.strides[i];
  }
}

Strides strides_of(const AttentionParams& params, const Buffers& buffers, const TensorView& stats) {
  Strides s = dense_strides(params);
  take(buffers.q, s.q);
  take(buffers.k, s.k);
  take(buffers.v, s.v);
  take(buffers.out, s.out);
  if (stats.present()) take(stats, s.stats);
  return s;
}

Pointers pointers_of(const Buffers& buffers, const TensorView& stats) {
  Pointers p{};
  p.q = buffers.q.data;
  p.k = buffers.k.data;
  p.v = buffers.v.data;
  p.out = buffers.out.data;
  p.stats = stats.data;
  p.descale_q = buffers.descale_q.data;
  p.descale_k = buffers.descale_k.data;
  p.descale_v = buffers.descale_v.data;
  return p;
}

Strides strides_of(const AttentionParams& params, const Buffers& buffers, const GradBuffers& g) {
  Strides s = strides_of(params, buffers, g.saved.stats);
  take(g.d_out, s.d_out);
  if (g.d_q.present()) take(g.d_q, s.d_q);
  if (g.d_k.present()) take(g.d_k, s.d_k);
  if (g.d_v.present()) take(g.d_v, s.d_v);
  return s;
}

const PlanState& state_of(const KernelPlan& plan) {
  return *static_cast<const PlanState*>(plan.state.get());
}

Status not_prepared(const char* where, const char* prepare) {
  return invalid(where, "strides of the tensors (not dense) need a cuDNN graph of their own: call ",
                 prepare, " first");
}

class CudnnBackend final : public Backend {
 public:
  const BackendInfo& info() const override { return info_; }

  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    const bool claimed = check_claims(info_, key, env, refusals);
    const bool other_device =
        key.params().device.type != DeviceType::kCuda || env.sm_version < kMinSm;
    if (other_device || (!claimed && refusals == nullptr)) return claimed;
    Refusal refusal = library_refusal(key.params(), version_of(env), env.sm_version);
    if (refusal.limit.empty()) return claimed;
    if (refusals != nullptr) refusals->push_back(std::move(refusal));
    return false;
  }

  std::int64_t workspace_bytes(const AttentionKey& key, const Env&) const override {
    const Node node = forward_node(key.params());
    const std::int64_t unwanted = node == Node::kSdpaF8 ? kUnwantedBytes : 0;
    return saturating_add(engine_bytes(key.params(), node), unwanted);
  }
  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env&) const override {
    return saturating_add(engine_bytes(key.params(), Node::kSdpaBackward),
                          Unwanted(key.params()).total());
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    return make_plan(key, env, forward_node(key.params()), workspace_bytes(key, env));
  }
  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    return make_plan(key, env, Node::kSdpaBackward, backward_workspace_bytes(key, env));
  }

  Status prepare(const KernelPlan& plan, const AttentionParams& params,
                 const Buffers& buffers) const override {
    return state_of(plan).prepare(params, strides_of(params, buffers, buffers.lse));
  }
  Status prepare_backward(const KernelPlan& plan, const AttentionParams& params,
                          const Buffers& buffers, const GradBuffers& g) const override {
    return state_of(plan).prepare(params, strides_of(params, buffers, g));
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    const PlanState& state = state_of(plan);
    const auto graph = state.find(strides_of(params, buffers, buffers.lse));
    if (graph == nullptr) return not_prepared("execute", "prepare()");
    Pointers pointers = pointers_of(buffers, buffers.lse);
    pointers.unwanted = static_cast<char*>(launch.workspace.data) + state.engine_bytes();
    return graph->run(pointers, launch.workspace.data, launch.stream);
  }

  Status execute_backward(const KernelPlan& plan, const AttentionParams& params,
                          const Buffers& buffers, const GradBuffers& g,
                          const Launch& launch) const override {
    const PlanState& state = state_of(plan);
    const auto graph = state.find(strides_of(params, buffers, g));
    if (graph == nullptr) return not_prepared("execute_backward", "prepare_backward()");
    Pointers pointers = pointers_of(buffers, g.saved.stats);
    pointers.d_out = g.d_out.data;
    char* room = static_cast<char*>(launch.workspace.data) + state.engine_bytes();
    const auto place = [&](const TensorView& view, std::int64_t bytes) {
      void* const at = view.present() ? view.data : room;
      room += bytes;
      return at;
    };
    const Unwanted unwanted(params);
    pointers.d_q = place(g.d_q, unwanted.d_q);
    pointers.d_k = place(g.d_k, unwanted.d_k);
    pointers.d_v = place(g.d_v, unwanted.d_v);
    return graph->run(pointers, launch.workspace.data, launch.stream);
  }

 private:
  static Expected<KernelPlan> make_plan(const AttentionKey& key, const Env& env, Node node,
                                        std::int64_t workspace_bytes) {
    const AttentionParams& params = key.params();
    const auto state = std::make_shared<const PlanState>(node, engine_bytes(params, node));
    if (has_device(env)) {
      const DeviceGuard guard("plan", params.device);
      if (!guard.status().ok()) return guard.status();
      const Status built = state->prepare(params, dense_strides(params));
      if (!built.ok()) return built;
    }
    KernelPlan plan;
    plan.kernel =
        concat("cudnn_sdpa", is_forward(node) ? "_" : "_backward_", to_string(params.dtype_q));
    plan.workspace_bytes = workspace_bytes;
    plan.state = state;
    return plan;
  }

  BackendInfo info_ = make_info();
};

}  // namespace

const Backend& backend() {
  static const CudnnBackend instance;
  return instance;
}

}  // namespace regard::cudnn
