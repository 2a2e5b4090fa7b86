#include <cmath>
#include <cstring>
#include <memory>

#include "distributed/attention.h"
#include "distributed/buffers.h"
#include "distributed/plan_impl.h"
#include "distributed/ring.h"
#include "distributed/text.h"

namespace regard::distributed {
namespace {

/// One call on one rank: its tensors, and what its group holds together.
class Call {
 public:
  Call(const Execution& execution, const PlanImpl& plan, const AttentionRequest& request,
       Messages* messages)
      : execution_(execution),
        plan_(plan),
        request_(request),
        messages_(*messages),
        a_(plan.arrangement) {
    node_ = messages_.rank() / a_.inner;
    own_ = messages_.rank() % a_.inner;
  }

  /// A tensor that goes between rows of this rank and heads of its group. `local` [B,H,rows,.],
  /// `node` [B,heads of this rank,rows of the group,.].
  struct Exchanged {
    TensorView local, node;
    bool of_queries;
  };

  Status to_heads(const std::vector<Exchanged>& tensors, const char* step) const {
    return exchange(tensors, true, step);
  }
  /// Adds to `local`, which is 0 before.
  Status to_rows(const std::vector<Exchanged>& tensors, const char* step) const {
    return exchange(tensors, false, step);
  }

  bool has_group() const { return a_.inner > 1; }
  const HeadShare& share() const { return a_.heads[static_cast<std::size_t>(own_)]; }
  std::int64_t rows(bool of_queries) const {
    return rows_of((of_queries ? a_.node_q : a_.node_kv)[static_cast<std::size_t>(node_)]);
  }
  Dtype accumulates() const { return plan_.whole.accumulates(); }
  const Execution& execution() const { return execution_; }
  const PlanImpl& plan() const { return plan_; }
  const AttentionRequest& request() const { return request_; }
  Messages& messages() const { return messages_; }

  /// Zeros of the group's rows and this rank's heads; 0 columns: [B,H,S].
  Tensor of_node(Dtype dtype, bool of_queries, std::int64_t columns) const {
    return Tensor(dtype, node_shape(of_queries, columns));
  }
  /// The same of any contents.
  Tensor unwritten(Dtype dtype, bool of_queries, std::int64_t columns) const {
    return Tensor::uninitialized(dtype, node_shape(of_queries, columns));
  }

  Ring ring(const TensorView& q, const TensorView& k, const TensorView& v) const {
    const Whole& w = plan_.whole;
    Ring ring{{execution_, request_, w.visibility, share().runs, w.params.num_heads_q,
               w.documents(), w.accumulates()},
              a_.sharding,
              {},
              node_,
              a_.gathers,
              q,
              k,
              v};
    for (int node = 0; node < a_.nodes(); ++node) ring.ranks.push_back(node * a_.inner + own_);
    return ring;
  }

 private:
  std::vector<std::int64_t> node_shape(bool of_queries, std::int64_t columns) const {
    std::vector<std::int64_t> shape{
        request_.q.shape[0], of_queries ? share().q_count : share().kv_count, rows(of_queries)};
    if (columns > 0) shape.push_back(columns);
    return shape;
  }

  Status exchange(const std::vector<Exchanged>& tensors, bool to_heads, const char* step) const {
    const auto ranks = static_cast<std::size_t>(messages_.size());
    using Parts = std::vector<std::shared_ptr<std::byte[]>>;
    const auto memory = std::make_shared<std::pair<Parts, Parts>>(Parts(ranks), Parts(ranks));
    auto& [sent, arrived] = *memory;
    std::vector<std::span<const std::byte>> from(ranks);
    std::vector<std::span<std::byte>> to(ranks);
    for (int t = 0; t < a_.inner; ++t) {
      const int other = node_ * a_.inner + t;
      const auto at = static_cast<std::size_t>(other);
      std::int64_t out = 0, in = 0;
      for (const Exchanged& x : tensors) {
        for (const TensorView& part : parts(x, to_heads, t)) out += bytes_of(part);
        for (const TensorView& part : parts(x, !to_heads, t)) in += bytes_of(part);
      }
      arrived[at] = make_buffer(static_cast<std::size_t>(in));
      // The own part is packed where it would arrive.
      sent[at] = t == own_ ? arrived[at] : make_buffer(static_cast<std::size_t>(out));
      std::byte* const begin = sent[at].get();
      std::byte* end = begin;
      for (const Exchanged& x : tensors) {
        for (const TensorView& part : parts(x, to_heads, t)) end = pack(part, end);
      }
      from[at] = {begin, static_cast<std::size_t>(out)};
      to[at] = {arrived[at].get(), static_cast<std::size_t>(in)};
    }
    if (Status s = messages_.all_to_all(from, to, step, Messages::kExchangeTag, memory); !s.ok())
      return s;
    for (int t = 0; t < a_.inner; ++t) {
      const std::byte* at = arrived[static_cast<std::size_t>(node_ * a_.inner + t)].get();
      for (const Exchanged& x : tensors) {
        for (const TensorView& part : parts(x, !to_heads, t)) {
          const bool sums = !to_heads && !x.of_queries;
          at = sums ? add(part, at) : unpack(part, at);
        }
      }
    }
    return {};
  }

