#include "attention_case.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <thread>

#include "cpu/kernel_isa.h"
#include "regard/dtype.h"
#include "semantics/philox.h"

namespace regard::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::int64_t offset_of(const TensorView& view, const std::int64_t (&index)[4]) {
  std::int64_t at = 0;
  for (int i = 0; i < view.rank; ++i) at += view.shape[i] == 1 ? 0 : index[i] * view.strides[i];
  return at;
}

template <class F>
void for_each_index(const TensorView& view, F&& f) {
  std::int64_t n[4] = {1, 1, 1, 1};
  for (int i = 0; i < view.rank; ++i) n[i] = view.shape[i];
  for (std::int64_t i0 = 0; i0 < n[0]; ++i0) {
    for (std::int64_t i1 = 0; i1 < n[1]; ++i1) {
      for (std::int64_t i2 = 0; i2 < n[2]; ++i2) {
        for (std::int64_t i3 = 0; i3 < n[3]; ++i3) f(i0, i1, i2, i3);
      }
    }
  }
}

std::int64_t len_q(const AttentionRequest& r, std::int64_t b) {
  return r.seqlens_q.present() ? static_cast<std::int64_t>(get(r.seqlens_q, b)) : r.q.shape[2];
}
std::int64_t len_kv(const AttentionRequest& r, std::int64_t b) {
  return r.seqlens_kv.present() ? static_cast<std::int64_t>(get(r.seqlens_kv, b)) : r.k.shape[2];
}

std::int64_t shift_of(const AttentionRequest& r, std::int64_t b) {
  if (r.options.diagonal == Diagonal::kBottomRight) return len_kv(r, b) - len_q(r, b);
  if (r.options.diagonal != Diagonal::kOffset) return 0;
  return r.diagonal_offsets.present() ? static_cast<std::int64_t>(get(r.diagonal_offsets, b))
                                      : r.diagonal_offset;
}

double softmax_scale(const AttentionRequest& r) {
  return r.options.softmax_scale.value_or(default_softmax_scale(r.q.shape[3]));
}

double drop_factor(const AttentionRequest& r, std::int64_t b, std::int64_t h, std::int64_t i,
                   std::int64_t j) {
  const auto d = semantics::make_dropout(r.options.dropout_p, r.rng_seed, r.rng_offset);
  if (d.threshold == 0) return 1.0;
  const auto row = semantics::dropout_row(i, shift_of(r, b), b * r.q.shape[1] + h);
  return semantics::dropout_keeps(d, row, j) ? 65536.0 / d.threshold : 0.0;
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes, bool flush_end, std::size_t alignment)
    : bytes_(bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t inner = (bytes + page - 1) / page * page + page;
  map_bytes_ = inner + 2 * page;
  void* map = mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<char*>(map);
  if (mprotect(map_ + page, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  data_ = map_ + page + (flush_end ? (inner - bytes) / alignment * alignment : 0);
}

GuardedBuffer::~GuardedBuffer() { munmap(map_, map_bytes_); }

void TestExecutor::run(int slots, Task task, void* state) {
  most_slots = std::max(most_slots, slots);
  if (!threads_) {
    for (int slot = slots - 1; slot >= 0; --slot) task(state, slot);
    return;
  }
  std::vector<std::thread> all;
  for (int slot = 0; slot < slots; ++slot) all.emplace_back(task, state, slot);
  for (std::thread& thread : all) thread.join();
}

AttentionCase::AttentionCase(Shape s, Dtype dtype, std::uint64_t seed) : shape(s), rng(seed) {
  const Dtype wide = dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  request.q = tensor(dtype, {s.b, s.hq, s.sq, s.d}, true);
  request.k = tensor(dtype, {s.b, s.hkv, s.skv, s.d}, true);
  request.v = tensor(dtype, {s.b, s.hkv, s.skv, s.dv}, true);
  request.out = tensor(dtype, {s.b, s.hq, s.sq, s.dv}, true);
  request.lse = tensor(wide, {s.b, s.hq, s.sq}, false);
  fill_normal(request.q);
  fill_normal(request.k);
  fill_normal(request.v);
  fill_normal(request.out);
  fill_normal(request.lse);
}

TensorView AttentionCase::tensor(Dtype dtype, std::vector<std::int64_t> extents, bool dense_last,
                                 unsigned broadcast) {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<std::int32_t>(extents.size());
  std::vector<int> order(extents.size());
  std::iota(order.begin(), order.end(), 0);
  if (chance(0.5)) std::shuffle(order.begin(), order.end() - (dense_last ? 1 : 0), rng);
  std::int64_t stride = !dense_last && chance(0.2) ? 3 : 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const int dim = *it;
    const bool single = (broadcast >> dim & 1) != 0;
    view.shape[dim] = single && chance(0.5) ? 1 : extents[static_cast<std::size_t>(dim)];
    view.strides[dim] = single ? 0 : stride;
    if (single) continue;
    const std::int64_t padding = chance(0.4) ? pick(1, 5) : 0;
    stride = stride * std::max<std::int64_t>(view.shape[dim], 1) + padding;
  }
  if (dense_last) view.strides[view.rank - 1] = 1;
  std::int64_t elements = 1;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) elements = 0;
  }
  for (int i = 0; elements != 0 && i < view.rank; ++i) {
    elements += (view.shape[i] - 1) * view.strides[i];
  }
  const auto size = static_cast<std::size_t>(size_of(dtype));
  memory_.push_back(std::make_unique<GuardedBuffer>(static_cast<std::size_t>(elements) * size,
                                                    chance(0.8), size));
  view.data = memory_.back()->data();
  return view;
}

