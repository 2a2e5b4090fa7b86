#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/describe/describe.h"
#include "core/describe/describe_gradients.h"
#include "core/execute/packed_copies.h"
#include "core/execute/padded_path.h"
#include "core/execute/padded_rows.h"
#include "core/plan/context_impl.h"
#include "core/text/thrown_by.h"
#include "regard/context.h"

// The gradients of attention_padded(): with lengths, with a mask, or packed.

namespace regard {
namespace {

constexpr const char* kPaddedBackward = "attention_padded_backward";

/// A call's arguments.
struct PaddedGradCall {
  Context& context;
  const AttentionGradRequest& request;
  const PaddedSequences& sequences;
  const Policy& policy;
  const Launch& launch;
};

/// Checks the padded tensors: a packed copy of one would hide what is wrong with it.
Expected<PaddingPath> checked_path(const PaddedGradCall& call) {
  const AttentionGradRequest& request = call.request;
  AttentionOptions options = request.options;
  options.needs_grad = true;
  options.d_lse = options.d_lse || request.d_lse.present();
  options.delta = options.delta || request.delta.present();
  set_gradient_dtypes(request, request, &options);
  options.scores_kind = ScoresKind::kNone;
  const Buffers inputs = backward_inputs(request);
  const Expected<AttentionParams> params = describe_buffers(inputs, options, kPaddedBackward);
  if (!params) return params.status();
  const PaddedProblem problem{kPaddedBackward, request, *params, call.sequences};
  if (Status s = check_padded(problem); !s.ok()) return s;
  if (Status s = check_gradients(inputs, request, *params, kPaddedBackward); !s.ok()) return s;
  if (!request.saved.plan.empty()) return planned_path(problem, request.saved.plan.params());
  const Expected<PathChoice> choice =
      choose_padded_path(problem, *padded_costs(call.context, call.policy));
  if (!choice) return choice.status();
  return choice->path;
}

Status run_with_lengths(const PaddedGradCall& call) {
  AttentionGradRequest request = call.request;
  const SeqlensOf seqlens(call.sequences);
  seqlens.set(&request);
  return attention_backward(call.context, request, call.policy, call.launch);
}

/// A dense copy of lse or saved_stats, in which rows of padding see nothing.
class ClearedStatistics {
 public:
  ClearedStatistics(const Lengths& lengths, const TensorView& statistics) : view_(statistics) {
    std::int64_t size = 1;
    for (int dim = view_.rank - 1; dim >= 0; --dim) {
      view_.strides[dim] = size;
      size *= view_.shape[dim];
    }
    bytes_.resize(static_cast<std::size_t>(size * size_of(view_.dtype)));
    view_.data = bytes_.data();
    view_.read_only = false;
    copy_elements(statistics);
    clear_statistics(lengths, view_);
  }
  const TensorView& view() const noexcept { return view_; }

 private:
  void copy_elements(const TensorView& from) {
    const std::int64_t size = size_of(from.dtype);
    const std::int64_t width = from.rank == 4 ? from.shape[3] : 1;
    const std::int64_t step = from.rank == 4 ? from.strides[3] : 1;
    const auto* const data = static_cast<const char*>(from.data);
    char* to = bytes_.data();
    for (std::int64_t b = 0; b < from.shape[0]; ++b) {
      for (std::int64_t h = 0; h < from.shape[1]; ++h) {
        for (std::int64_t s = 0; s < from.shape[2]; ++s) {
          const std::int64_t at = b * from.strides[0] + h * from.strides[1] + s * from.strides[2];
          for (std::int64_t n = 0; n < width; ++n, to += size) {
            std::memcpy(to, data + (at + n * step) * size, static_cast<std::size_t>(size));
          }
        }
      }
    }
  }

  TensorView view_;
  std::vector<char> bytes_;
};

/// The mask hides keys alone. A query of padding contributes nothing, since it saw nothing.
Status run_with_mask(const PaddedGradCall& call) {
  AttentionGradRequest request = call.request;
  const MaskOf mask(call.sequences.kv);
  const ClearedStatistics statistics(call.sequences.q, request.saved.stats);
  request.attn_mask = mask.view();
  request.saved.stats = statistics.view();
  return attention_backward(call.context, request, call.policy, call.launch);
}

/// Writes zeros to the elements of [B,H,S,S] that the first `rows` and `columns` leave out.
void clear_beyond(const TensorView& view, std::int64_t rows, std::int64_t columns) {
  if (!view.present()) return;
  const std::int64_t size = size_of(view.dtype);
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t i = 0; i < view.shape[2]; ++i) {
        for (std::int64_t j = i < rows ? columns : 0; j < view.shape[3]; ++j) {
          const std::int64_t at =
              b * view.strides[0] + h * view.strides[1] + i * view.strides[2] + j * view.strides[3];
          std::memset(static_cast<char*>(view.data) + at * size, 0, static_cast<std::size_t>(size));
        }
      }
    }
  }
}

Status run_packed(const PaddedGradCall& call) {
  using Role = PackedCopies::Role;
  const Lengths &q = call.sequences.q, &kv = call.sequences.kv;
  AttentionGradRequest request = call.request;
  PackedCopies copies(ContextImpl::of(call.context));
  for (TensorView* view : {&request.q, &request.out, &request.d_out, &request.saved.stats,
                           &request.delta, &request.d_lse}) {
    copies.add(view, q, Role::kInput);
  }
  copies.add(&request.k, kv, Role::kInput);
  copies.add(&request.v, kv, Role::kInput);
  copies.add(&request.lse, q, Role::kShape);
  copies.add(&request.saved_stats, q, Role::kShape);
  copies.add(&request.d_q, q, Role::kOutput);
  copies.add(&request.d_k, kv, Role::kOutput);
  copies.add(&request.d_v, kv, Role::kOutput);
  if (Status s = copies.pack(); !s.ok()) return s;
  set_packed(call.sequences, &request, &request.d_bias);
  Status status = attention_backward(call.context, request, call.policy, call.launch);
  if (status.ok()) status = copies.unpack();
  if (status.ok())
    clear_beyond(call.request.d_bias, request.d_bias.shape[2], request.d_bias.shape[3]);
  return status;
}

}  // namespace

Status attention_padded_backward(Context& context, const AttentionGradRequest& request,
                                 const PaddedSequences& sequences, const Policy& policy,
                                 const Launch& launch) try {
  const PaddedGradCall call{context, request, sequences, policy, launch};
  const Expected<PaddingPath> path = checked_path(call);
  if (!path) return path.status();
  const Status apart =
      check_padded_workspace(kPaddedBackward, launch, backward_inputs(request), &request);
  if (!apart.ok()) return apart;
  switch (*path) {
    case PaddingPath::kLengths: return run_with_lengths(call);
    case PaddingPath::kMask: return run_with_mask(call);
    case PaddingPath::kPacked: return run_packed(call);
  }
  return {};
} catch (...) {
  return status_of_exception(kPaddedBackward);
}

}  // namespace regard
