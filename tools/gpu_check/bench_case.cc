#include "tools/gpu_check/bench_case.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tools/gpu_check/numbers.h"

namespace regard::gpu_check {

BenchCase::BenchCase(DeviceMemory& memory, const AttentionParams& p, Plan plan)
    : memory_(memory), plan_(std::move(plan)) {
  const bool grad = p.features.has(Feature::kNeedsGrad);
  const Dtype type = p.dtype_q;
  AttentionGradRequest& r = request_;
  r.q = take(type, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk}, true);
  r.k = take(type, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk}, true);
  r.v = take(type, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v}, true);
  r.out = take(p.dtype_out, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v}, false);
  if (p.features.has(Feature::kLse)) {
    r.lse = take(Dtype::kF32, {p.batch, p.num_heads_q, p.seqlen_q}, false);
  }
  if (grad) {
    r.saved.stats = r.lse;
    r.saved.kind = SavedContext::Kind::kLse;
    r.d_out = take(type, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v}, true);
    r.d_q = take(type, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk}, false);
    r.d_k = take(type, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk}, false);
    r.d_v = take(type, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v}, false);
  }
  workspace_bytes_ = static_cast<std::size_t>(
      std::max(plan_.workspace_bytes(), grad ? plan_.backward_workspace_bytes() : 0));
  buffers_.emplace_back(memory_, workspace_bytes_);
  for (const Buffer& buffer : buffers_) {
    if (buffer.data() == nullptr) error_ = "the device has no memory left";
  }
  if (error_.empty()) note(prepare(plan_, request_));
  if (error_.empty() && grad) note(prepare_backward(plan_, request_, request_));
  if (error_.empty()) execute(false);  // a backward takes what it writes
}

void BenchCase::execute(bool backward) {
  note(backward ? execute_backward(plan_, request_, request_, launch())
                : regard::execute(plan_, request_, launch()));
}

void BenchCase::attend(Context& context, const Policy& policy, bool leases) {
  Launch with = launch();
  if (leases) with.workspace = {};
  note(attention(context, request_, policy, with));
}

TensorView BenchCase::take(Dtype dtype, std::initializer_list<std::int64_t> shape, bool is_input) {
  std::size_t bytes = static_cast<std::size_t>(size_of(dtype));
  for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
  buffers_.emplace_back(memory_, bytes);
  if (is_input) upload_numbers(memory_, buffers_.back(), bytes, dtype);
  TensorView view = make_view(buffers_.back().data(), dtype, shape);
  view.device = memory_.device();
  return view;
}

Launch BenchCase::launch() const {
  Launch launch;
  launch.stream = memory_.stream();
  launch.workspace = {buffers_.back().data(), workspace_bytes_};
  return launch;
}

void BenchCase::note(const Status& status) {
  if (!status.ok() && error_.empty()) error_ = status.to_string();
}

}  // namespace regard::gpu_check