void AttentionCase::fill_normal(const TensorView& view, double scale) {
  std::normal_distribution<double> normal(0.0, scale);
  for_each_index(view, [&](auto... i) { put(view, normal(rng), i...); });
}

void AttentionCase::fill_mask(const TensorView& view, double p) {
  for_each_index(view, [&](auto... i) { put(view, chance(p) ? 1 : 0, i...); });
}

void AttentionCase::fill_ints(const TensorView& view, std::int64_t lo, std::int64_t hi) {
  for_each_index(view, [&](auto... i) { put(view, static_cast<double>(pick(lo, hi)), i...); });
}

void AttentionCase::poison_hidden() {
  const AttentionRequest& r = request;
  const std::int64_t group = shape.hkv > 0 ? shape.hq / shape.hkv : 1;
  const double poison[3] = {std::nan(""), kInfinity, -kInfinity};
  for (std::int64_t b = 0; b < shape.b; ++b) {
    for (std::int64_t h = 0; h < shape.hkv; ++h) {
      for (std::int64_t j = 0; j < shape.skv; ++j) {
        bool seen = false;
        for (std::int64_t g = 0; g < group; ++g) {
          for (std::int64_t i = 0; i < len_q(r, b); ++i) {
            seen = seen || sees(r, b, h * group + g, i, j);
          }
        }
        if (seen) continue;
        for (std::int64_t d = 0; d < shape.d; ++d) put(r.k, poison[pick(0, 2)], b, h, j, d);
        for (std::int64_t d = 0; d < shape.dv; ++d) put(r.v, poison[pick(0, 2)], b, h, j, d);
      }
    }
  }
}

double get(const TensorView& view, std::int64_t i0, std::int64_t i1, std::int64_t i2,
           std::int64_t i3) {
  const std::int64_t at = offset_of(view, {i0, i1, i2, i3});
  switch (view.dtype) {
    case Dtype::kF64: return static_cast<const double*>(view.data)[at];
    case Dtype::kF32: return static_cast<const float*>(view.data)[at];
    case Dtype::kBf16: return f32_from_bf16(static_cast<const std::uint16_t*>(view.data)[at]);
    case Dtype::kF16: return f32_from_f16(static_cast<const std::uint16_t*>(view.data)[at]);
    case Dtype::kI32: return static_cast<const std::int32_t*>(view.data)[at];
    case Dtype::kI64: return static_cast<double>(static_cast<const std::int64_t*>(view.data)[at]);
    default: return static_cast<const std::uint8_t*>(view.data)[at];
  }
}

void put(const TensorView& view, double x, std::int64_t i0, std::int64_t i1, std::int64_t i2,
         std::int64_t i3) {
  const std::int64_t at = offset_of(view, {i0, i1, i2, i3});
  const auto f = static_cast<float>(x);
  switch (view.dtype) {
    case Dtype::kF64: static_cast<double*>(view.data)[at] = x; break;
    case Dtype::kF32: static_cast<float*>(view.data)[at] = f; break;
    case Dtype::kBf16: static_cast<std::uint16_t*>(view.data)[at] = bf16_from_f32(f); break;
    case Dtype::kF16: static_cast<std::uint16_t*>(view.data)[at] = f16_from_f32(f); break;
    case Dtype::kI32:
      static_cast<std::int32_t*>(view.data)[at] = static_cast<std::int32_t>(x);
      break;
    case Dtype::kI64:
      static_cast<std::int64_t*>(view.data)[at] = static_cast<std::int64_t>(x);
      break;
    default: static_cast<std::uint8_t*>(view.data)[at] = static_cast<std::uint8_t>(x);
  }
}