  /// Of rank t of the group: its heads of the own rows (of the local tensor), or its rows of the
  /// own heads (of the node's).
  std::vector<TensorView> parts(const Exchanged& x, bool of_local, int t) const {
    const Whole& w = plan_.whole;
    const int rank = node_ * a_.inner + (of_local ? own_ : t);
    const auto& pieces = (x.of_queries ? w.pieces_q : w.pieces_kv)[static_cast<std::size_t>(rank)];
    const auto& node = (x.of_queries ? a_.node_q : a_.node_kv)[static_cast<std::size_t>(node_)];
    const HeadShare& heads = a_.heads[static_cast<std::size_t>(t)];
    std::vector<TensorView> views;
    std::int64_t row = 0;
    for (const Piece& piece : pieces) {
      if (of_local) {
        views.push_back(rows_of(heads_of(x.local, x.of_queries ? heads.q_begin : heads.kv_begin,
                                         x.of_queries ? heads.q_count : heads.kv_count),
                                row, piece.length));
      } else {
        views.push_back(rows_of(x.node, node_row(node, piece), piece.length));
      }
      row += piece.length;
    }
    return views;
  }

  const Execution execution_;
  const PlanImpl& plan_;
  const AttentionRequest& request_;
  Messages& messages_;
  const Arrangement& a_;
  int node_ = 0, own_ = 0;
};

/// The partial result as the call's: sinks join once, and types are the outputs'.
Status finish(const Call& call, const TensorView& out, const TensorView& lse,
              const TensorView& to_out, const TensorView& to_lse) {
  return join_states(call.execution(), {{out, lse}}, {call.request().sinks, call.share().q_begin},
                     to_out, to_lse);
}

Status forward_call(const Call& call, const TensorView& to_out, const TensorView& to_lse) {
  const AttentionRequest& r = call.request();
  const Dtype wide = call.accumulates();
  const Tensor out = call.of_node(wide, true, std::max<std::int64_t>(r.v.shape[3], 1));
  const Tensor lse = call.of_node(wide, true, 0);
  if (!call.has_group()) {
    if (Status s = forward(call.ring(r.q, r.k, r.v), &call.messages(), out.view(), lse.view());
        !s.ok()) {
      return s;
    }
    return finish(call, out.view(), lse.view(), to_out, to_lse);
  }
  const Tensor q = call.unwritten(r.q.dtype, true, r.q.shape[3]);
  const Tensor k = call.unwritten(r.k.dtype, false, r.k.shape[3]);
  const Tensor v = call.unwritten(r.v.dtype, false, r.v.shape[3]);
  if (Status s = call.to_heads(
          {{r.q, q.view(), true}, {r.k, k.view(), false}, {r.v, v.view(), false}}, "1 of a2a");
      !s.ok()) {
    return s;
  }
  if (Status s = forward(call.ring(q.view(), k.view(), v.view()), &call.messages(), out.view(),
                         lse.view());
      !s.ok()) {
    return s;
  }
  // Sums that no sink joins and that have the output's type are the results.
  const bool is_result = !r.sinks.present() && to_out.dtype == wide && r.v.shape[3] > 0;
  Tensor done;
  if (!is_result) {
    done = call.unwritten(to_out.dtype, true, r.v.shape[3]);
    if (Status s = finish(call, out.view(), lse.view(), done.view(), lse.view()); !s.ok()) return s;
  }
  const TensorView& results = is_result ? out.view() : done.view();
  const Tensor all_lse(wide, {r.q.shape[0], r.q.shape[1], r.q.shape[2]});
  if (Status s =
          call.to_rows({{to_out, results, true}, {all_lse.view(), lse.view(), true}}, "2 of a2a");
      !s.ok()) {
    return s;
  }
  if (to_lse.present()) copy_elements(all_lse.view(), to_lse);
  return {};
}

double element(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t s) {
  const std::int64_t at = b * view.strides[0] + h * view.strides[1] + s * view.strides[2];
  return view.dtype == Dtype::kF64 ? static_cast<const double*>(view.data)[at]
                                   : static_cast<const float*>(view.data)[at];
}

/// Of this rank's rows: q and d_out as they are computed with, delta, and what sinks receive.
struct Prepared {
  Tensor q, d_out, delta;
  std::vector<double> d_sinks;
};

Status prepare(const Call& call, const AttentionGradRequest& r, Prepared* p) {
  const Dtype wide = call.accumulates();
  const auto like = [&](const TensorView& v) {
    return Tensor(wide, {v.shape[0], v.shape[1], v.shape[2], v.shape[3]});
  };
  p->d_out = like(r.d_out);
  const Tensor out = like(r.out);
  if (Status s = dequantize(call.execution(), r.d_out, r.descale_d_out, p->d_out.view()); !s.ok()) {
    return s;
  }
  if (Status s = convert(call.execution(), r.out, out.view()); !s.ok()) return s;
  p->delta = Tensor(wide, {r.q.shape[0], r.q.shape[1], r.q.shape[2]});
  p->d_sinks.assign(static_cast<std::size_t>(r.q.shape[1]), 0.0);
  std::int64_t at = 0;
  for (std::int64_t b = 0; b < r.q.shape[0]; ++b) {
    for (std::int64_t h = 0; h < r.q.shape[1]; ++h) {
      for (std::int64_t s = 0; s < r.q.shape[2]; ++s, ++at) {
        double sum = 0.0;
        for (std::int64_t d = 0; d < r.v.shape[3]; ++d) {
          const std::int64_t x = at * r.v.shape[3] + d;
          sum += wide == Dtype::kF64
                     ? static_cast<const double*>(out.view().data)[x] *
                           static_cast<const double*>(p->d_out.view().data)[x]
                     : double{static_cast<const float*>(out.view().data)[x]} *
                           double{static_cast<const float*>(p->d_out.view().data)[x]};
        }
        if (r.d_lse.present()) sum -= element(r.d_lse, b, h, s);
        if (wide == Dtype::kF64) {
          static_cast<double*>(p->delta.view().data)[at] = sum;
        } else {
          static_cast<float*>(p->delta.view().data)[at] = static_cast<float>(sum);
        }
        if (r.sinks.present()) {
          const double sink = static_cast<const float*>(r.sinks.data)[h * r.sinks.strides[0]];
          p->d_sinks[static_cast<std::size_t>(h)] -=
              std::exp(sink - element(r.saved.stats, b, h, s)) * sum;
        }
      }
    }
  }
  return {};
}

void write_sinks(const AttentionGradRequest& r, const Prepared& p) {
  if (!r.sinks.present() || !r.d_sinks.present()) return;
  for (std::int64_t h = 0; h < r.q.shape[1]; ++h) {
    static_cast<float*>(r.d_sinks.data)[h * r.d_sinks.strides[0]] =
        static_cast<float>(p.d_sinks[static_cast<std::size_t>(h)]);
  }
}

Status backward_call(const Call& call, const AttentionGradRequest& r) {
  Prepared p;
  if (Status s = prepare(call, r, &p); !s.ok()) return s;
  const Dtype wide = call.accumulates();
  const Tensor q = call.of_node(wide, true, r.q.shape[3]);
  const Tensor d_q = call.of_node(wide, true, r.q.shape[3]);
  const Tensor d_k = call.of_node(wide, false, r.k.shape[3]);
  const Tensor d_v = call.of_node(wide, false, r.v.shape[3]);
  const std::pair<const TensorView*, const Tensor*> results[] = {
      {&r.d_q, &d_q}, {&r.d_k, &d_k}, {&r.d_v, &d_v}};
  if (!call.has_group()) {
    if (Status s = dequantize(call.execution(), r.q, r.descale_q, q.view()); !s.ok()) return s;
    if (Status s = backward(
            call.ring(q.view(), r.k, r.v), &call.messages(),
            {p.d_out.view(), r.saved.stats, p.delta.view(), d_q.view(), d_k.view(), d_v.view()});
        !s.ok()) {
      return s;
    }
    for (const auto& [to, from] : results) {
      if (!to->present()) continue;
      if (Status s = convert(call.execution(), from->view(), *to); !s.ok()) return s;
    }
    write_sinks(r, p);
    return {};
  }
  const Tensor narrow = call.unwritten(r.q.dtype, true, r.q.shape[3]);
  const Tensor k = call.unwritten(r.k.dtype, false, r.k.shape[3]);
  const Tensor v = call.unwritten(r.v.dtype, false, r.v.shape[3]);
  const Tensor narrow_d = call.unwritten(r.d_out.dtype, true, r.v.shape[3]);
  const Tensor d_out = call.unwritten(wide, true, r.v.shape[3]);
  const Tensor lse = call.unwritten(wide, true, 0), delta = call.unwritten(wide, true, 0);
  if (Status s = call.to_heads({{r.q, narrow.view(), true},
                                {r.k, k.view(), false},
                                {r.v, v.view(), false},
                                {r.d_out, narrow_d.view(), true},
                                {r.saved.stats, lse.view(), true},
                                {p.delta.view(), delta.view(), true}},
                               "1 of a2a");
      !s.ok()) {
    return s;
  }
  if (Status s = dequantize(call.execution(), narrow.view(), r.descale_q, q.view()); !s.ok()) {
    return s;
  }
  if (Status s = dequantize(call.execution(), narrow_d.view(), r.descale_d_out, d_out.view());
      !s.ok()) {
    return s;
  }
  if (Status s =
          backward(call.ring(q.view(), k.view(), v.view()), &call.messages(),
                   {d_out.view(), lse.view(), delta.view(), d_q.view(), d_k.view(), d_v.view()});
      !s.ok()) {
    return s;
  }
  const auto like = [&](const TensorView& t) {
    return Tensor(wide, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]});
  };
  const Tensor all_q = like(r.q), all_k = like(r.k), all_v = like(r.v);
  if (Status s = call.to_rows({{all_q.view(), d_q.view(), true},
                               {all_k.view(), d_k.view(), false},
                               {all_v.view(), d_v.view(), false}},
                              "2 of a2a");
      !s.ok()) {
    return s;
  }
  const std::pair<const TensorView*, const Tensor*> all[] = {
      {&r.d_q, &all_q}, {&r.d_k, &all_k}, {&r.d_v, &all_v}};
  for (const auto& [to, from] : all) {
    if (!to->present()) continue;
    if (Status s = convert(call.execution(), from->view(), *to); !s.ok()) return s;
  }
  write_sinks(r, p);
  return {};
}

