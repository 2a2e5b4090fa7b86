#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "distributed/attention.h"
#include "distributed/rows.h"
#include "distributed/thread_communicator.h"
#include "regard/context.h"

// A problem on one rank, and the same on ranks that are threads.

namespace regard::test {

using distributed::Piece;
using distributed::Tensor;

struct Problem {
  std::int64_t batch = 1, hq = 2, hkv = 2, sq = 64, skv = 64, d = 16, dv = 16;
  Dtype dtype = Dtype::kF64;
  AttentionOptions options;
  std::int64_t diagonal_offset = 0;
  bool alibi = false, sinks = false;
  bool descales = false;                  // of q, k, v and d_out
  std::vector<std::int64_t> cu_q, cu_kv;  // packed
  std::uint64_t seed = 1;
};

/// Tensors of one problem or one rank's part.
struct Tensors {
  Tensor q, k, v, out, lse, d_out, d_q, d_k, d_v, d_sinks, slopes, sinks, cu_q, cu_kv, descales;

  /// Of packed sequences on one rank: [Hq,total_q].
  TensorView lse_of_rows() const {
    const TensorView& view = lse.view();
    return make_view(view.data, view.dtype, {view.shape[1], view.shape[2]});
  }
  TensorView descale(int which) const {
    return make_view(static_cast<const float*>(descales.view().data) + which, Dtype::kF32, {1});
  }
  AttentionGradRequest request(const Problem& p, bool whole) const {
    AttentionGradRequest r;
    r.q = q.view();
    r.k = k.view();
    r.v = v.view();
    r.out = out.view();
    r.lse = lse.view();
    if (p.alibi) r.alibi_slopes = slopes.view();
    if (p.sinks) r.sinks = sinks.view();
    if (p.descales) {
      r.descale_q = descale(0);
      r.descale_k = descale(1);
      r.descale_v = descale(2);
    }
    r.options = p.options;
    r.diagonal_offset = p.diagonal_offset;
    r.rng_seed = r.saved.rng_seed = p.seed;
    if (whole && !p.cu_q.empty()) {
      r.lse = lse_of_rows();
      r.cu_seqlens_q = cu_q.view();
      r.cu_seqlens_kv = cu_kv.view();
    }
    return r;
  }
  AttentionGradRequest gradient_request(const Problem& p, bool whole) const {
    AttentionGradRequest r = request(p, whole);
    r.saved.kind = SavedContext::Kind::kLse;
    r.saved.stats = r.lse;
    r.d_out = d_out.view();
    if (p.descales) r.descale_d_out = descale(3);
    r.d_q = d_q.view();
    r.d_k = d_k.view();
    r.d_v = d_v.view();
    if (p.sinks) r.d_sinks = d_sinks.view();
    return r;
  }
};

inline Dtype wide_of(Dtype dtype) { return dtype == Dtype::kF64 ? dtype : Dtype::kF32; }

inline Tensors allocate(const Problem& p, std::int64_t rows_q, std::int64_t rows_kv) {
  const Dtype t = is_f8(p.dtype) ? Dtype::kF32 : p.dtype;  // of results and gradients
  Tensors x;
  x.q = Tensor(p.dtype, {p.batch, p.hq, rows_q, p.d});
  x.k = Tensor(p.dtype, {p.batch, p.hkv, rows_kv, p.d});
  x.v = Tensor(p.dtype, {p.batch, p.hkv, rows_kv, p.dv});
  x.out = Tensor(t, {p.batch, p.hq, rows_q, p.dv});
  x.lse = Tensor(wide_of(t), {p.batch, p.hq, rows_q});
  x.d_out = Tensor(p.options.dtype_d_out.value_or(t), {p.batch, p.hq, rows_q, p.dv});
  x.d_q = Tensor(t, {p.batch, p.hq, rows_q, p.d});
  x.d_k = Tensor(t, {p.batch, p.hkv, rows_kv, p.d});
  x.d_v = Tensor(t, {p.batch, p.hkv, rows_kv, p.dv});
  x.d_sinks = Tensor(Dtype::kF32, {p.hq});
  x.slopes = Tensor(Dtype::kF32, {p.hq});
  x.sinks = Tensor(Dtype::kF32, {p.hq});
  x.descales = Tensor(Dtype::kF32, {4});
  for (int which = 0; which < 4; ++which) {
    static_cast<float*>(x.descales.view().data)[which] = 0.75F + 0.5F * static_cast<float>(which);
  }
  for (std::int64_t h = 0; h < p.hq; ++h) {
    static_cast<float*>(x.slopes.view().data)[h] = 0.1F / static_cast<float>(h + 1);
    static_cast<float*>(x.sinks.view().data)[h] = 0.3F * static_cast<float>(h) - 0.2F;
  }
  if (!p.cu_q.empty()) {
    const auto n = static_cast<std::int64_t>(p.cu_q.size());
    x.cu_q = Tensor(Dtype::kI64, {n});
    x.cu_kv = Tensor(Dtype::kI64, {n});
    std::memcpy(x.cu_q.view().data, p.cu_q.data(), p.cu_q.size() * 8);
    std::memcpy(x.cu_kv.view().data, p.cu_kv.data(), p.cu_kv.size() * 8);
  }
  return x;
}

/// Numbers of `dtype`, the same for every dtype but for their rounding.
inline void fill(const TensorView& view, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const Tensor exact(Dtype::kF64, {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
  // bf16's values, so that problems of all types are the same one.
  const Tensor coarse(Dtype::kBf16, {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
  for (std::int64_t x = 0; x < view.num_elements(); ++x) {
    static_cast<double*>(exact.view().data)[x] = normal(random);
  }
  check(distributed::convert(default_context(), exact.view(), coarse.view()));
  if (!is_f8(view.dtype)) {
    check(distributed::convert(default_context(), coarse.view(), view));
    return;
  }
  for (std::int64_t x = 0; x < view.num_elements(); ++x) {
    const float number = f32_from_bf16(static_cast<const std::uint16_t*>(coarse.view().data)[x]);
    static_cast<std::uint8_t*>(view.data)[x] =
        view.dtype == Dtype::kF8E4M3 ? f8e4m3_from_f32(number) : f8e5m2_from_f32(number);
  }
}

inline Tensors make_whole(const Problem& p) {
  Tensors x = allocate(p, p.sq, p.skv);
  fill(x.q.view(), 4 * p.seed);
  fill(x.k.view(), 4 * p.seed + 1);
  fill(x.v.view(), 4 * p.seed + 2);
  fill(x.d_out.view(), 4 * p.seed + 3);
  return x;
}

inline void copy(const TensorView& from, const TensorView& to) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(distributed::bytes_of(from)));
  distributed::pack(from, bytes.data());
  distributed::unpack(to, bytes.data());
}

/// Copies a rank's rows out of the whole, or back.
inline void copy_pieces(const TensorView& whole, const TensorView& part,
                        const std::vector<Piece>& pieces, bool to_part) {
  std::int64_t row = 0;
  for (const Piece& piece : pieces) {
    const TensorView a = distributed::rows_of(whole, piece.begin, piece.length);
    const TensorView b = distributed::rows_of(part, row, piece.length);
    to_part ? copy(a, b) : copy(b, a);
    row += piece.length;
  }
}

/// body(rank) on a thread each.
inline void on_ranks(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

/// Largest |a - b| where both are finite; infinite where they differ otherwise.
inline double distance(const TensorView& a, const TensorView& b) {
  std::vector<std::int64_t> shape(a.shape, a.shape + a.rank);
  while (shape.size() < 4) shape.push_back(1);
  const auto as4 = [&](TensorView v) {
    for (int x = v.rank; x < 4; ++x) {
      v.shape[x] = 1;
      v.strides[x] = 1;
    }
    v.rank = 4;
    return v;
  };
  double most = 0.0;
  const TensorView x = as4(a), y = as4(b);
  const auto element = [](const TensorView& v, std::int64_t at) {
    switch (v.dtype) {
      case Dtype::kF64: return static_cast<const double*>(v.data)[at];
      case Dtype::kF32: return double{static_cast<const float*>(v.data)[at]};
      default: break;
    }
    std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(v.data)[at]} << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return double{value};
  };
  for (std::int64_t at = 0; at < x.num_elements(); ++at) {
    const double p = element(x, at), q = element(y, at);
    if (p == q) continue;
    const double gap = p > q ? p - q : q - p;
    if (!(gap <= most)) most = gap == gap ? gap : 1e300;
  }
  return most;
}

/// Runs on ranks and gathers into `whole`. Returns the first error.
struct RankRun {
  Status status;
  std::vector<Status> all;
  std::vector<distributed::Traffic> forward, backward;
  std::unique_ptr<distributed::Plan> plan;
  std::vector<float> d_sinks;  // of each head, each rank's
};
inline RankRun run_on_ranks(const Problem& p, const distributed::Options& options, int ranks,
                            Tensors* whole, bool backward, const distributed::Fault& fault = {}) {
  RankRun run;
  run.all.resize(static_cast<std::size_t>(ranks));
  run.forward.resize(run.all.size());
  run.backward.resize(run.all.size());
  const auto q =
      distributed::make_layout(options.layout, p.sq, ranks, options.cu_seqlens_q).value();
  const auto kv =
      distributed::make_layout(options.layout, p.skv, ranks, options.cu_seqlens_kv).value();
  std::vector<Tensors> parts(run.all.size());
  distributed::ThreadGroup group(ranks, fault);
  std::vector<std::unique_ptr<distributed::Plan>> plans(run.all.size());
  on_ranks(ranks, [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    Tensors& x = parts[at];
    x = allocate(p, distributed::rows_of(q[at]), distributed::rows_of(kv[at]));
    for (auto tensor : {&Tensors::q, &Tensors::d_out}) {
      copy_pieces((whole->*tensor).view(), (x.*tensor).view(), q[at], true);
    }
    for (auto tensor : {&Tensors::k, &Tensors::v}) {
      copy_pieces((whole->*tensor).view(), (x.*tensor).view(), kv[at], true);
    }
    Context context;
    check(context.set_concurrency(1));
    auto& communicator = group.communicator(r);
    AttentionGradRequest request = x.request(p, false);
    request.options.needs_grad = backward;
    const auto plan = distributed::plan(context, communicator, request, options);
    run.all[at] = plan.status();
    if (!plan.ok()) return;
    plans[at] = std::make_unique<distributed::Plan>(*plan);
    distributed::CallRecord record;
    run.all[at] = distributed::attention(context, communicator, *plan, request, &record);
    run.forward[at] = record.sent;
    if (!run.all[at].ok() || !backward) return;
    AttentionGradRequest gradients = x.gradient_request(p, false);
    gradients.options.needs_grad = true;
    run.all[at] = distributed::attention_backward(context, communicator, *plan, gradients, &record);
    run.backward[at] = record.sent;
  });
  for (const Status& s : run.all) {
    if (!s.ok() && run.status.ok()) run.status = s;
  }
  if (!run.status.ok()) return run;
  for (std::size_t at = 0; at < run.all.size(); ++at) {
    for (auto tensor : {&Tensors::out, &Tensors::lse, &Tensors::d_q}) {
      copy_pieces((whole->*tensor).view(), (parts[at].*tensor).view(), q[at], false);
    }
    for (auto tensor : {&Tensors::d_k, &Tensors::d_v}) {
      copy_pieces((whole->*tensor).view(), (parts[at].*tensor).view(), kv[at], false);
    }
  }
  for (std::int64_t h = 0; h < p.hq; ++h) {
    double sum = 0.0;
    for (const Tensors& x : parts) {
      run.d_sinks.push_back(static_cast<const float*>(x.d_sinks.view().data)[h]);
      sum += run.d_sinks.back();
    }
    static_cast<float*>(whole->d_sinks.view().data)[h] = static_cast<float>(sum);
  }
  run.plan = std::move(plans[0]);
  return run;
}

/// The same on one rank, by regard::attention alone.
inline Status run_alone(const Problem& p, const Tensors& whole, bool backward) {
  Context context;
  check(context.set_concurrency(1));
  AttentionGradRequest request = whole.request(p, true);
  if (Status s = attention(context, request); !s.ok() || !backward) return s;
  AttentionGradRequest gradients = whole.gradient_request(p, true);
  gradients.options.needs_grad = true;
  return attention_backward(context, gradients);
}

inline distributed::Options options_of(const Problem& p) {
  distributed::Options options;
  options.seqlen_q = p.sq;
  options.seqlen_kv = p.skv;
  options.cu_seqlens_q = p.cu_q;
  options.cu_seqlens_kv = p.cu_kv;
  options.limits.timeout = std::chrono::milliseconds(20000);
  return options;
}

}  // namespace regard::test
