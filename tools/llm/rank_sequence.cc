#include "tools/llm/rank_sequence.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Dtype;
using regard::Expected;
using regard::make_view;
using regard::Status;
using regard::StatusCode;
namespace distributed = regard::distributed;

constexpr distributed::LayoutKind kLayout = distributed::LayoutKind::kZigzag;
constexpr int kLogitsTag = 11;

/// The pieces of a rank; a layout without documents has no error.
std::vector<distributed::Piece> pieces_of(std::int64_t length, int ranks, int rank) {
  return distributed::make_layout(kLayout, length, ranks).value()[static_cast<std::size_t>(rank)];
}

/// The rank that has the last of `length` positions.
int rank_of_end(std::int64_t length, int ranks) {
  const auto layout = distributed::make_layout(kLayout, length, ranks).value();
  const auto ends = [&](const std::vector<distributed::Piece>& pieces) {
    return !pieces.empty() && pieces.back().begin + pieces.back().length == length;
  };
  return static_cast<int>(std::find_if(layout.begin(), layout.end(), ends) - layout.begin());
}

}  // namespace

RankSequence::RankSequence(Model& model, distributed::Communicator& communicator,
                           const RankOptions& options)
    : model_(model), communicator_(communicator), options_(options) {
  regard::check(context_.set_concurrency(options.threads));
  context_.set_executor(&executor_);
  context_.set_policy(options.policy);
}

Expected<std::unique_ptr<RankSequence>> RankSequence::make(Model& model,
                                                           distributed::Communicator& communicator,
                                                           const RankOptions& options) {
  if (options.dtype != Dtype::kF32 && options.dtype != Dtype::kBf16 &&
      options.dtype != Dtype::kF16) {
    return invalid("ranks", std::string("the type of keys and values (") +
                                to_string(options.dtype) + ") must be f32, bf16 or f16 over ranks");
  }
  std::unique_ptr<RankSequence> made(new RankSequence(model, communicator, options));
  if (Status s = made->reserve(); !s.ok()) return s;
  return made;
}

Status RankSequence::reserve() try {
  const ModelConfig& c = model_.config();
  max_rows_ = distributed::rows_of(pieces_of(options_.capacity, ranks(), rank()));
  const std::int64_t bytes = max_rows_ * c.kv_width() * regard::size_of(options_.dtype);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    k_.push_back(allocate_rows(std::max<std::int64_t>(bytes, 1)));
    v_.push_back(allocate_rows(std::max<std::int64_t>(bytes, 1)));
  }
  return rotary_.reserve(c, model_.rotary_scale(), options_.capacity);
} catch (const std::bad_alloc&) {
  return Status(StatusCode::kOutOfMemory, "[ranks] no memory for " + std::to_string(max_rows_) +
                                              " positions of a rank; reduce --max-seq-length");
}

distributed::Options RankSequence::whole(std::int64_t seqlen_q, std::int64_t seqlen_kv) const {
  distributed::Options o;
  o.seqlen_q = seqlen_q;
  o.seqlen_kv = seqlen_kv;
  o.layout = kLayout;
  o.algorithm = options_.algorithm;
  o.network = options_.network;
  o.limits = options_.limits;
  return o;
}

void RankSequence::keep(std::int64_t layer, const StepRows& step,
                        std::span<const std::int64_t> positions, std::int64_t kept) {
  const ModelConfig& c = model_.config();
  const std::int64_t half = c.rotary_dim / 2;
  rotate_rows({step.q, step.dtype, step.stride, c.heads, c.head_dim}, positions, rotary_, half);
  rotate_rows({step.k, step.dtype, step.stride, c.heads_kv, c.head_dim}, positions, rotary_, half);
  const auto size = static_cast<std::int64_t>(regard::size_of(step.dtype));
  const auto at = static_cast<std::size_t>(layer);
  for (const auto& [from, to] :
       {std::pair{step.k, k_[at].get()}, std::pair{step.v, v_[at].get()}}) {
    for (std::int64_t row = 0; row < kept; ++row) {
      const auto* const heads = static_cast<const std::byte*>(from) + row * step.stride * size;
      for (std::int64_t h = 0; h < c.heads_kv; ++h) {
        std::memcpy(to + (h * max_rows_ + rows_ + row) * c.head_dim * size,
                    heads + h * c.head_dim * size, static_cast<std::size_t>(c.head_dim * size));
      }
    }
  }
}

regard::AttentionRequest RankSequence::request_of(const StepRows& r) const {
  const ModelConfig& c = model_.config();
  const std::int64_t d = c.head_dim;
  const auto rows_of_heads = [&](void* data, std::int64_t heads, std::int64_t stride) {
    return make_view(data, r.dtype, {1, heads, r.rows, d}, {r.rows * stride, d, stride, 1});
  };
  regard::AttentionRequest request;
  request.q = rows_of_heads(r.q, c.heads, r.stride);
  request.k = rows_of_heads(r.k, c.heads_kv, r.stride);
  request.v = rows_of_heads(r.v, c.heads_kv, r.stride);
  request.out = rows_of_heads(r.out, c.heads, c.q_width());
  return request;
}

