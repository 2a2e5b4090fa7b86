#include <vector>

#include "distributed/attention.h"
#include "distributed/plan_impl.h"
#include "distributed/ring.h"

namespace regard::distributed {
namespace {

constexpr const char* kAttentionDecode = "attention_decode";

/// Views of `count` partial results that lie one after the other.
struct Partials {
  std::vector<Tensor> memory;
  std::vector<StateView> states;
  std::vector<std::span<std::byte>> spans;
};

Partials make_partials(const TensorView& q, std::int64_t columns, Dtype dtype, int count) {
  Partials p;
  for (int x = 0; x < count; ++x) {
    const std::int64_t rows = q.shape[0] * q.shape[1] * q.shape[2];
    Tensor both(dtype, {rows * (columns + 1)});
    auto* const data = static_cast<std::byte*>(both.view().data);
    const std::int64_t bytes = bytes_of(both.view());
    p.states.push_back(
        {make_view(static_cast<void*>(data), dtype, {q.shape[0], q.shape[1], q.shape[2], columns}),
         make_view(static_cast<void*>(data + rows * columns * size_of(dtype)), dtype,
                   {q.shape[0], q.shape[1], q.shape[2]})});
    p.spans.emplace_back(data, static_cast<std::size_t>(bytes));
    p.memory.push_back(std::move(both));
  }
  return p;
}

}  // namespace

Status attention_decode(Context& context, Communicator& communicator, const Plan& plan,
                        const AttentionRequest& request, CallRecord* record,
                        const Launch& launch) try {
  const PlanImpl* impl = PlanImpl::of(plan);
  if (impl == nullptr || !impl->is_decode) {
    return Status(StatusCode::kInvalidArgument,
                  "[attention_decode] plan must be one that plan_decode() returned");
  }
  const Whole& whole = impl->whole;
  const auto own = static_cast<std::size_t>(communicator.rank());
  if (Status s = check_call(*impl, request, communicator, kAttentionDecode); !s.ok()) return s;
  Messages messages(communicator, whole.options.limits, kAttentionDecode, record);
  Partials partials =
      make_partials(request.q, request.v.shape[3], whole.accumulates(), communicator.size());
  Sharding sharding;
  sharding.visibility = whole.visibility;
  sharding.q.push_back(make_segments({{0, whole.options.seqlen_q}}, whole.visibility, true));
  sharding.kv.push_back(make_segments(whole.pieces_kv[own], whole.visibility, false));
  const std::int64_t hq = whole.params.num_heads_q;
  const Execution execution(context, launch);
  const Ring ring{{execution,
                   request,
                   whole.visibility,
                   {{0, hq, 0, whole.params.num_heads_kv, 0}},
                   hq,
                   whole.documents(),
                   whole.accumulates()},
                  sharding,
                  {communicator.rank()},
                  0,
                  false,
                  request.q,
                  request.k,
                  request.v};
  const StateView& mine = partials.states[own];
  if (Status s = forward(ring, &messages, mine.out, mine.lse); !s.ok()) return s;
  if (Status s = messages.all_gather(partials.spans, "partial results"); !s.ok()) return s;
  return join_states(execution, std::move(partials.states), {request.sinks, 0}, request.out,
                     request.lse);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory(kAttentionDecode);
}

}  // namespace regard::distributed
