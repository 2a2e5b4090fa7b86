#include "distributed/ring.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

namespace regard::distributed {
namespace {

constexpr int kKeysTag = 16;  // and the ring's step
constexpr int kGradientsTag = 8;

/// Keys of one owner and the memory that a message left them in.
struct Block {
  int owner = 0;
  std::vector<KeyRange> ranges;
  std::vector<HeldKeys> keys;
  Tensor message;
};

Segment segment_of(const Sharding& sharding, int owner, const KeyRange& range) {
  const Segment& whole = sharding.kv[static_cast<std::size_t>(owner)][range.segment];
  return {range.begin, range.length, whole.local + range.begin - whole.begin, whole.document};
}

std::span<std::byte> bytes_of_tensor(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.view().data),
          static_cast<std::size_t>(bytes_of(tensor.view()))};
}

class Run {
 public:
  using Compute = std::function<Status(Block*)>;
  Run(const Ring& ring, Messages* messages, Compute compute)
      : ring_(ring), messages_(*messages), compute_(std::move(compute)) {}

  Status run() { return ring_.gathers ? gather() : go_round(); }

 private:
  Status compute(Block* block, const std::string& step) {
    const ActivityScope computing(messages_, Activity::Kind::kComputing, step);
    return compute_(block);
  }

  int members() const { return ring_.sharding.members(); }
  int rank_of(int member) const { return ring_.ranks[static_cast<std::size_t>(member)]; }
  std::int64_t row_bytes() const {
    return ring_.k.shape[0] * ring_.k.shape[1] *
           (ring_.k.shape[3] * size_of(ring_.k.dtype) + ring_.v.shape[3] * size_of(ring_.v.dtype));
  }

  Block own() const {
    Block block;
    block.owner = ring_.member;
    block.ranges = needed_ranges(ring_.sharding, ring_.member, 0, members());
    for (const KeyRange& range : block.ranges) {
      const Segment s = segment_of(ring_.sharding, ring_.member, range);
      block.keys.push_back(
          {s, rows_of(ring_.k, s.local, s.length), rows_of(ring_.v, s.local, s.length), {}, {}});
    }
    return block;
  }

  /// Memory for keys that arrive, and views of it: of each range its keys, then its values.
  Block incoming(int owner, std::vector<KeyRange> ranges) const {
    Block block;
    block.owner = owner;
    block.ranges = std::move(ranges);
    block.message = Tensor::uninitialized(Dtype::kU8, {rows_of(block.ranges) * row_bytes()});
    auto* at = static_cast<std::byte*>(block.message.view().data);
    for (const KeyRange& range : block.ranges) {
      HeldKeys keys{segment_of(ring_.sharding, owner, range), {}, {}, {}, {}};
      for (const bool is_k : {true, false}) {
        const TensorView& like = is_k ? ring_.k : ring_.v;
        TensorView view = make_view(static_cast<void*>(at), like.dtype,
                                    {like.shape[0], like.shape[1], range.length, like.shape[3]});
        at += bytes_of(view);
        (is_k ? keys.k : keys.v) = view;
      }
      block.keys.push_back(keys);
    }
    return block;
  }

  /// The message with `ranges`, which are within the block's.
  Tensor outgoing(const Block& block, const std::vector<KeyRange>& ranges) const {
    Tensor message = Tensor::uninitialized(Dtype::kU8, {rows_of(ranges) * row_bytes()});
    auto* at = static_cast<std::byte*>(message.view().data);
    for (const KeyRange& range : ranges) {
      const auto held = std::find_if(block.ranges.begin(), block.ranges.end(),
                                     [&](const KeyRange& r) { return r.segment == range.segment; });
      const HeldKeys& keys = block.keys[static_cast<std::size_t>(held - block.ranges.begin())];
      at = pack(rows_of(keys.k, range.begin - held->begin, range.length), at);
      at = pack(rows_of(keys.v, range.begin - held->begin, range.length), at);
    }
    return message;
  }

