#include "core/execute/padded_path.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/message.h"
#include "core/describe/view_checks.h"
#include "core/execute/check_workspace.h"
#include "core/plan/context_impl.h"
#include "core/select/predictions.h"

namespace regard {
namespace {

/// Which of its positions a side's sequences take.
struct Shape {
  bool one_each = true;       // a sequence for each entry of the batch
  bool first = true;          // its rows come first
  bool is_contiguous = true;  // no padding between rows
};

Shape shape_of(const Lengths& lengths) {
  Shape shape;
  shape.one_each = lengths.num_sequences() == lengths.batch();
  if (!shape.one_each) return shape;
  const auto indices = lengths.indices();
  const auto starts = lengths.cu_seqlens();
  for (std::int64_t b = 0; b < lengths.batch(); ++b) {
    const auto begin = static_cast<std::size_t>(starts[static_cast<std::size_t>(b)]);
    const auto end = static_cast<std::size_t>(starts[static_cast<std::size_t>(b) + 1]);
    if (begin == end) continue;
    shape.first = shape.first && indices[begin] == b * lengths.seqlen();
    shape.is_contiguous = shape.is_contiguous && indices[end - 1] - indices[begin] ==
                                                     static_cast<std::int64_t>(end - begin) - 1;
  }
  shape.first = shape.first && shape.is_contiguous;
  return shape;
}

Status check_side(const char* where, const NamedView& side, const Lengths& lengths) {
  const TensorView& tensor = side.view;
  if (tensor.shape[0] == lengths.batch() && tensor.shape[2] == lengths.seqlen()) return {};
  return invalid(where, "lengths of ", side.name, " (", to_string(lengths), ") must be of ",
                 tensor.shape[0], " x ", tensor.shape[2], " positions, the batch and seqlen of ",
                 side.name);
}

bool spans_positions(const TensorView& view) noexcept {
  return view.present() && (view.shape[2] != 1 || view.shape[3] != 1);
}

/// Whether a tensor has a part for each entry of the batch.
bool is_by_entry(const AttentionRequest& request) noexcept {
  for (const TensorView* view : {&request.attn_mask, &request.attn_bias}) {
    if (view->present() && view->shape[0] != 1) return true;
  }
  for (const TensorView* view :
       {&request.alibi_slopes, &request.descale_q, &request.descale_k, &request.descale_v}) {
    if (view->present() && view->rank == 2) return true;
  }
  return request.diagonal_offsets.present();
}

bool measures_distances(const AttentionParams& params) noexcept {
  return params.window_left >= 0 || params.window_right >= 0 ||
         params.features.has(Feature::kAlibi);
}

/// A reason for each path that cannot compute the call; "" where it can.
struct Reasons {
  std::string of[kPaddingPathCount];
  const std::string& operator[](PaddingPath path) const { return of[static_cast<int>(path)]; }
  std::string& operator[](PaddingPath path) { return of[static_cast<int>(path)]; }
};

Reasons reasons_of(const PaddedProblem& problem) {
  const AttentionRequest& request = problem.request;
  const AttentionParams& params = problem.params;
  const PaddedSequences& sequences = problem.sequences;
  Reasons reasons;
  const Shape q = shape_of(sequences.q), kv = shape_of(sequences.kv);
  const bool one_each = q.one_each && kv.one_each;
  const bool is_first = one_each && q.first && kv.first;
  if (!is_first) {
    reasons[PaddingPath::kLengths] = "lengths need the rows of each sequence to come first";
  }
  std::string& of_mask = reasons[PaddingPath::kMask];
  if (!one_each) {
    of_mask = "a mask needs one sequence for each entry of the batch";
  } else if (request.attn_mask.present()) {
    of_mask = "a mask of keys leaves no place for attn_mask";
  } else if (params.features.has(Feature::kDropout)) {
    of_mask = "a mask counts padding in the random numbers of dropout";
  } else if (measures_distances(params) && !(sequences.q == sequences.kv && q.is_contiguous &&
                                             params.diagonal != Diagonal::kOffset)) {
    of_mask = "a mask counts padding in distances from the diagonal";
  }
  if (sequences.q.num_sequences() != sequences.kv.num_sequences()) {
    reasons[PaddingPath::kPacked] = "packed q and k need the same number of sequences";
  } else if (!one_each && is_by_entry(request)) {
    reasons[PaddingPath::kPacked] =
        "packed rows need one sequence for each entry of the batch, or no tensor of each entry of "
        "the batch";
  } else if (!is_first &&
             (spans_positions(request.attn_mask) || spans_positions(request.attn_bias))) {
    reasons[PaddingPath::kPacked] =
        "packed rows need attn_mask and attn_bias of 1 position, or rows that come first";
  }
  return reasons;
}

/// The params of the call with lengths, for predictions.
AttentionParams with_tokens(AttentionParams params, const PaddedSequences& sequences) {
  params.features.set(Feature::kSeqlensQ);
  params.features.set(Feature::kSeqlensKv);
  params.tokens_q = sequences.q.total();
  params.tokens_kv = sequences.kv.total();
  return params;
}

bool is_allowed(PaddingPolicy policy, PaddingPath path) noexcept {
  const bool is_packed = path == PaddingPath::kPacked;
  return policy == PaddingPolicy::kAuto || is_packed == (policy == PaddingPolicy::kPacked);
}

/// By what a path adds to a problem.
std::optional<PaddingPath> path_of(const AttentionParams& planned,
                                   const AttentionRequest& request) {
  const FeatureSet has = planned.features;
  if (has.has(Feature::kPacked)) return PaddingPath::kPacked;
  if (has.has(Feature::kSeqlensQ) && has.has(Feature::kSeqlensKv)) return PaddingPath::kLengths;
  if (has.has(Feature::kAttnMask) && !request.attn_mask.present()) return PaddingPath::kMask;
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const CostModel> padded_costs(Context& context, const Policy& policy) {
  const ContextImpl& impl = ContextImpl::of(context);
  const auto settings = impl.settings();
  return path_costs(settings->costs, impl.env->isa, policy_for(impl, *settings, policy)->policy);
}

Status check_padded(const PaddedProblem& problem) {
  const char* const where = problem.where;
  const AttentionRequest& request = problem.request;
  struct Refused {
    const char* name;
    bool given;
    const char* expected;
  };
  const Refused kRefused[] = {
      {"seqlens_q", request.seqlens_q.present(), "the Lengths alone, which state it"},
      {"seqlens_kv", request.seqlens_kv.present(), "the Lengths alone, which state it"},
      {"cu_seqlens_q", request.cu_seqlens_q.present(), "padded tensors; attention() takes packed"},
      {"page_table", request.page_table.present(), "no cache; attention() takes one"},
      {"cache_batch_idx", request.cache_batch_idx.present(), "no cache; attention() takes one"},
      {"cache_leftpad", request.cache_leftpad.present(), "no cache; attention() takes one"},
      {"tree_mask", request.tree_mask.present(), "attention(), which takes a cache"},
      {"scales_k", request.scales_k.present(), "attention(), which takes a cache"},
      {"scales_v", request.scales_v.present(), "attention(), which takes a cache"},
      {"scales_q", request.scales_q.present(), "attention() of packed sequences"},
      {"channel_scales_k", request.channel_scales_k.present(), "attention(), which takes a cache"},
      {"rotary_cos", request.rotary_cos.present(), "attention(), which takes a cache"},
      {"hadamard", request.options.hadamard, "attention(), which takes a cache"},
      {"segment_ids_q", request.segment_ids_q.present(), "Lengths of position_ids"},
      {"scores_out", request.scores_out.present(), "attention() with seqlens or a mask"},
  };
  for (const Refused& refused : kRefused) {
    if (!refused.given) continue;
    return invalid(where, refused.name, " (given) is not supported; expected ", refused.expected);
  }
  if (request.q.device.type != DeviceType::kCpu) {
    return invalid(where, "device (", to_string(request.q.device.type),
                   ") is not supported; expected tensors on the CPU");
  }
  if (Status s = check_side(where, {"q", request.q}, problem.sequences.q); !s.ok()) return s;
  return check_side(where, {"k", request.k}, problem.sequences.kv);
}

Status check_padded_workspace(const char* where, const Launch& launch, const Buffers& buffers,
                              const GradBuffers* gradients) {
  if (launch.workspace.data == nullptr) return {};
  constexpr std::int64_t kAnyBytes = 1;  // the call checks how many it needs
  return check_workspace(launch.workspace, kAnyBytes, buffers, gradients, where);
}

Expected<PathChoice> choose_padded_path(const PaddedProblem& problem, const CostModel& costs) {
  const PaddedSequences& sequences = problem.sequences;
  Reasons reasons = reasons_of(problem);
  // Lengths skip what a mask computes, and have the bits of packed rows.
  if (reasons[PaddingPath::kLengths].empty()) reasons[PaddingPath::kMask] = "lengths say the same";
  PathChoice choice{predict_paths(with_tokens(problem.params, sequences), costs)};
  std::erase_if(choice.paths,
                [&](const PathPrediction& path) { return !reasons[path.path].empty(); });
  std::vector<PathPrediction> allowed = choice.paths;
  std::erase_if(allowed, [&](const PathPrediction& path) {
    return !is_allowed(sequences.policy, path.path);
  });
  if (!allowed.empty()) {
    choice.path = fastest_path(allowed);
    return choice;
  }
  std::string why;
  for (const std::string& reason : reasons.of) {
    if (!reason.empty()) why += (why.empty() ? "" : "; ") + reason;
  }
  return invalid(problem.where, "padding (", to_string(sequences.policy), ") has no path: ", why);
}

Expected<PaddingPath> planned_path(const PaddedProblem& problem, const AttentionParams& planned) {
  const std::optional<PaddingPath> path = path_of(planned, problem.request);
  std::string why = path ? reasons_of(problem)[*path] : "it has no lengths, mask or packed rows";
  if (why.empty()) return *path;
  return invalid(problem.where, "saved.plan (", to_string(planned),
                 ") must be the plan of this call's forward: ", why);
}

AttentionParams params_of_path(const PaddedProblem& problem, PaddingPath path) {
  const PaddedSequences& sequences = problem.sequences;
  AttentionParams params = problem.params;
  // As describe() names it, where both sides have the same lengths: params do not show that.
  if (path != PaddingPath::kMask && sequences.q == sequences.kv &&
      params.diagonal == Diagonal::kUnnamed && measures_distances(params)) {
    params.diagonal = Diagonal::kTopLeft;
  }
  switch (path) {
    case PaddingPath::kLengths: return with_tokens(params, sequences);
    case PaddingPath::kMask:
      params.features.set(Feature::kAttnMask);
      params.mask_dims = 0b1001;  // [B,1,1,Skv]
      return params;
    case PaddingPath::kPacked: break;
  }
  params.features.set(Feature::kPacked);
  params.batch = sequences.q.num_sequences();
  params.total_q = sequences.q.total();
  params.total_kv = sequences.kv.total();
  params.seqlen_q = sequences.q.max_seqlen();
  params.seqlen_kv = sequences.kv.max_seqlen();
  for (const TensorLayout& layout : kTensorLayouts) params.*layout.order = Layout::kBshd;
  return params;
}

}  // namespace regard
