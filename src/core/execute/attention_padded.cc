#include "core/execute/packed_copies.h"
#include "core/execute/padded_path.h"
#include "core/execute/padded_rows.h"
#include "core/plan/context_impl.h"
#include "core/text/thrown_by.h"
#include "regard/context.h"
#include "regard/padding.h"

// Padded tensors by the path that costs least: with lengths, with a mask, or packed.

namespace regard {
namespace {

constexpr const char* kAttentionPadded = "attention_padded";

/// A call's params and its path.
struct Choice {
  AttentionParams params;
  PathChoice path;
};

Expected<Choice> choose(const AttentionRequest& request, const PaddedSequences& sequences,
                        const CostModel& costs) {
  const Expected<AttentionParams> params = describe(request);
  if (!params) return params.status();
  const PaddedProblem problem{kAttentionPadded, request, *params, sequences};
  if (Status s = check_padded(problem); !s.ok()) return s;
  Expected<PathChoice> path = choose_padded_path(problem, costs);
  if (!path) return path.status();
  return Choice{*params, *std::move(path)};
}

/// A call's arguments.
struct PaddedCall {
  Context& context;
  const AttentionRequest& request;
  const PaddedSequences& sequences;
  const Policy& policy;
  const Launch& launch;
};

Status run_padded_with_lengths(const PaddedCall& call) {
  AttentionRequest request = call.request;
  const SeqlensOf seqlens(call.sequences);
  seqlens.set(&request);
  return attention(call.context, request, call.policy, call.launch);
}

void clear_all_statistics(const PaddedCall& call) {
  clear_statistics(call.sequences.q, call.request.lse);
  clear_statistics(call.sequences.q, call.request.saved_stats);
}

Status run_padded_with_mask(const PaddedCall& call) {
  AttentionRequest request = call.request;
  const MaskOf mask(call.sequences.kv);
  request.attn_mask = mask.view();
  const Status status = attention(call.context, request, call.policy, call.launch);
  if (!status.ok()) return status;
  clear_rows(call.sequences.q, request.out);
  clear_all_statistics(call);
  return {};
}

Status run_padded_packed(const PaddedCall& call) {
  using Role = PackedCopies::Role;
  if (Status s = check_padded_workspace(kAttentionPadded, call.launch, call.request); !s.ok())
    return s;
  const Lengths &q = call.sequences.q, &kv = call.sequences.kv;
  AttentionRequest request = call.request;
  PackedCopies copies(ContextImpl::of(call.context));
  copies.add(&request.q, q, Role::kInput);
  copies.add(&request.k, kv, Role::kInput);
  copies.add(&request.v, kv, Role::kInput);
  copies.add(&request.out, q, Role::kOutput);
  copies.add(&request.lse, q, Role::kOutput);
  copies.add(&request.saved_stats, q, Role::kOutput);
  if (Status s = copies.pack(); !s.ok()) return s;
  set_packed(call.sequences, &request, nullptr);
  Status status = attention(call.context, request, call.policy, call.launch);
  if (status.ok()) status = copies.unpack();
  if (status.ok()) clear_all_statistics(call);
  return status;
}

}  // namespace

Expected<PaddingPath> choose_path(const AttentionRequest& request, const PaddedSequences& sequences,
                                  const CostModel& costs) try {
  const Expected<Choice> choice = choose(request, sequences, costs);
  if (!choice) return choice.status();
  return choice->path.path;
} catch (...) {
  return status_of_exception(kAttentionPadded);
}

Expected<Selection> explain_padded(Context& context, const AttentionRequest& request,
                                   const PaddedSequences& sequences, const Policy& policy) try {
  const Expected<Choice> choice = choose(request, sequences, *padded_costs(context, policy));
  if (!choice) return choice.status();
  const PaddedProblem problem{kAttentionPadded, request, choice->params, sequences};
  Selection selection = explain(context, params_of_path(problem, choice->path.path), policy);
  selection.paths = choice->path.paths;
  return selection;
} catch (...) {
  return status_of_exception(kAttentionPadded);
}

Status attention_padded(Context& context, const AttentionRequest& request,
                        const PaddedSequences& sequences, const Policy& policy,
                        const Launch& launch) try {
  const Expected<PaddingPath> path =
      choose_path(request, sequences, *padded_costs(context, policy));
  if (!path) return path.status();
  const PaddedCall call{context, request, sequences, policy, launch};
  switch (*path) {
    case PaddingPath::kLengths: return run_padded_with_lengths(call);
    case PaddingPath::kMask: return run_padded_with_mask(call);
    case PaddingPath::kPacked: return run_padded_packed(call);
  }
  return {};
} catch (...) {
  return status_of_exception(kAttentionPadded);
}

}  // namespace regard
