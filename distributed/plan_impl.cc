#include "distributed/plan_impl.h"

#include <string>
#include <utility>
#include <vector>

#include "distributed/text.h"

namespace regard::distributed {
namespace {

Status check_views(const AttentionRequest& r, const char* where) {
  const std::pair<const char*, const TensorView*> main[] = {
      {"q", &r.q}, {"k", &r.k}, {"v", &r.v}, {"out", &r.out}};
  for (const auto& [name, view] : main) {
    if (view->device.type != DeviceType::kCpu) {
      return invalid(where, "device of ", name, " (", to_string(view->device.type),
                     ") must be cpu");
    }
    if (view->rank != 4) {
      return invalid(where, "rank of ", name, " (", view->rank, ") must be 4");
    }
  }
  return {};
}

/// What is seen and edited is the plan's: a call with other options would compute neither. They are
/// held against the options that the plan was given: its params have a score function that is a
/// softcap as softcap.
Status check_options(const Whole& whole, const AttentionRequest& r, const char* where) {
  const AttentionOptions &given = r.options, &planned = whole.call;
  const auto right_of = [](const AttentionOptions& o) { return o.is_causal ? 0 : o.window_right; };
  if (given.window_left != planned.window_left || right_of(given) != right_of(planned)) {
    return invalid(where, "window (", given.window_left, ", ", right_of(given),
                   ") must be the plan's, ", planned.window_left, ", ", right_of(planned));
  }
  Status status;
  const auto hold = [&](const char* name, const auto& of_call, const auto& of_plan) {
    if (!status.ok() || of_call == of_plan) return;
    status = invalid(where, name, " (", of_call, ") must be the plan's, ", of_plan);
  };
  const double scale = default_softmax_scale(whole.params.head_dim_qk);
  hold("diagonal", std::string(to_string(given.diagonal)),
       std::string(to_string(planned.diagonal)));
  if (planned.diagonal == Diagonal::kOffset) {
    hold("diagonal_offset", r.diagonal_offset, whole.diagonal_offset);
  }
  hold("softmax_scale", given.softmax_scale.value_or(scale), planned.softmax_scale.value_or(scale));
  hold("softcap", given.softcap, planned.softcap);
  hold("dropout_p", given.dropout_p, planned.dropout_p);
  hold("hadamard", given.hadamard, planned.hadamard);
  hold("score_function", to_string(given.score_function), to_string(planned.score_function));
  hold("mask_function", to_string(given.mask_function), to_string(planned.mask_function));
  return status;
}

}  // namespace

Status check_descale(const char* name, const TensorView& view, const char* where) {
  if (!view.present()) return {};
  if (view.num_elements() == 1 && view.dtype == Dtype::kF32 &&
      view.device.type == DeviceType::kCpu) {
    return {};
  }
  return invalid(where, name, " (", to_string(view),
                 ") must have one element of f32 on the CPU on ranks");
}

Status check_tensors(const AttentionRequest& r, const char* where) {
  const std::pair<const char*, const TensorView*> refused[] = {
      {"attn_mask", &r.attn_mask},
      {"attn_bias", &r.attn_bias},
      {"scores_out", &r.scores_out},
      {"out_amax", &r.out_amax},
      {"saved_stats", &r.saved_stats},
      {"segment_ids_q", &r.segment_ids_q},
      {"segment_ids_kv", &r.segment_ids_kv},
      {"seqlens_q", &r.seqlens_q},
      {"seqlens_kv", &r.seqlens_kv},
      {"cache_leftpad", &r.cache_leftpad},
      {"diagonal_offsets", &r.diagonal_offsets},
      {"cu_seqlens_q", &r.cu_seqlens_q},
      {"cu_seqlens_kv", &r.cu_seqlens_kv},
      {"page_table", &r.page_table},
      {"scales_q", &r.scales_q},
      {"scales_k", &r.scales_k},
      {"scales_v", &r.scales_v},
      {"channel_scales_k", &r.channel_scales_k},
      {"block_mask", &r.block_mask},
      {"captured0", &r.captured0},
      {"captured1", &r.captured1},
      {"captured2", &r.captured2},
      {"captured3", &r.captured3},
      {"captured4", &r.captured4},
      {"captured5", &r.captured5},
      {"captured6", &r.captured6},
      {"captured7", &r.captured7},
      {"k_new", &r.k_new},
      {"v_new", &r.v_new},
      {"tree_mask", &r.tree_mask},
      {"rotary_cos", &r.rotary_cos},
      {"positions", &r.positions},
      {"cache_batch_idx", &r.cache_batch_idx}};
  for (const auto& [name, view] : refused) {
    if (view->present()) {
      return invalid(where, name, " (", to_string(*view),
                     ") must be absent: it is not divided among ranks");
    }
  }
  const std::pair<const char*, const TensorView*> descales[] = {
      {"descale_q", &r.descale_q}, {"descale_k", &r.descale_k}, {"descale_v", &r.descale_v}};
  for (const auto& [name, view] : descales) {
    if (Status s = check_descale(name, *view, where); !s.ok()) return s;
  }
  if (r.q.dtype == Dtype::kF64 && (is_f8(r.k.dtype) || is_f8(r.v.dtype))) {
    return invalid(where, "q (", to_string(r.q), ") must not be f64 beside k and v of 8 bits");
  }
  if (r.options.quantize_probs) {
    return invalid(where,
                   "quantize_probs (true) must be false: ranks round probabilities of parts "
                   "by other maxima than one rank");
  }
  if (r.score_callback.edit != nullptr) {
    return invalid(where, "score_callback (given) must be absent: use score_function");
  }
  if (r.dropout_origin != DropoutOrigin{}) {
    return invalid(where, "dropout_origin (given) must be left out: ranks count from the whole");
  }
  return check_views(r, where);
}

Status check_call(const PlanImpl& plan, const AttentionRequest& request, const Communicator& c,
                  const char* where) {
  if (Status s = check_tensors(request, where); !s.ok()) return s;
  const auto rank = static_cast<std::size_t>(c.rank());
  if (c.size() != plan.whole.ranks) {
    return invalid(where, "ranks (", c.size(), ") must be the plan's, ", plan.whole.ranks);
  }
  const AttentionParams& p = plan.whole.params;
  if (Status s = check_options(plan.whole, request, where); !s.ok()) return s;
  const std::int64_t rows_q =
      plan.is_decode ? plan.whole.options.seqlen_q : rows_of(plan.whole.pieces_q[rank]);
  const std::int64_t rows_kv = rows_of(plan.whole.pieces_kv[rank]);
  const std::pair<const TensorView*, std::vector<std::int64_t>> tensors[] = {
      {&request.q, {p.batch, p.num_heads_q, rows_q, p.head_dim_qk}},
      {&request.k, {p.batch, p.num_heads_kv, rows_kv, p.head_dim_qk}},
      {&request.v, {p.batch, p.num_heads_kv, rows_kv, p.head_dim_v}},
      {&request.out, {p.batch, p.num_heads_q, rows_q, p.head_dim_v}}};
  const Dtype dtypes[] = {p.dtype_q, p.dtype_k, p.dtype_v, p.dtype_out};
  const char* names[] = {"q", "k", "v", "out"};
  for (int x = 0; x < 4; ++x) {
    const TensorView& view = *tensors[x].first;
    bool same = view.rank == 4 && view.dtype == dtypes[x];
    for (int d = 0; same && d < 4; ++d) {
      same = view.shape[d] == tensors[x].second[static_cast<std::size_t>(d)];
    }
    if (!same) {
      return invalid(where, names[x], " (", to_string(view), ") is not what the plan was made for");
    }
  }
  return {};
}

Status join_states(const Execution& execution, std::vector<StateView> states, const Sinks& sinks,
                   const TensorView& out, const TensorView& lse) {
  const TensorView& first = states.front().out;
  if (first.num_elements() == 0 && states.front().lse.num_elements() == 0) return {};
  if (!sinks.view.present() && states.size() == 1 && out.dtype == first.dtype) {
    // Of one state merge_states() is a copy, ten times as slow.
    copy_elements(first, out);
    if (lse.present()) copy_elements(states.front().lse, lse);
    return {};
  }
  static const double kZero = 0.0;
  if (sinks.view.present()) {
    const TensorView& view = sinks.view;
    TensorView zeros = make_view(&kZero, Dtype::kF32, {1, 1, 1, 1});
    TensorView logits = make_view(
        static_cast<const void*>(static_cast<const std::byte*>(view.data) +
                                 sinks.first_head * view.strides[0] * size_of(view.dtype)),
        view.dtype, {1, 1, 1});
    for (int x = 0; x < 4; ++x) {
      zeros.shape[x] = first.shape[x];
      zeros.strides[x] = 0;
      if (x < 3) logits.shape[x] = first.shape[x];
      if (x < 3) logits.strides[x] = x == 1 ? view.strides[0] : 0;
    }
    states.push_back({zeros, logits});
  }
  return merge_states(execution.context, states, out, lse, execution.launch);
}

}  // namespace regard::distributed