/// What a backward is given beside the tensors of its forward.
Status check_gradients(const Whole& whole, const AttentionGradRequest& r, const char* where) {
  const TensorView& lse = r.saved.stats;
  if (r.saved.kind != SavedContext::Kind::kLse || lse.rank != 3 ||
      lse.dtype != whole.accumulates()) {
    return invalid(where, "saved.stats (", to_string(lse), ") must be the forward's lse, ",
                   to_string(whole.accumulates()), " [B,Hq,rows]");
  }
  if (r.d_out.rank != 4 || r.d_out.dtype != whole.dtype_d_out()) {
    return invalid(where, "d_out (", to_string(r.d_out), ") must have out's shape, and be ",
                   to_string(whole.dtype_d_out()));
  }
  if (Status s = check_descale("descale_d_out", r.descale_d_out, where); !s.ok()) return s;
  const std::pair<const char*, const TensorView*> refused[] = {
      {"scales_d_out", &r.scales_d_out},
      {"gradient_scales", &r.gradient_scales},
      {"gradient_amax", &r.gradient_amax},
      {"d_bias", &r.d_bias}};
  for (const auto& [name, view] : refused) {
    if (!view->present()) continue;
    return invalid(where, name, " (", to_string(*view), ") must be absent on ranks");
  }
  return {};
}

}  // namespace