  Status go_round() {
    Block held = own();
    const int n = members(), me = ring_.member;
    for (int step = 0; step < n; ++step) {
      const int tag = kKeysTag + step;
      // Of one member: between the exchanges of an all-to-all.
      const std::string name = n == 1 ? "all keys" : std::to_string(step + 1) + " of p2p";
      Block next;
      Tensor sent;
      const TransferGuard guard(messages_, tag);
      if (step + 1 < n) {
        const int owner = (me + n - step - 1) % n;
        next = incoming(owner, ring_ranges(ring_.sharding, owner, step + 1));
        sent = outgoing(held, ring_ranges(ring_.sharding, held.owner, step + 1));
        if (Status s = messages_.receive(rank_of((me + n - 1) % n), tag,
                                         bytes_of_tensor(next.message), name, next.message.owner());
            !s.ok()) {
          return s;
        }
        if (Status s = messages_.send(rank_of((me + 1) % n), tag, bytes_of_tensor(sent), name,
                                      sent.owner());
            !s.ok()) {
          return s;
        }
      }
      if (Status s = compute(&held, name); !s.ok()) return s;
      if (Status s = messages_.wait(tag); !s.ok()) return s;
      held = std::move(next);
    }
    return {};
  }

  Status gather() {
    const int n = members(), me = ring_.member;
    const Block mine = own();
    std::vector<Block> blocks(static_cast<std::size_t>(n));
    std::vector<Tensor> sent(static_cast<std::size_t>(n));
    const TransferGuard guard(messages_, kKeysTag);
    for (int x = 1; x < n; ++x) {
      const int from = (me + n - x) % n;
      Block& block = blocks[static_cast<std::size_t>(from)];
      block = incoming(from, needed_ranges(ring_.sharding, from, me, 1));
      if (Status s = messages_.receive(rank_of(from), kKeysTag, bytes_of_tensor(block.message),
                                       "1 of all_gather", block.message.owner());
          !s.ok()) {
        return s;
      }
    }
    for (int x = 1; x < n; ++x) {
      const int to = (me + x) % n;
      Tensor& message = sent[static_cast<std::size_t>(to)];
      message = outgoing(mine, needed_ranges(ring_.sharding, me, to, 1));
      if (Status s = messages_.send(rank_of(to), kKeysTag, bytes_of_tensor(message),
                                    "1 of all_gather", message.owner());
          !s.ok()) {
        return s;
      }
    }
    if (Status s = messages_.wait(kKeysTag); !s.ok()) return s;
    blocks[static_cast<std::size_t>(me)] = own();
    for (int step = 0; step < n; ++step) {
      Block& block = blocks[static_cast<std::size_t>((me + n - step) % n)];
      if (Status s = compute(&block, "keys of " + std::to_string(rank_of(block.owner))); !s.ok()) {
        return s;
      }
    }
    return {};
  }

  const Ring& ring_;
  Messages& messages_;
  Compute compute_;
};

std::vector<QueryPart> parts_of(const Ring& ring, const TensorView& out, const TensorView& lse) {
  std::vector<QueryPart> parts;
  for (const Segment& s : ring.sharding.q[static_cast<std::size_t>(ring.member)]) {
    QueryPart part;
    part.segment = s;
    part.q = rows_of(ring.q, s.local, s.length);
    part.out = rows_of(out, s.local, s.length);
    part.lse = rows_of(lse, s.local, s.length);
    parts.push_back(part);
  }
  return parts;
}

void fill_empty(const TensorView& lse) {
  for (std::int64_t x = 0; x < lse.num_elements(); ++x) {
    if (lse.dtype == Dtype::kF64) {
      static_cast<double*>(lse.data)[x] = -HUGE_VAL;
    } else {
      static_cast<float*>(lse.data)[x] = -HUGE_VALF;
    }
  }
}

