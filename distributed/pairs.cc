#include "distributed/pairs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <string>

#include "distributed/text.h"

namespace regard::distributed {

Expected<Expression> move_indices(const Expression& expression, const IndexOrigin& origin) {
  if (expression.empty()) return expression;
  const std::string& text = expression.text();
  const auto moved = [](std::string_view name, std::int64_t by) {
    return by == 0 ? std::string(name)
                   : "(" + std::string(name) + (by < 0 ? "" : "+") + std::to_string(by) + ")";
  };
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 ||
                                 text[end] == '_' || text[end] == '.')) {
      ++end;
    }
    const std::string word = text.substr(at, end - at);
    if (word == "b") {
      const std::string entry =
          origin.documents == 1 ? word : "(b*" + std::to_string(origin.documents) + ")";
      result += moved(entry, origin.b);
    } else if (word == "h") {
      result += moved(word, origin.h);
    } else if (word == "q_idx") {
      result += moved(word, origin.q);
    } else if (word == "kv_idx" || word == "q_pos") {
      result += moved(word, origin.kv);
    } else if (word == "q_len") {
      result += std::to_string(origin.q_len);
    } else if (word == "kv_len") {
      result += std::to_string(origin.kv_len);
    } else if (!word.empty()) {
      result += word;
    } else {
      result += text[end++];
    }
    at = end;
  }
  return Expression::parse(result);
}

namespace {

constexpr std::int64_t kDropoutKeys = 8;  // that share a word of dropout's counter

/// A pair's calls, one for each run of heads.
class Pair {
 public:
  Pair(const PairCall& call, const HeldKeys& keys, const QueryPart& part)
      : call_(call),
        keys_(keys),
        part_(part),
        document_(call.visibility.documents[part.segment.document]) {
    range_ = visible_range(call.visibility, part.segment, keys.segment);
  }
  bool is_empty() const { return range_.length == 0; }

  /// Keys in front of the range that are there for dropout's alignment alone.
  std::int64_t padding() const {
    return call_.request.options.dropout_p > 0.0
               ? (range_.begin - document_.kv_begin) % kDropoutKeys
               : 0;
  }
  std::int64_t key_rows() const { return range_.length + padding(); }

  Status prepare() {
    if (padding() == 0) return {};
    mask_ = Tensor(Dtype::kU8, {1, 1, 1, key_rows()});
    auto* const shown = static_cast<unsigned char*>(mask_.view().data);
    for (std::int64_t j = padding(); j < key_rows(); ++j) shown[j] = 1;
    for (const bool is_k : {true, false}) {
      const TensorView from = range_of(is_k ? keys_.k : keys_.v);
      Tensor& to = is_k ? k_ : v_;
      to = Tensor(from.dtype, {from.shape[0], from.shape[1], key_rows(), from.shape[3]});
      if (Status s = convert(call_.execution, from, rows_of(to.view(), padding(), range_.length));
          !s.ok()) {
        return s;
      }
    }
    return {};
  }

  /// The range's rows of a view of keys_.
  TensorView range_of(const TensorView& view) const {
    return rows_of(view, range_.begin - keys_.segment.begin, range_.length);
  }

  Expected<AttentionGradRequest> request(const HeadRun& run) const {
    AttentionGradRequest r;
    AttentionOptions& o = r.options;
    o = call_.request.options;
    const bool sees_all = distributed::sees_all(call_.visibility, part_.segment, range_);
    o.is_causal = false;
    o.window_left = sees_all ? kUnlimited : call_.visibility.left;
    o.window_right = sees_all ? kUnlimited : call_.visibility.right;
    o.diagonal = Diagonal::kOffset;
    o.needs_grad = o.d_lse = o.delta = false;
    o.dtype_d_out = o.dtype_gradients = std::nullopt;
    o.tokens_q = o.tokens_kv = 0;
    // The first of the call's keys, counted in its document.
    const std::int64_t key = range_.begin - document_.kv_begin - padding();
    const std::int64_t query = part_.segment.begin - document_.q_begin;
    r.diagonal_offset = query + document_.shift - key;
    const auto document = static_cast<std::int64_t>(part_.segment.document);
    // Sequences are numbered by batch entry, then by document.
    const std::int64_t documents = std::max<std::int64_t>(call_.documents, 1);
    const std::int64_t b = call_.documents > 0 ? document : 0;
    const IndexOrigin origin{b,
                             run.head,
                             query,
                             key,
                             document_.q_end - document_.q_begin,
                             document_.kv_end - document_.kv_begin,
                             documents};
    for (Expression* expression : {&o.score_function, &o.mask_function}) {
      Expected<Expression> moved = move_indices(*expression, origin);
      if (!moved.ok()) return moved.status();
      *expression = *moved;
    }
    r.rng_seed = r.saved.rng_seed = call_.request.rng_seed;
    r.rng_offset = r.saved.rng_offset = call_.request.rng_offset;
    if (o.dropout_p > 0.0) {
      r.dropout_origin = {key, key, b * call_.heads + run.head, documents * call_.heads};
    }
    r.q = heads_of(part_.q, run.q_begin, run.q_count);
    r.k = heads_of(padding() > 0 ? k_.view() : range_of(keys_.k), run.kv_begin, run.kv_count);
    r.v = heads_of(padding() > 0 ? v_.view() : range_of(keys_.v), run.kv_begin, run.kv_count);
    if (padding() > 0) r.attn_mask = mask_.view();
    r.alibi_slopes = slopes(run, b);
    return r;
  }

