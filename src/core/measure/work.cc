#include "regard/work.h"

#include <algorithm>
#include <cstdint>

#include "problem/make_problem.h"
#include "regard/tensors.h"

namespace regard {
namespace {

/// What all sequences of a call see.
struct Visible {
  double pairs = 0.0;  // of a query and a key, of one query head
  double keys = 0.0;   // that some query sees, of one head of k and v
};

double pairs_of(const problem::Sequence& sequence) {
  const semantics::Band& band = sequence.band;
  if (band.window_left < 0 && band.window_right < 0) {
    return static_cast<double>(sequence.len_q) * static_cast<double>(band.len_kv);
  }
  double pairs = 0.0;
  for (std::int64_t i = 0; i < sequence.len_q; ++i) {
    const semantics::KeyRange keys = semantics::visible_keys(band, i);
    if (!is_empty(keys)) pairs += static_cast<double>(keys.hi - keys.lo);
  }
  return pairs;
}

Visible visible_of(const AttentionParams& params, const Buffers& buffers) {
  Visible visible;
  // Without a row of a head nothing is computed, and extents may be huge.
  if (params.batch == 0 || params.num_heads_q == 0 || params.seqlen_q == 0) return visible;
  problem::Problem p;
  problem::make_problem(params, buffers, &p);
  if (params.device.type != DeviceType::kCpu) {
    p.lens_q.present = p.lens_kv.present = p.offsets.present = false;
    p.q.starts = p.k.starts = {};
  }
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const problem::Sequence sequence = problem::sequence_of(p, b);
    visible.pairs += pairs_of(sequence);
    const semantics::KeyRange keys = semantics::visible_keys(sequence.band, 0, sequence.len_q);
    if (!is_empty(keys)) visible.keys += static_cast<double>(keys.hi - keys.lo);
  }
  return visible;
}

/// Elements in memory: a dimension of stride 0 has one.
double bytes_of(const TensorView& elements) {
  if (!elements.present()) return 0.0;
  const TensorView view = as_bytes(elements);
  double bytes = static_cast<double>(size_of(view.dtype));
  for (int i = 0; i < view.rank; ++i) {
    if (view.strides[i] != 0 || view.shape[i] == 0) bytes *= static_cast<double>(view.shape[i]);
  }
  return bytes;
}

/// Of k and v, and of their gradients: of one head, all heads of the row's first tensor alike.
double bytes_of_keys(const AttentionParams& params, const Visible& visible) {
  const std::int64_t row =
      bytes_of(params.dtype_k, params.head_dim_qk) + bytes_of(params.dtype_v, params.head_dim_v);
  return visible.keys * static_cast<double>(params.num_heads_kv) * static_cast<double>(row);
}

bool is_key_tensor(const TensorSpec& spec) {
  return spec.buffer == &Buffers::k || spec.buffer == &Buffers::v;
}

}  // namespace

Work forward_work(const AttentionParams& params, const Buffers& buffers) noexcept {
  const Visible visible = visible_of(params, buffers);
  Work work;
  work.operations = visible.pairs * static_cast<double>(params.num_heads_q) *
                    static_cast<double>(2 * (params.head_dim_qk + params.head_dim_v));
  work.bytes = bytes_of_keys(params, visible);
  for (const TensorSpec& spec : kTensors) {
    if (spec.buffer == nullptr || spec.forward == TensorRole::kNone || is_key_tensor(spec))
      continue;
    work.bytes += bytes_of(buffers.*spec.buffer);
  }
  return work;
}

Work backward_work(const AttentionParams& params, const Buffers& buffers,
                   const GradBuffers& gradients) noexcept {
  const Visible visible = visible_of(params, buffers);
  Work work;
  work.operations = visible.pairs * static_cast<double>(params.num_heads_q) *
                    static_cast<double>(2 * (3 * params.head_dim_qk + 2 * params.head_dim_v));
  work.bytes = bytes_of_keys(params, visible);
  for (const TensorSpec& spec : kTensors) {
    if (spec.backward == TensorRole::kNone || is_key_tensor(spec)) continue;
    if (spec.buffer != nullptr) work.bytes += bytes_of(buffers.*spec.buffer);
    if (spec.gradient != nullptr) work.bytes += bytes_of(gradients.*spec.gradient);
    if (spec.saved != nullptr) work.bytes += bytes_of(gradients.saved.*spec.saved);
  }
  return work;
}

}  // namespace regard