/// Gradients of one owner's keys, as they travel: of each range its d_k, then its d_v.
struct GradientBlock {
  std::vector<KeyRange> ranges;
  std::vector<TensorView> d_k, d_v;
  Tensor message;
};

GradientBlock gradients_of(const Ring& ring, int owner, int member) {
  GradientBlock block;
  block.ranges = needed_ranges(ring.sharding, owner, member, 1);
  const Dtype dtype = ring.call.accumulates;
  const std::int64_t row =
      ring.k.shape[0] * ring.k.shape[1] * (ring.k.shape[3] + ring.v.shape[3]) * size_of(dtype);
  block.message = Tensor(Dtype::kU8, {rows_of(block.ranges) * row});
  auto* at = static_cast<std::byte*>(block.message.view().data);
  for (const KeyRange& range : block.ranges) {
    for (const bool is_k : {true, false}) {
      const TensorView& like = is_k ? ring.k : ring.v;
      const TensorView view =
          make_view(static_cast<void*>(at), dtype,
                    {like.shape[0], like.shape[1], range.length, like.shape[3]});
      at += bytes_of(view);
      (is_k ? block.d_k : block.d_v).push_back(view);
    }
  }
  return block;
}

/// Computes with a block of keys and leaves what it adds to their gradients in `to`.
Status compute_gradients(const Ring& ring, const Block& block, const std::vector<QueryPart>& parts,
                         GradientBlock* to) {
  for (std::size_t x = 0; x < to->ranges.size(); ++x) {
    const KeyRange& range = to->ranges[x];
    for (std::size_t y = 0; y < block.ranges.size(); ++y) {
      if (block.ranges[y].segment != range.segment) continue;
      const std::int64_t begin = range.begin - block.ranges[y].begin;
      HeldKeys keys{segment_of(ring.sharding, block.owner, range), {}, {}, to->d_k[x], to->d_v[x]};
      const TensorView k = rows_of(block.keys[y].k, begin, range.length);
      const TensorView v = rows_of(block.keys[y].v, begin, range.length);
      const Dtype dtype = ring.call.accumulates;
      const auto like = [&](const TensorView& of) {
        return Tensor::uninitialized(dtype, {of.shape[0], of.shape[1], of.shape[2], of.shape[3]});
      };
      const Tensor wide_k = like(k), wide_v = like(v);
      const AttentionRequest& r = ring.call.request;
      if (Status s = dequantize(ring.call.execution, k, r.descale_k, wide_k.view()); !s.ok()) {
        return s;
      }
      if (Status s = dequantize(ring.call.execution, v, r.descale_v, wide_v.view()); !s.ok()) {
        return s;
      }
      keys.k = wide_k.view();
      keys.v = wide_v.view();
      for (const QueryPart& part : parts) {
        if (Status s = add_backward(ring.call, keys, part); !s.ok()) return s;
      }
    }
  }
  return {};
}

void add_gradients(const Ring& ring, const GradientBlock& block, const RingGradients& gradients) {
  const auto* at = static_cast<const std::byte*>(block.message.view().data);
  for (const KeyRange& range : block.ranges) {
    const Segment s = segment_of(ring.sharding, ring.member, range);
    at = add(rows_of(gradients.d_k, s.local, s.length), at);
    at = add(rows_of(gradients.d_v, s.local, s.length), at);
  }
}

/// Takes what a member computes for the keys of others to their owners, while the next block is
/// computed: an owner adds its own, then that of the members behind it, in their order.
class GradientReturns {
 public:
  GradientReturns(const Ring& ring, Messages* messages, const RingGradients& gradients)
      : ring_(ring),
        messages_(*messages),
        gradients_(gradients),
        guard_(messages_, kGradientsTag) {}