bool sees(const AttentionRequest& r, std::int64_t b, std::int64_t h, std::int64_t i,
          std::int64_t j) {
  if (i >= len_q(r, b) || j >= len_kv(r, b)) return false;
  const std::int64_t p = i + shift_of(r, b);
  const std::int64_t right = r.options.is_causal ? 0 : r.options.window_right;
  if (right >= 0 && j > p + right) return false;
  if (r.options.window_left >= 0 && j < p - r.options.window_left) return false;
  if (r.attn_mask.present() && get(r.attn_mask, b, h, i, j) == 0.0) return false;
  if (r.attn_bias.present() && get(r.attn_bias, b, h, i, j) == -kInfinity) return false;
  if (r.segment_ids_q.present() && get(r.segment_ids_q, b, i) != get(r.segment_ids_kv, b, j)) {
    return false;
  }
  return true;
}

ReferenceRow reference_row(const AttentionRequest& r, std::int64_t b, std::int64_t h,
                           std::int64_t i) {
  const std::int64_t skv = r.k.shape[2], d = r.q.shape[3], dv = r.v.shape[3];
  const std::int64_t hk = h / (r.q.shape[1] / r.k.shape[1]);
  const auto n = static_cast<std::size_t>(skv);
  ReferenceRow row;
  row.out.assign(static_cast<std::size_t>(dv), 0.0);
  row.scaled.assign(n, 0.0);
  row.edited.assign(n, -kInfinity);
  row.probs.assign(n, 0.0);
  row.lse = -kInfinity;
  if (i >= len_q(r, b)) return row;
  const double sink = r.sinks.present() ? get(r.sinks, h) : -kInfinity;
  double max = sink;
  for (std::int64_t j = 0; j < skv; ++j) {
    if (!sees(r, b, h, i, j)) continue;
    double score = 0.0, size = 0.0;
    for (std::int64_t x = 0; x < d; ++x) {
      const double term = get(r.q, b, h, i, x) * get(r.k, b, hk, j, x);
      score += term;
      size += std::fabs(term);
    }
    score *= softmax_scale(r);
    size *= std::fabs(softmax_scale(r));
    row.scaled[static_cast<std::size_t>(j)] = score;
    if (r.options.softcap > 0) score = r.options.softcap * std::tanh(score / r.options.softcap);
    if (r.alibi_slopes.present()) {
      const double slope =
          r.alibi_slopes.rank == 1 ? get(r.alibi_slopes, h) : get(r.alibi_slopes, b, h);
      const double alibi = slope * static_cast<double>(std::abs(i + shift_of(r, b) - j));
      score -= alibi;
      size += std::fabs(alibi);
    }
    if (r.attn_bias.present()) {
      const double bias = get(r.attn_bias, b, h, i, j);
      score += bias;
      size += std::fabs(bias);
    }
    row.edited[static_cast<std::size_t>(j)] = score;
    row.score_size = std::max(row.score_size, size);
    max = std::max(max, score);
  }
  double sum = sink == -kInfinity ? 0.0 : std::exp(sink - max);
  for (const double score : row.edited) sum += score == -kInfinity ? 0.0 : std::exp(score - max);
  row.lse = sum == 0.0 ? -kInfinity : max + std::log(sum);
  for (std::int64_t j = 0; j < skv; ++j) {
    const double score = row.edited[static_cast<std::size_t>(j)];
    if (score == -kInfinity) continue;
    const double p = std::exp(score - max) / sum;
    row.probs[static_cast<std::size_t>(j)] = p;
    for (std::int64_t x = 0; x < dv; ++x) {
      const double value = get(r.v, b, hk, j, x);
      row.out[static_cast<std::size_t>(x)] += p * drop_factor(r, b, h, i, j) * value;
      row.max_v = std::max(row.max_v, std::fabs(value));
    }
  }
  return row;
}

void append_bytes(const TensorView& view, std::vector<char>* bytes) {
  if (!view.present()) return;
  const int size = size_of(view.dtype);
  for_each_index(view, [&](std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    const char* at = static_cast<const char*>(view.data) + offset_of(view, {i0, i1, i2, i3}) * size;
    bytes->insert(bytes->end(), at, at + size);
  });
}

