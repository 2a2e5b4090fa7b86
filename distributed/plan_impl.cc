#include "distributed/plan_impl.h"

#include "distributed/text.h"

namespace regard::distributed {

Status check_call(const PlanImpl& plan, const AttentionRequest& request, const Communicator& c,
                  const char* where) {
  const auto rank = static_cast<std::size_t>(c.rank());
  if (c.size() != plan.whole.ranks) {
    return invalid(where, "ranks (", c.size(), ") must be the plan's, ", plan.whole.ranks);
  }
  const AttentionParams& p = plan.whole.params;
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
