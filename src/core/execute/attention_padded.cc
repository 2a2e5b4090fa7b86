#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/message.h"
#include "core/plan/context_impl.h"
#include "core/text/thrown_by.h"
#include "regard/context.h"
#include "regard/lengths.h"
#include "regard/machine_rates.h"
#include "regard/padding.h"

// Padded tensors by the path that costs least: with lengths, with a mask, or packed.

namespace regard {
namespace {

constexpr const char* kWhere = "attention_padded";

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

Status check_side(const char* name, const TensorView& tensor, const Lengths& lengths) {
  if (tensor.shape[0] == lengths.batch() && tensor.shape[2] == lengths.seqlen()) return {};
  return invalid(kWhere, "lengths of ", name, " (", to_string(lengths), ") must be of ",
                 tensor.shape[0], " x ", tensor.shape[2], " positions, the batch and seqlen of ",
                 name);
}

/// What Lengths state or no path takes.
Status check_request(const AttentionRequest& request, const PaddedSequences& sequences) {
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
      {"rotary_cos", request.rotary_cos.present(), "attention(), which takes a cache"},
      {"segment_ids_q", request.segment_ids_q.present(), "Lengths of position_ids"},
      {"scores_out", request.scores_out.present(), "attention() with seqlens or a mask"},
      {"saved_stats", request.saved_stats.present(), "unpad() and attention() for gradients"},
      {"needs_grad", request.options.needs_grad, "unpad() and attention() for gradients"},
  };
  for (const Refused& refused : kRefused) {
    if (!refused.given) continue;
    return invalid(kWhere, refused.name, " (given) is not supported; expected ", refused.expected);
  }
  if (request.q.device.type != DeviceType::kCpu) {
    return invalid(kWhere, "device (", to_string(request.q.device.type),
                   ") is not supported; expected tensors on the CPU");
  }
  if (Status s = check_side("q", request.q, sequences.q); !s.ok()) return s;
  return check_side("k", request.k, sequences.kv);
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

/// A reason for each path that cannot compute the call; "" where it can.
struct Reasons {
  std::string of[kPaddingPathCount];
  const std::string& operator[](PaddingPath path) const { return of[static_cast<int>(path)]; }
  std::string& operator[](PaddingPath path) { return of[static_cast<int>(path)]; }
};

Reasons reasons_of(const AttentionRequest& request, const AttentionParams& params,
                   const PaddedSequences& sequences) {
  Reasons reasons;
  const Shape q = shape_of(sequences.q), kv = shape_of(sequences.kv);
  const bool one_each = q.one_each && kv.one_each;
  const bool is_first = one_each && q.first && kv.first;
  if (!is_first) {
    reasons[PaddingPath::kLengths] = "lengths need the rows of each sequence to come first";
  }
  const bool measures =
      params.window_left >= 0 || params.window_right >= 0 || params.features.has(Feature::kAlibi);
  std::string& of_mask = reasons[PaddingPath::kMask];
  if (!one_each) {
    of_mask = "a mask needs one sequence for each entry of the batch";
  } else if (request.attn_mask.present()) {
    of_mask = "a mask of keys leaves no place for attn_mask";
  } else if (params.features.has(Feature::kDropout)) {
    of_mask = "a mask counts padding in the random numbers of dropout";
  } else if (measures && !(sequences.q == sequences.kv && q.is_contiguous &&
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

/// A call's params, the paths that can compute it, and the one that it takes.
struct Choice {
  AttentionParams params;
  std::vector<PathPrediction> paths;
  PaddingPath path = PaddingPath::kLengths;
};

bool is_allowed(PaddingPolicy policy, PaddingPath path) noexcept {
  const bool is_packed = path == PaddingPath::kPacked;
  return policy == PaddingPolicy::kAuto || is_packed == (policy == PaddingPolicy::kPacked);
}

Expected<Choice> choose(const AttentionRequest& request, const PaddedSequences& sequences,
                        const MachineRates& rates) {
  const Expected<AttentionParams> params = describe(request);
  if (!params) return params.status();
  if (Status s = check_request(request, sequences); !s.ok()) return s;
  Reasons reasons = reasons_of(request, *params, sequences);
  // Lengths skip what a mask computes, and have the bits of packed rows.
  if (reasons[PaddingPath::kLengths].empty()) reasons[PaddingPath::kMask] = "lengths say the same";
  Choice choice{*params, predict_paths(with_tokens(*params, sequences), rates)};
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
  return invalid(kWhere, "padding (", to_string(sequences.policy), ") has no path: ", why);
}

/// The problem that the path makes of the call.
AttentionParams params_of(const Choice& choice, const PaddedSequences& sequences) {
  AttentionParams params = choice.params;
  switch (choice.path) {
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

/// Calls f(b, s) for each position that holds no row.
template <class F>
void for_each_padding(const Lengths& lengths, F f) {
  auto next = lengths.indices().begin();
  for (std::int64_t b = 0; b < lengths.batch(); ++b) {
    for (std::int64_t s = 0; s < lengths.seqlen(); ++s) {
      if (next != lengths.indices().end() && *next == b * lengths.seqlen() + s) {
        ++next;
      } else {
        f(b, s);
      }
    }
  }
}

void clear_rows(const Lengths& lengths, const TensorView& out) {
  const std::int64_t size = size_of(out.dtype);
  for_each_padding(lengths, [&](std::int64_t b, std::int64_t s) {
    for (std::int64_t h = 0; h < out.shape[1]; ++h) {
      const std::int64_t at = b * out.strides[0] + h * out.strides[1] + s * out.strides[2];
      std::memset(static_cast<char*>(out.data) + at * size, 0,
                  static_cast<std::size_t>(out.shape[3] * size));
    }
  });
}

void clear_lse(const Lengths& lengths, const TensorView& lse) {
  if (!lse.present()) return;
  for_each_padding(lengths, [&](std::int64_t b, std::int64_t s) {
    for (std::int64_t h = 0; h < lse.shape[1]; ++h) {
      const std::int64_t at = b * lse.strides[0] + h * lse.strides[1] + s * lse.strides[2];
      if (lse.dtype == Dtype::kF64) {
        static_cast<double*>(lse.data)[at] = -std::numeric_limits<double>::infinity();
      } else {
        static_cast<float*>(lse.data)[at] = -std::numeric_limits<float>::infinity();
      }
    }
  });
}

/// A call's arguments.
struct PaddedCall {
  Context& context;
  const AttentionRequest& request;
  const PaddedSequences& sequences;
  const Policy& policy;
  const Launch& launch;
};

std::vector<std::int32_t> seqlens_of(const Lengths& lengths) {
  std::vector<std::int32_t> seqlens;
  const auto starts = lengths.cu_seqlens();
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    seqlens.push_back(starts[b + 1] - starts[b]);
  }
  return seqlens;
}

Status run_with_lengths(const PaddedCall& call) {
  AttentionRequest request = call.request;
  const std::vector<std::int32_t> q = seqlens_of(call.sequences.q);
  const std::vector<std::int32_t> kv = seqlens_of(call.sequences.kv);
  request.seqlens_q = make_view(q.data(), Dtype::kI32, {call.sequences.q.batch()});
  // The same lengths are one view: a diagonal may then stay unnamed.
  request.seqlens_kv = call.sequences.q == call.sequences.kv
                           ? request.seqlens_q
                           : make_view(kv.data(), Dtype::kI32, {call.sequences.kv.batch()});
  request.options.tokens_q = call.sequences.q.total();
  request.options.tokens_kv = call.sequences.kv.total();
  return attention(call.context, request, call.policy, call.launch);
}

Status run_with_mask(const PaddedCall& call) {
  const Lengths& kv = call.sequences.kv;
  AttentionRequest request = call.request;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(kv.batch() * kv.seqlen()), 0);
  for (const std::int64_t index : kv.indices()) mask[static_cast<std::size_t>(index)] = 1;
  request.attn_mask = make_view(mask.data(), Dtype::kU8, {kv.batch(), 1, 1, kv.seqlen()});
  const Status status = attention(call.context, request, call.policy, call.launch);
  if (!status.ok()) return status;
  clear_rows(call.sequences.q, request.out);
  clear_lse(call.sequences.q, request.lse);
  return {};
}

/// [B,H,S,D] as the [batch, seqlen, heads, head_dim] of unpad and pad; [B,H,S] likewise.
TensorView by_position(const TensorView& view) {
  TensorView made = view;
  std::swap(made.shape[1], made.shape[2]);
  std::swap(made.strides[1], made.strides[2]);
  return made;
}

/// Memory of packed copies, from the Context's pool.
class PackedCopies {
 public:
  explicit PackedCopies(ContextImpl& context) : context_(context) {}
  ~PackedCopies() {
    if (block_.data != nullptr) context_.workspaces.give_back(block_);
  }
  PackedCopies(const PackedCopies&) = delete;
  PackedCopies& operator=(const PackedCopies&) = delete;

  /// Later views lie in the block one after the other.
  Status allocate(std::int64_t bytes) {
    const Expected<Workspace> block = context_.workspaces.lease(static_cast<std::size_t>(bytes));
    if (!block) return block.status();
    block_ = *block;
    return {};
  }
  /// Of `total` rows of a padded [B,H,S,D] or [B,H,S].
  static std::int64_t bytes_of(const TensorView& padded, std::int64_t total) {
    if (!padded.present()) return 0;
    const std::int64_t row = padded.shape[1] * (padded.rank == 4 ? padded.shape[3] : 1);
    return round_up(total * row * size_of(padded.dtype), 64);
  }
  /// [total, H, D].
  TensorView rows(const TensorView& padded, std::int64_t total) {
    return make_view(take(padded, total), padded.dtype, {total, padded.shape[1], padded.shape[3]});
  }
  /// [H, total].
  TensorView statistics(const TensorView& padded, std::int64_t total) {
    return make_view(take(padded, total), padded.dtype, {padded.shape[1], total});
  }

 private:
  void* take(const TensorView& padded, std::int64_t total) {
    void* const at = static_cast<char*>(block_.data) + used_;
    used_ += bytes_of(padded, total);
    return at;
  }

  ContextImpl& context_;
  Workspace block_{};
  std::int64_t used_ = 0;
};

/// [total, H, D] as the [1, H, total, D] of a request.
TensorView as_packed(const TensorView& rows) {
  return make_view(rows.data, rows.dtype, {1, rows.shape[1], rows.shape[0], rows.shape[2]},
                   {rows.num_elements(), rows.strides[1], rows.strides[0], 1});
}

/// The mask or bias of the longest sequences.
void crop(TensorView* view, std::int64_t seqlen_q, std::int64_t seqlen_kv) {
  if (!view->present()) return;
  if (view->shape[2] != 1) view->shape[2] = seqlen_q;
  if (view->shape[3] != 1) view->shape[3] = seqlen_kv;
}

Status run_packed(const PaddedCall& call) {
  const Lengths &q = call.sequences.q, &kv = call.sequences.kv;
  const AttentionRequest& padded = call.request;
  PackedCopies copies(ContextImpl::of(call.context));
  const auto bytes = [](const TensorView& view, const Lengths& lengths) {
    return PackedCopies::bytes_of(view, lengths.total());
  };
  Status status = copies.allocate(
      std::max<std::int64_t>(64, bytes(padded.q, q) + bytes(padded.k, kv) + bytes(padded.v, kv) +
                                     bytes(padded.out, q) + bytes(padded.lse, q)));
  if (!status.ok()) return status;
  AttentionRequest request = padded;
  const auto unpadded = [&](const TensorView& view, const Lengths& lengths) {
    const TensorView rows = copies.rows(view, lengths.total());
    if (status.ok()) status = unpad(lengths, by_position(view), rows);
    return as_packed(rows);
  };
  request.q = unpadded(padded.q, q);
  request.k = unpadded(padded.k, kv);
  request.v = unpadded(padded.v, kv);
  if (!status.ok()) return status;
  const TensorView out = copies.rows(padded.out, q.total());
  request.out = as_packed(out);
  if (padded.lse.present()) request.lse = copies.statistics(padded.lse, q.total());
  request.cu_seqlens_q = q.cu_seqlens_view();
  request.cu_seqlens_kv = q == kv ? request.cu_seqlens_q : kv.cu_seqlens_view();
  request.max_seqlen_q = q.max_seqlen();
  request.max_seqlen_kv = kv.max_seqlen();
  crop(&request.attn_mask, q.max_seqlen(), kv.max_seqlen());
  crop(&request.attn_bias, q.max_seqlen(), kv.max_seqlen());
  status = attention(call.context, request, call.policy, call.launch);
  if (!status.ok()) return status;
  status = pad(q, out, by_position(padded.out));
  if (!status.ok() || !padded.lse.present()) return status;
  const TensorView by_row = make_view(request.lse.data, request.lse.dtype,
                                      {q.total(), request.lse.shape[0]}, {1, q.total()});
  status = pad(q, by_row, by_position(padded.lse));
  if (status.ok()) clear_lse(q, padded.lse);
  return status;
}

/// Without Context::env(), which copies.
MachineRates rates_of(Context& context) {
  return default_rates(ContextImpl::of(context).env->isa, context.concurrency());
}

}  // namespace

Expected<PaddingPath> choose_path(const AttentionRequest& request, const PaddedSequences& sequences,
                                  const MachineRates& rates) try {
  const Expected<Choice> choice = choose(request, sequences, rates);
  if (!choice) return choice.status();
  return choice->path;
} catch (...) {
  return status_of_exception(kWhere);
}

Expected<Selection> explain_padded(Context& context, const AttentionRequest& request,
                                   const PaddedSequences& sequences, const Policy& policy) try {
  const Expected<Choice> choice = choose(request, sequences, rates_of(context));
  if (!choice) return choice.status();
  Selection selection = explain(context, params_of(*choice, sequences), policy);
  selection.paths = choice->paths;
  return selection;
} catch (...) {
  return status_of_exception(kWhere);
}

Status attention_padded(Context& context, const AttentionRequest& request,
                        const PaddedSequences& sequences, const Policy& policy,
                        const Launch& launch) try {
  const Expected<PaddingPath> path = choose_path(request, sequences, rates_of(context));
  if (!path) return path.status();
  const PaddedCall call{context, request, sequences, policy, launch};
  switch (*path) {
    case PaddingPath::kLengths: return run_with_lengths(call);
    case PaddingPath::kMask: return run_with_mask(call);
    case PaddingPath::kPacked: return run_packed(call);
  }
  return {};
} catch (...) {
  return status_of_exception(kWhere);
}

}  // namespace regard