namespace {

/// What a run is planned from: the request's own extents, or larger ones.
AttentionKey planned_key(AttentionParams params, const RunOptions& options) {
  if (options.larger) {
    params.batch += 1;
    params.seqlen_q = 2 * params.seqlen_q + 3;
    params.seqlen_kv = 3 * params.seqlen_kv + 5;
  }
  return AttentionKey::make(params, false).value();
}

Env env_of(const RunOptions& options) {
  Env env;
  env.concurrency = options.concurrency;
  env.isa = options.isa;
  return env;
}

/// Calls execute(launch) with exactly the workspace that the plan states.
template <class Execute>
void run_planned(const KernelPlan& plan, const RunOptions& options, Execute execute) {
  EXPECT_EQ(plan.isa, cpu::kernel_isa(options.isa));
  EXPECT_EQ(plan.workspace_bytes % 64, 0);
  GuardedBuffer workspace(static_cast<std::size_t>(plan.workspace_bytes), true, 64);
  if (plan.workspace_bytes > 0) std::memset(workspace.data(), options.poison, workspace.size());
  TestExecutor executor(options.threads);
  Launch launch;
  launch.executor = &executor;
  launch.workspace = {workspace.data(), workspace.size()};
  const Status status = execute(launch);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_LE(executor.most_slots, plan.slots);
}

}  // namespace

std::vector<char> run_backend(const Backend& backend, const AttentionRequest& request,
                              const RunOptions& options) {
  Expected<AttentionParams> params = describe(request);
  EXPECT_TRUE(params.ok()) << params.status().to_string();
  if (!params) return {};
  const AttentionKey key = planned_key(*params, options);
  const Env env = env_of(options);
  std::vector<Refusal> refusals;
  EXPECT_TRUE(backend.supports(key, env, &refusals))
      << to_string(*params) << ": " << (refusals.empty() ? "?" : to_string(refusals.front()));
  if (!refusals.empty()) return {};
  Expected<KernelPlan> plan = backend.plan(key, env);
  EXPECT_TRUE(plan.ok());
  EXPECT_EQ(plan->workspace_bytes, backend.workspace_bytes(key, env));
  run_planned(*plan, options, [&](const Launch& launch) {
    return backend.execute(*plan, *params, request, launch);
  });
  std::vector<char> bytes;
  append_bytes(request.out, &bytes);
  append_bytes(request.lse, &bytes);
  append_bytes(request.saved_stats, &bytes);
  append_bytes(request.scores_out, &bytes);
  return bytes;
}

std::vector<char> run_backward(const Backend& backend, const AttentionGradRequest& request,
                               const RunOptions& options) {
  AttentionRequest forward = request;
  forward.options.needs_grad = true;
  Expected<AttentionParams> params = describe(forward);
  EXPECT_TRUE(params.ok()) << params.status().to_string();
  if (!params) return {};
  const AttentionKey key = planned_key(*params, options);
  const Env env = env_of(options);
  EXPECT_TRUE(backend.supports(key, env, nullptr)) << to_string(*params);
  Expected<KernelPlan> plan = backend.plan_backward(key, env);
  EXPECT_TRUE(plan.ok());
  if (!plan) return {};
  EXPECT_EQ(plan->workspace_bytes, backend.backward_workspace_bytes(key, env));
  run_planned(*plan, options, [&](const Launch& launch) {
    return backend.execute_backward(*plan, *params, request, request, launch);
  });
  std::vector<char> bytes;
  for (const TensorView& view :
       {request.d_q, request.d_k, request.d_v, request.d_bias, request.d_sinks}) {
    append_bytes(view, &bytes);
  }
  return bytes;
}