  /// What was computed with the block of `owner`, whose turn it is after those before it.
  Status take(int owner, GradientBlock computed) {
    if (Status s = finish(); !s.ok()) return s;
    const int n = ring_.sharding.members(), me = ring_.member;
    if (owner == me) {
      add_gradients(ring_, computed, gradients_);
      return {};
    }
    const int from = (2 * me + n - owner) % n;  // as far behind as the owner is before
    sent_ = std::move(computed);
    arriving_ = gradients_of(ring_, me, from);
    if (Status s =
            messages_.receive(ring_.ranks[static_cast<std::size_t>(from)], kGradientsTag,
                              bytes_of_tensor(arriving_.message), kStep, arriving_.message.owner());
        !s.ok()) {
      return s;
    }
    return messages_.send(ring_.ranks[static_cast<std::size_t>(owner)], kGradientsTag,
                          bytes_of_tensor(sent_.message), kStep, sent_.message.owner());
  }

  /// Waits for the last ones.
  Status finish() {
    if (Status s = messages_.wait(kGradientsTag); !s.ok()) return s;
    add_gradients(ring_, arriving_, gradients_);
    sent_ = {};
    arriving_ = {};
    return {};
  }

 private:
  static constexpr const char* kStep = "gradients of keys";

  const Ring& ring_;
  Messages& messages_;
  const RingGradients& gradients_;
  GradientBlock sent_, arriving_;
  TransferGuard guard_;
};

void add_message(Traffic* traffic, std::int64_t bytes, const MessageLimits& limits) {
  traffic->messages += chunks_of(bytes, limits);
  traffic->bytes += bytes;
}

}  // namespace

Status forward(const Ring& ring, Messages* messages, const TensorView& out, const TensorView& lse) {
  fill_empty(lse);
  std::vector<QueryPart> parts = parts_of(ring, out, lse);
  return Run(ring, messages,
             [&](Block* block) -> Status {
               for (const HeldKeys& keys : block->keys) {
                 for (QueryPart& part : parts) {
                   if (Status s = add_forward(ring.call, keys, &part); !s.ok()) return s;
                 }
               }
               return {};
             })
      .run();
}

Status backward(const Ring& ring, Messages* messages, const RingGradients& gradients) {
  std::vector<QueryPart> parts = parts_of(ring, gradients.d_out, gradients.lse);
  for (QueryPart& part : parts) {
    const Segment& s = part.segment;
    part.d_out = part.out;
    part.delta = rows_of(gradients.delta, s.local, s.length);
    part.d_q = rows_of(gradients.d_q, s.local, s.length);
  }
  GradientReturns returns(ring, messages, gradients);
  const Status status =
      Run(ring, messages, [&](Block* block) -> Status {
        GradientBlock computed = gradients_of(ring, block->owner, ring.member);
        if (Status s = compute_gradients(ring, *block, parts, &computed); !s.ok()) {
          return s;
        }
        return returns.take(block->owner, std::move(computed));
      }).run();
  return status.ok() ? returns.finish() : status;
}

Traffic forward_traffic(const Sharding& sharding, int member, bool gathers, const RingRow& bytes,
                        const MessageLimits& limits) {
  Traffic traffic;
  const int n = sharding.members();
  for (int x = 1; x < n; ++x) {
    const auto ranges = gathers ? needed_ranges(sharding, member, (member + x) % n, 1)
                                : ring_ranges(sharding, (member + n - x + 1) % n, x);
    add_message(&traffic, rows_of(ranges) * bytes.row, limits);
  }
  return traffic;
}

Traffic backward_traffic(const Sharding& sharding, int member, bool gathers, const RingRow& bytes,
                         const MessageLimits& limits) {
  Traffic traffic = forward_traffic(sharding, member, gathers, bytes, limits);
  const int n = sharding.members();
  for (int x = 1; x < n; ++x) {
    const auto ranges = needed_ranges(sharding, (member + x) % n, member, 1);
    add_message(&traffic, rows_of(ranges) * bytes.gradient, limits);
  }
  return traffic;
}

}  // namespace regard::distributed