 private:
  TensorView slopes(const HeadRun& run, std::int64_t b) const {
    TensorView view = call_.request.alibi_slopes;
    if (!view.present()) return view;
    auto* data = static_cast<std::byte*>(view.data);
    data += run.head * view.strides[view.rank - 1] * size_of(view.dtype);
    if (view.rank == 2 && call_.documents > 0) {  // a row for each sequence
      data += b * view.strides[0] * size_of(view.dtype);
      view.shape[0] = part_.q.shape[0];
      view.strides[0] *= call_.documents;
    }
    view.data = data;
    view.shape[view.rank - 1] = run.q_count;
    return view;
  }

  const PairCall& call_;
  const HeldKeys& keys_;
  const QueryPart& part_;
  const Document& document_;
  KeyRange range_;
  Tensor k_, v_, mask_;
};

void add_view(const TensorView& to, const TensorView& from) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(from)));
  pack(from, bytes.data());
  add(to, bytes.data());
}

/// For an output, of which a call writes every element.
Tensor like(const TensorView& view, Dtype dtype) {
  return Tensor::uninitialized(dtype, {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
}

}  // namespace

Status add_forward(const PairCall& call, const HeldKeys& keys, QueryPart* part) {
  Pair pair(call, keys, *part);
  Context& context = call.execution.context;
  const Launch& launch = call.execution.launch;
  if (pair.is_empty()) return {};
  if (Status s = pair.prepare(); !s.ok()) return s;
  for (const HeadRun& run : call.runs) {
    Expected<AttentionGradRequest> request = pair.request(run);
    if (!request.ok()) return request.status();
    request->descale_q = call.request.descale_q;
    request->descale_k = call.request.descale_k;
    request->descale_v = call.request.descale_v;
    const TensorView out = heads_of(part->out, run.q_begin, run.q_count);
    const TensorView lse = heads_of(part->lse, run.q_begin, run.q_count);
    if (part->is_empty) {
      request->out = out;
      request->lse = lse;
      if (Status s = attention(context, *request, {}, launch); !s.ok()) return s;
      continue;
    }
    const Tensor more = like(out, call.accumulates);
    const Tensor more_lse(call.accumulates, {lse.shape[0], lse.shape[1], lse.shape[2]});
    request->out = more.view();
    request->lse = more_lse.view();
    if (Status s = attention(context, *request, {}, launch); !s.ok()) return s;
    const Status merged =
        merge_states(context, {{out, lse}, {more.view(), more_lse.view()}}, out, lse, launch);
    if (!merged.ok()) return merged;
  }
  part->is_empty = false;
  return {};
}

Status add_backward(const PairCall& call, const HeldKeys& keys, const QueryPart& part) {
  Pair pair(call, keys, part);
  Context& context = call.execution.context;
  const Launch& launch = call.execution.launch;
  if (pair.is_empty()) return {};
  if (Status s = pair.prepare(); !s.ok()) return s;
  for (const HeadRun& run : call.runs) {
    Expected<AttentionGradRequest> request = pair.request(run);
    if (!request.ok()) return request.status();
    request->options.needs_grad = request->options.delta = true;
    request->options.fp8_recipe = Fp8Recipe::kNone;  // the part's tensors are wide
    request->saved.kind = SavedContext::Kind::kLse;
    request->saved.stats = heads_of(part.lse, run.q_begin, run.q_count);
    request->delta = heads_of(part.delta, run.q_begin, run.q_count);
    request->d_out = heads_of(part.d_out, run.q_begin, run.q_count);
    request->out = request->d_out;  // delta is given, so out is not read
    const Tensor d_q = like(request->q, call.accumulates);
    const Tensor d_k = like(request->k, call.accumulates);
    const Tensor d_v = like(request->v, call.accumulates);
    request->d_q = d_q.view();
    request->d_k = d_k.view();
    request->d_v = d_v.view();
    if (Status s = attention_backward(context, *request, {}, launch); !s.ok()) return s;
    const std::int64_t rows = pair.key_rows() - pair.padding();
    const auto to = [&](const TensorView& view) {
      return pair.range_of(heads_of(view, run.kv_begin, run.kv_count));
    };
    add_view(heads_of(part.d_q, run.q_begin, run.q_count), d_q.view());
    add_view(to(keys.d_k), rows_of(d_k.view(), pair.padding(), rows));
    add_view(to(keys.d_v), rows_of(d_v.view(), pair.padding(), rows));
  }
  return {};
}

}  // namespace regard::distributed