Status attention(Context& context, Communicator& communicator, const Plan& plan,
                 const AttentionRequest& request, CallRecord* record, const Launch& launch) try {
  constexpr const char* kWhere = "distributed::attention";
  const PlanImpl* const made = PlanImpl::of(plan);
  if (made == nullptr || made->is_decode) {
    return invalid(kWhere, "plan must be one that plan() returned");
  }
  const PlanImpl& impl = *made;
  if (Status s = check_call(impl, request, communicator, kWhere); !s.ok()) return s;
  Messages messages(communicator, impl.whole.options.limits, kWhere, record);
  return forward_call(Call({context, launch}, impl, request, &messages), request.out, request.lse);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory("distributed::attention");
}

Status attention_backward(Context& context, Communicator& communicator, const Plan& plan,
                          const AttentionGradRequest& request, CallRecord* record,
                          const Launch& launch) try {
  constexpr const char* kWhere = "distributed::attention_backward";
  const PlanImpl* const made = PlanImpl::of(plan);
  if (made == nullptr || made->is_decode) {
    return invalid(kWhere, "plan must be one that plan() returned");
  }
  const PlanImpl& impl = *made;
  if (Status s = check_call(impl, request, communicator, kWhere); !s.ok()) return s;
  if (Status s = check_gradients(impl.whole, request, kWhere); !s.ok()) return s;
  Messages messages(communicator, impl.whole.options.limits, kWhere, record);
  return backward_call(Call({context, launch}, impl, request, &messages), request);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory("distributed::attention_backward");
}

}  // namespace regard::distributed