namespace {

void add_diagonal_features(AttentionCase* c) {
  AttentionRequest& r = c->request;
  const Shape& s = c->shape;
  const std::int64_t far = std::max(s.sq, s.skv);
  if (c->chance(0.35)) r.options.is_causal = true;
  if (c->chance(0.25)) r.options.window_left = c->pick(0, far);
  if (!r.options.is_causal && c->chance(0.25)) r.options.window_right = c->pick(0, far);
  if (c->chance(0.25)) {
    r.alibi_slopes = c->chance(0.5) ? c->tensor(Dtype::kF32, {s.hq}, false)
                                    : c->tensor(Dtype::kF32, {s.b, s.hq}, false, 1);
    if (r.alibi_slopes.rank == 2) r.alibi_slopes.shape[0] = s.b;
    c->fill_normal(r.alibi_slopes, 0.3);
  }
  switch (c->pick(0, 3)) {
    case 0: r.options.diagonal = Diagonal::kTopLeft; break;
    case 1: r.options.diagonal = Diagonal::kBottomRight; break;
    default:
      r.options.diagonal = Diagonal::kOffset;
      r.diagonal_offset = c->pick(-far, far);
      if (c->chance(0.5)) {
        r.diagonal_offsets = c->tensor(Dtype::kI64, {s.b}, false);
        c->fill_ints(r.diagonal_offsets, -far, far);
        r.diagonal_offset = 0;
      }
  }
}

void add_data_features(AttentionCase* c, Dtype dtype) {
  AttentionRequest& r = c->request;
  const Shape& s = c->shape;
  if (c->chance(0.3)) {
    r.seqlens_q = c->tensor(Dtype::kI32, {s.b}, false);
    c->fill_ints(r.seqlens_q, 0, s.sq);
  }
  if (c->chance(0.3)) {
    r.seqlens_kv = c->tensor(Dtype::kI32, {s.b}, false);
    c->fill_ints(r.seqlens_kv, 0, s.skv);
  }
  const auto dims = [&] { return static_cast<unsigned>(c->pick(0, 15)); };
  if (c->chance(0.3)) {
    r.attn_mask = c->tensor(c->chance(0.5) ? Dtype::kBool : Dtype::kU8, {s.b, s.hq, s.sq, s.skv},
                            false, dims());
    c->fill_mask(r.attn_mask, c->chance(0.2) ? 0.03 : 0.6);
  }
  if (c->chance(0.3)) {
    const Dtype dtypes[3] = {Dtype::kF32, Dtype::kF64, dtype};
    r.attn_bias = c->tensor(dtypes[c->pick(0, 2)], {s.b, s.hq, s.sq, s.skv}, false, dims());
    c->fill_normal(r.attn_bias);
    for_each_index(r.attn_bias, [&](auto... i) {
      if (c->chance(0.2)) put(r.attn_bias, -kInfinity, i...);
    });
  }
  if (c->chance(0.2)) {
    r.segment_ids_q = c->tensor(Dtype::kI32, {s.b, s.sq}, false, 1);
    r.segment_ids_kv = c->tensor(Dtype::kI32, {s.b, s.skv}, false);
    r.segment_ids_q.shape[0] = s.b;
    c->fill_ints(r.segment_ids_q, -1, 1);
    c->fill_ints(r.segment_ids_kv, -1, 1);
  }
  if (c->chance(0.2)) {
    r.sinks = c->tensor(Dtype::kF32, {s.hq}, false);
    c->fill_normal(r.sinks);
    if (s.hq > 0 && c->chance(0.3)) put(r.sinks, -kInfinity, 0);
  }
}

}  // namespace

std::unique_ptr<AttentionCase> random_case(Dtype dtype, std::uint64_t seed, bool scores) {
  std::mt19937_64 rng(seed);
  const auto pick = [&](std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(rng);
  };
  Shape s;
  const std::int64_t groups[4] = {1, 1, 2, 3};
  s.b = pick(1, 3);
  s.hkv = pick(1, 2);
  s.hq = s.hkv * groups[pick(0, 3)];
  s.sq = pick(0, 9) == 0 ? 0 : pick(1, pick(0, 1) == 0 ? 5 : 80);
  s.skv = pick(0, 9) == 0 ? 0 : pick(1, pick(0, 1) == 0 ? 20 : 210);
  s.d = pick(1, 40);
  s.dv = pick(0, 1) == 0 ? s.d : pick(1, 40);
  auto c = std::make_unique<AttentionCase>(s, dtype, rng());
  AttentionRequest& r = c->request;
  if (c->chance(0.3)) r.lse = TensorView{};
  add_diagonal_features(c.get());
  add_data_features(c.get(), dtype);
  if (c->chance(0.25)) r.options.softcap = 2.0;
  if (c->chance(0.2)) r.options.softmax_scale = c->chance(0.5) ? -0.3 : 0.0;
  if (c->chance(0.25)) {
    r.options.dropout_p = 0.3;
    r.rng_seed = rng();
    r.rng_offset = rng();
  }
  if (scores && c->chance(0.5)) {
    const Dtype wide = dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
    r.scores_out = c->tensor(wide, {s.b, s.hq, s.sq, s.skv}, false);
    r.options.scores_kind = static_cast<ScoresKind>(c->pick(1, 3));
  }
  if (c->chance(0.5)) c->poison_hidden();
  return c;
}

}  // namespace regard::test