Status RankSequence::attend_prompt(std::int64_t layer, const StepRows& step,
                                   std::span<const std::int64_t> positions, std::int64_t length) {
  keep(layer, step, positions, step.rows);
  regard::AttentionRequest request = request_of(step);
  request.options.is_causal = true;
  request.options.diagonal = regard::Diagonal::kTopLeft;
  if (layer == 0) {
    auto plan = distributed::plan(context_, communicator_, request, whole(length, length));
    if (!plan) return plan.status();
    prompt_plan_ = *std::move(plan);
  }
  return distributed::attention(context_, communicator_, prompt_plan_, request);
}

Expected<std::span<const float>> RankSequence::prefill(std::span<const std::int32_t> prompt) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length_ != 0 || length < 1 || length > capacity()) {
    return invalid("ranks", std::to_string(length) + " tokens for a sequence of " +
                                std::to_string(length_) + ", expected 1 to " +
                                std::to_string(capacity()) + " for an empty one");
  }
  if (Status s = model_.check_tokens(prompt); !s.ok()) return s;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> tokens;
  for (const distributed::Piece& piece : pieces_of(length, ranks(), rank())) {
    for (std::int64_t at = piece.begin; at < piece.begin + piece.length; ++at) {
      positions.push_back(at);
      tokens.push_back(prompt[static_cast<std::size_t>(at)]);
    }
  }
  const auto attend = [&](std::int64_t layer, const StepRows& step) {
    return attend_prompt(layer, step, positions, length);
  };
  if (Status s = model_.run_layers(tokens, 1, options_.dtype, attend); !s.ok()) return s;
  has_prompt_ = true;
  length_ = length;
  rows_ = static_cast<std::int64_t>(tokens.size());
  const int last = rank_of_end(length, ranks());
  std::span<const float> logits;
  if (last == rank()) logits = model_.logits(rows_ - 1, 1);
  if (last == 0) return logits;
  logits_.resize(rank() == 0 ? static_cast<std::size_t>(model_.config().vocab) : 0);
  distributed::Messages messages(communicator_, options_.limits, "prefill");
  Status moved;
  if (rank() == 0) {
    moved =
        messages.receive(last, kLogitsTag, std::as_writable_bytes(std::span(logits_)), "logits");
  } else if (last == rank()) {
    moved = messages.send(0, kLogitsTag, std::as_bytes(logits), "logits");
  }
  if (moved.ok()) moved = messages.wait();
  if (!moved.ok()) return moved;
  return std::span<const float>(logits_);
}

Status RankSequence::attend_token(std::int64_t layer, const StepRows& step, std::int64_t rows) {
  keep(layer, step, {&length_, 1}, rows - rows_);
  const ModelConfig& c = model_.config();
  const std::int64_t d = c.head_dim;
  const auto at = static_cast<std::size_t>(layer);
  regard::AttentionRequest request = request_of(step);
  request.k = make_view(static_cast<void*>(k_[at].get()), options_.dtype, {1, c.heads_kv, rows, d},
                        {c.heads_kv * max_rows_ * d, max_rows_ * d, d, 1});
  request.v = request.k;
  request.v.data = v_[at].get();
  if (layer == 0) {
    auto plan = distributed::plan_decode(context_, communicator_, request, whole(1, length_ + 1));
    if (!plan) return plan.status();
    token_plan_ = *std::move(plan);
  }
  return distributed::attention_decode(context_, communicator_, token_plan_, request);
}

Expected<std::span<const float>> RankSequence::decode(std::int32_t token) {
  if (length_ >= capacity()) {
    return invalid("ranks", "a token for a sequence of " + std::to_string(length_) +
                                ", expected at most the capacity, " + std::to_string(capacity()));
  }
  if (Status s = model_.check_tokens({&token, 1}); !s.ok()) return s;
  // One rank has a row more in the layout of the longer sequence: it keeps this one. Which
  // positions the others have no longer follows the layout; the query sees all of them.
  const std::int64_t rows = distributed::rows_of(pieces_of(length_ + 1, ranks(), rank()));
  const auto attend = [&](std::int64_t layer, const StepRows& step) {
    return attend_token(layer, step, rows);
  };
  if (Status s = model_.run_layers({&token, 1}, 1, options_.dtype, attend); !s.ok()) return s;
  ++length_;
  rows_ = rows;
  if (rank() != 0) return std::span<const float>();
  return model_.logits(0, 1);
}

Status RankSequence::share(std::span<std::byte> data) {
  std::vector<std::span<std::byte>> spans(static_cast<std::size_t>(ranks()));
  spans[0] = data;
  distributed::Messages messages(communicator_, options_.limits, "share");
  return messages.all_gather(spans, "token");
}

std::string RankSequence::comm() const {
  return has_prompt_ ? to_string(prompt_plan_.algorithm()) : "";
}

std::string RankSequence::explain() const {
  if (!has_prompt_) return "";
  return "prefill\n" + prompt_plan_.explain() +
         "decode\neach rank attends to its own keys; partial results are merged in rank order\n";
}

}  // namespace llm
