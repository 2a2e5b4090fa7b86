#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "attention_case.h"
#include "backends/math/backend.h"
#include "cpu/kernel_isa.h"

namespace regard::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Kind = SavedContext::Kind;

template <class F>
void for_each_element(const TensorView& view, F&& f) {
  std::int64_t n[4] = {1, 1, 1, 1};
  for (int i = 0; i < view.rank; ++i) n[i] = view.shape[i];
  for (std::int64_t x = 0; x < n[0] * n[1] * n[2] * n[3]; ++x) {
    f(x / (n[1] * n[2] * n[3]), x / (n[2] * n[3]) % n[1], x / n[3] % n[2], x % n[3]);
  }
}

std::vector<std::int64_t> shape_of(const TensorView& view) {
  return {view.shape, view.shape + view.rank};
}

/// A case with the tensors of its backward.
struct GradCase {
  explicit GradCase(std::unique_ptr<AttentionCase> from) : c(std::move(from)) {
    AttentionRequest& r = c->request;
    const Shape& s = c->shape;
    const Dtype wide = r.q.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
    r.saved_stats = c->tensor(wide, {s.b, s.hq, s.sq, 2}, false);
    if (!r.lse.present()) r.lse = c->tensor(wide, {s.b, s.hq, s.sq}, false);
    r.scores_out = TensorView{};
    r.options.scores_kind = ScoresKind::kNone;
    d_out = c->tensor(r.out.dtype, {s.b, s.hq, s.sq, s.dv}, true);
    c->fill_normal(d_out);
    if (c->chance(0.4)) {
      d_lse = c->tensor(wide, {s.b, s.hq, s.sq}, false);
      c->fill_normal(d_lse);
    }
  }

  /// The backward's request; with gradients for everything that can have one.
  AttentionGradRequest request(Kind kind) {
    AttentionGradRequest g;
    static_cast<AttentionRequest&>(g) = c->request;
    g.saved.kind = kind;
    g.saved.stats = kind == Kind::kStats ? g.saved_stats : g.lse;
    g.saved.rng_seed = g.rng_seed;
    g.saved.rng_offset = g.rng_offset;
    g.lse = g.saved_stats = TensorView{};
    g.d_out = d_out;
    g.d_lse = d_lse;
    const auto like = [&](const TensorView& view, bool dense) {
      if (!view.present()) return TensorView{};
      const TensorView gradient = c->tensor(view.dtype, shape_of(view), dense);
      for_each_element(gradient, [&](auto... i) { put(gradient, 77.0, i...); });
      return gradient;
    };
    g.d_q = like(g.q, true);
    g.d_k = like(g.k, true);
    g.d_v = like(g.v, true);
    g.d_bias = like(g.attn_bias, false);
    g.d_sinks = like(g.sinks, false);
    return g;
  }

  std::unique_ptr<AttentionCase> c;
  TensorView d_out, d_lse;
};

/// The same problem in f64, with dense copies of what f64 attention reads as f64.
GradCase in_f64(const GradCase& from) {
  const AttentionRequest& r = from.c->request;
  GradCase to(std::make_unique<AttentionCase>(from.c->shape, Dtype::kF64, 1));
  AttentionRequest& wide = to.c->request;
  const AttentionRequest own = wide;
  wide = r;
  wide.q = own.q, wide.k = own.k, wide.v = own.v, wide.out = own.out;
  wide.lse = own.lse, wide.saved_stats = own.saved_stats;
  const auto copy = [](const TensorView& a, const TensorView& b) {
    for_each_element(a, [&](auto... i) { put(b, get(a, i...), i...); });
  };
  copy(r.q, wide.q);
  copy(r.k, wide.k);
  copy(r.v, wide.v);
  copy(from.d_out, to.d_out);
  to.d_lse = TensorView{};
  if (from.d_lse.present()) {
    to.d_lse = to.c->tensor(Dtype::kF64, shape_of(from.d_lse), false);
    copy(from.d_lse, to.d_lse);
  }
  if (r.attn_bias.present()) {
    wide.attn_bias = to.c->tensor(Dtype::kF64, shape_of(r.attn_bias), false);
    copy(r.attn_bias, wide.attn_bias);
  }
  return to;
}

/// What the gradients are of: sum(out * d_out) + sum(lse * d_lse), by the f64 forward.
double loss(const GradCase& g) {
  const AttentionRequest& r = g.c->request;
  run_backend(math::backend(), r);
  double sum = 0.0;
  for_each_element(r.out, [&](auto... i) { sum += get(r.out, i...) * get(g.d_out, i...); });
  if (!g.d_lse.present()) return sum;
  for_each_element(r.lse, [&](auto... i) {
    const double lse = get(r.lse, i...);
    sum += std::isinf(lse) ? 0.0 : lse * get(g.d_lse, i...);
  });
  return sum;
}

double greatest(const TensorView& view) {
  double most = 0.0;
  for_each_element(view, [&](auto... i) { most = std::max(most, std::fabs(get(view, i...))); });
  return most;
}

/// Every element of `gradient` against the difference of the loss over a step of `input`.
void expect_differences(const GradCase& g, const TensorView& input, const TensorView& gradient,
                        const char* name) {
  if (!gradient.present()) return;
  constexpr double kStep = 0x1p-15;
  const double bound = 1e-6 * greatest(gradient) + 1e-9;
  for_each_element(gradient, [&](auto... i) {
    const double x = get(input, i...);
    if (!std::isfinite(x)) {  // a bias of -inf, or poison that no row sees
      EXPECT_EQ(get(gradient, i...), 0.0) << name;
      return;
    }
    put(input, x + kStep, i...);
    const double above = get(input, i...), loss_above = loss(g);
    put(input, x - kStep, i...);
    const double below = get(input, i...), loss_below = loss(g);
    put(input, x, i...);
    const double expected = (loss_above - loss_below) / (above - below);
    EXPECT_NEAR(get(gradient, i...), expected, bound) << name;
  });
}

/// A small case with random features, its forward done.
GradCase small_case(std::uint64_t seed) {
  std::unique_ptr<AttentionCase> c;
  for (std::uint64_t at = seed * 1000;; ++at) {
    c = random_case(Dtype::kF64, at, false);
    const Shape& s = c->shape;
    const TensorView& bias = c->request.attn_bias;
    if (bias.present() && bias.dtype != Dtype::kF64) continue;  // takes no small step
    bool expanded = false;  // one number in several elements, which no step moves alone
    for (int i = 0; i < bias.rank; ++i) {
      expanded = expanded || (bias.strides[i] == 0 && bias.shape[i] > 1);
    }
    if (expanded) continue;
    if (s.b * s.hq * s.sq * s.d + s.b * s.hkv * s.skv * (s.d + s.dv) <= 500) break;
  }
  GradCase g(std::move(c));
  run_backend(math::backend(), g.c->request);
  return g;
}

TEST(Gradients, AreTheDifferencesOfTheForward) {
  int with_bias = 0, with_sinks = 0, with_dropout = 0, with_softcap = 0, with_d_lse = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GradCase g = small_case(seed);
    const AttentionRequest& r = g.c->request;
    const AttentionGradRequest request = g.request(seed % 3 == 0 ? Kind::kLse : Kind::kStats);
    run_backward(math::backend(), request);
    expect_differences(g, r.q, request.d_q, "d_q");
    expect_differences(g, r.k, request.d_k, "d_k");
    expect_differences(g, r.v, request.d_v, "d_v");
    expect_differences(g, r.attn_bias, request.d_bias, "d_bias");
    expect_differences(g, r.sinks, request.d_sinks, "d_sinks");
    with_bias += r.attn_bias.present() ? 1 : 0;
    with_sinks += r.sinks.present() ? 1 : 0;
    with_dropout += r.options.dropout_p > 0 ? 1 : 0;
    with_softcap += r.options.softcap > 0 ? 1 : 0;
    with_d_lse += request.d_lse.present() ? 1 : 0;
    if (HasFailure()) return;
  }
  for (const int count : {with_bias, with_sinks, with_dropout, with_softcap, with_d_lse}) {
    EXPECT_GE(count, 3);
  }
}

struct Param {
  Dtype dtype;
  Isa isa;
};

std::vector<Param> all_params() {
  std::vector<Param> params;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > cpu::kernel_isa(read_env().isa_available)) continue;
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBf16, Dtype::kF16}) {
      params.push_back({dtype, isa});
    }
  }
  return params;
}

class GradKernels : public testing::TestWithParam<Param> {
 protected:
  Dtype dtype() const { return GetParam().dtype; }
  RunOptions options() const {
    RunOptions options;
    options.isa = GetParam().isa;
    return options;
  }
  void forward(const GradCase& g) const { run_backend(math::backend(), g.c->request, options()); }
  std::vector<char> backward(const AttentionGradRequest& request, RunOptions with = {}) const {
    with.isa = GetParam().isa;
    return run_backward(math::backend(), request, with);
  }
};

double unit_roundoff(Dtype dtype) { return std::ldexp(1.0, -1 - dtype_info(dtype).mantissa_bits); }

/// Greatest |terms| of a visible score, and of the values that probabilities weigh.
double score_size(const AttentionRequest& r) {
  double most = 1.0;
  for (std::int64_t b = 0; b < r.out.shape[0]; ++b) {
    for (std::int64_t h = 0; h < r.out.shape[1]; ++h) {
      for (std::int64_t i = 0; i < r.out.shape[2]; ++i) {
        most = std::max(most, reference_row(r, b, h, i).score_size);
      }
    }
  }
  return most;
}

double greatest_finite(const TensorView& view) {
  double most = 0.0;
  for_each_element(view, [&](auto... i) {
    const double x = std::fabs(get(view, i...));
    most = std::isfinite(x) ? std::max(most, x) : most;
  });
  return most;
}

/// Bounds on the gradients' errors. Every d_score is probs * (d_probs - delta), whose two terms are
/// rounded by themselves: where they cancel, the error stays that of their size.
struct ErrorBounds {
  ErrorBounds(const AttentionGradRequest& r, const AttentionGradRequest& truth) {
    const double u_sum = unit_roundoff(r.q.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32);
    relative = 16 * u_sum * (1 + score_size(r));
    const double drop = r.options.dropout_p > 0 ? 1 / (1 - r.options.dropout_p) : 1;
    const double terms = static_cast<double>(r.v.shape[3]) * greatest_finite(truth.d_out) * drop *
                         greatest_finite(r.v);
    d_score = (relative / 4 + unit_roundoff(r.out.dtype)) * terms;
    scale = std::fabs(r.options.softmax_scale.value_or(default_softmax_scale(r.q.shape[3])));
    rows = static_cast<double>(r.q.shape[0] * r.q.shape[1] * r.q.shape[2]);
  }
  double of(const TensorView& expected, Dtype dtype, double d_scores) const {
    return (relative + 2 * unit_roundoff(dtype)) * greatest(expected) + d_scores * d_score + 1e-37;
  }
  double relative, d_score, scale, rows;
};

/// max|a - e| over max|e|; NaN where one is NaN.
double difference(const TensorView& actual, const TensorView& expected) {
  double most = 0.0;
  for_each_element(actual, [&](auto... i) {
    const double d = std::fabs(get(actual, i...) - get(expected, i...));
    most = d > most || std::isnan(d) ? d : most;
  });
  return most == 0.0 ? 0.0 : most / greatest(expected);
}

void expect_close(const TensorView& actual, const TensorView& expected, double bound,
                  const char* name) {
  for_each_element(actual, [&](auto... i) {
    ASSERT_NEAR(get(actual, i...), get(expected, i...), bound) << name;
  });
}

void expect_close(const AttentionGradRequest& r, const AttentionGradRequest& truth) {
  const ErrorBounds bounds(r, truth);
  // A row's probabilities sum to 1; a column's, over all rows, to some root of them.
  const double column = std::sqrt(bounds.rows);
  const double keys = bounds.scale * greatest_finite(r.k);
  const double queries = bounds.scale * greatest_finite(r.q);
  const Dtype dtype = r.q.dtype;
  expect_close(r.d_q, truth.d_q, bounds.of(truth.d_q, dtype, keys), "d_q");
  expect_close(r.d_k, truth.d_k, bounds.of(truth.d_k, dtype, column * queries), "d_k");
  expect_close(r.d_v, truth.d_v, bounds.of(truth.d_v, dtype, 0.0), "d_v");
  if (r.d_bias.present()) {
    expect_close(r.d_bias, truth.d_bias, bounds.of(truth.d_bias, r.d_bias.dtype, column), "d_bias");
  }
  if (r.d_sinks.present()) {
    expect_close(r.d_sinks, truth.d_sinks, bounds.of(truth.d_sinks, Dtype::kF32, column),
                 "d_sinks");
  }
}

TEST_P(GradKernels, RandomCasesAreCloseToThoseInF64) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GradCase g(random_case(dtype(), seed, false));
    GradCase wide = in_f64(g);
    forward(g);
    run_backend(math::backend(), wide.c->request);
    const AttentionGradRequest request = g.request(seed % 3 == 0 ? Kind::kLse : Kind::kStats);
    const AttentionGradRequest truth = wide.request(Kind::kStats);
    backward(request);
    run_backward(math::backend(), truth);
    expect_close(request, truth);
    if (HasFailure()) return;
  }
}

TEST_P(GradKernels, BitsDependOnNeitherThreadsNorWorkspace) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    GradCase g(random_case(dtype(), seed, false));
    forward(g);
    const AttentionGradRequest request = g.request(Kind::kStats);
    const std::vector<char> once = backward(request);
    for (const std::int32_t slots : {1, 2, 3, 7}) {
      for (const int poison : {0x00, 0xff}) {
        const RunOptions with{slots, slots > 1 && poison == 0, poison};
        ASSERT_EQ(backward(request, with), once)
            << "seed " << seed << " slots " << slots << " poison " << poison;
      }
    }
    ASSERT_EQ(backward(request, {3, false, 0xa5, true}), once)
        << "seed " << seed << " in a larger plan";
  }
}

// ---- rows that see nothing, NaN behind masks

TEST_P(GradKernels, RowsThatSeeNothingHaveNoGradients) {
  GradCase g(std::make_unique<AttentionCase>(Shape{1, 2, 1, 20, 70, 8, 8}, dtype(), 3));
  AttentionCase* const c = g.c.get();
  AttentionRequest& r = c->request;
  g.d_lse = TensorView{};
  r.attn_mask = c->tensor(Dtype::kBool, {1, 1, 20, 70}, false);
  c->fill_mask(r.attn_mask, 0.5);
  for (std::int64_t j = 0; j < 70; ++j) put(r.attn_mask, 0, 0, 0, 4, j);
  const auto fill_row = [&](double q, double d_out) {
    for (std::int64_t x = 0; x < 2 * 8; ++x) {
      put(r.q, q, 0, x / 8, 4, x % 8);
      put(g.d_out, d_out, 0, x / 8, 4, x % 8);
    }
  };
  for (const bool with_sinks : {false, true}) {
    if (with_sinks) {
      r.sinks = c->tensor(Dtype::kF32, {2}, false);
      c->fill_normal(r.sinks);
    }
    fill_row(0.5, 0.5);
    forward(g);
    for (const Kind kind : {Kind::kStats, Kind::kLse}) {
      fill_row(0.5, 0.5);
      const AttentionGradRequest clean = g.request(kind);
      backward(clean);
      fill_row(kNan, kInfinity);  // what such a row holds reaches nobody
      const AttentionGradRequest request = g.request(kind);
      backward(request);
      for (std::int64_t x = 0; x < 2 * 8; ++x) {
        EXPECT_EQ(get(request.d_q, 0, x / 8, 4, x % 8), 0.0);
      }
      EXPECT_EQ(difference(request.d_q, clean.d_q), 0.0);
      EXPECT_EQ(difference(request.d_k, clean.d_k), 0.0);
      EXPECT_EQ(difference(request.d_v, clean.d_v), 0.0);
      if (with_sinks) {
        EXPECT_EQ(difference(request.d_sinks, clean.d_sinks), 0.0);
      }
    }
  }
}

// NaN in one row or key reaches the gradients of what it sees and is seen by, and no others.
TEST_P(GradKernels, NanStaysInFrontOfTheMask) {
  constexpr std::int64_t kRows = 70, kBad = 40;
  enum class Place { kQ, kK, kV, kDOut };
  for (const Place place : {Place::kQ, Place::kK, Place::kV, Place::kDOut}) {
    GradCase g(std::make_unique<AttentionCase>(Shape{1, 1, 1, kRows, kRows, 8, 8}, dtype(), 4));
    AttentionRequest& r = g.c->request;
    g.d_lse = TensorView{};
    r.options.is_causal = true;
    r.options.diagonal = Diagonal::kTopLeft;
    const TensorView& poisoned = place == Place::kQ   ? r.q
                                 : place == Place::kK ? r.k
                                 : place == Place::kV ? r.v
                                                      : g.d_out;
    const AttentionGradRequest clean = g.request(Kind::kStats);
    forward(g);
    backward(clean);
    put(poisoned, kNan, 0, 0, kBad, 3);
    const AttentionGradRequest request = g.request(Kind::kStats);
    forward(g);
    backward(request);
    const bool is_key = place == Place::kK || place == Place::kV;
    for (std::int64_t x = 0; x < kRows; ++x) {
      SCOPED_TRACE("place " + std::to_string(static_cast<int>(place)) + " row " +
                   std::to_string(x));
      // Row kBad sees keys up to itself; key kBad is seen by rows from itself on, each of which
      // makes all keys that it sees NaN.
      const bool query = is_key ? x >= kBad : x == kBad;
      const bool key = is_key || x <= kBad;
      EXPECT_EQ(std::isnan(get(request.d_q, 0, 0, x, 3)), query);
      EXPECT_EQ(std::isnan(get(request.d_k, 0, 0, x, 3)), key);
      if (!query) {
        EXPECT_EQ(get(request.d_q, 0, 0, x, 3), get(clean.d_q, 0, 0, x, 3));
      }
      if (!key) {
        EXPECT_EQ(get(request.d_k, 0, 0, x, 3), get(clean.d_k, 0, 0, x, 3));
        EXPECT_EQ(get(request.d_v, 0, 0, x, 3), get(clean.d_v, 0, 0, x, 3));
      }
    }
  }
}

// ---- what is saved

TEST_P(GradKernels, StatisticsHoldWhereLseCannot) {
  // Rows of the lowest finite bias: lse absorbs the logarithm of the sum, the statistics do not.
  const double u_sum = unit_roundoff(dtype() == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32);
  GradCase g(std::make_unique<AttentionCase>(Shape{1, 1, 1, 5, 70, 8, 8}, dtype(), 5));
  AttentionRequest& r = g.c->request;
  g.d_lse = TensorView{};
  const bool f64 = dtype() == Dtype::kF64;
  const double lowest =
      f64 ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
  r.attn_bias = g.c->tensor(f64 ? Dtype::kF64 : Dtype::kF32, {1, 1, 5, 70}, false);
  for_each_element(r.attn_bias, [&](auto... i) { put(r.attn_bias, lowest, i...); });
  forward(g);
  const AttentionGradRequest request = g.request(Kind::kStats);
  backward(request);
  for (std::int64_t j = 0; j < 70; ++j) {
    for (std::int64_t d = 0; d < 8; ++d) {
      double mean = 0.0, size = 0.0;
      for (std::int64_t i = 0; i < 5; ++i) {
        mean += get(g.d_out, 0, 0, i, d) / 70;
        size += std::fabs(get(g.d_out, 0, 0, i, d)) / 70;
      }
      const double bound = (16 * u_sum + unit_roundoff(dtype())) * size;
      EXPECT_NEAR(get(request.d_v, 0, 0, j, d), mean, bound);
    }
  }
  const AttentionGradRequest by_lse = g.request(Kind::kLse);
  backward(by_lse);
  EXPECT_NEAR(get(by_lse.d_v, 0, 0, 0, 0), 70 * get(request.d_v, 0, 0, 0, 0), 1e-1);
}

TEST_P(GradKernels, LseAloneAgreesWithTheStatistics) {
  const double u_sum = unit_roundoff(dtype() == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    GradCase g(random_case(dtype(), seed, false));
    forward(g);
    const AttentionGradRequest stats = g.request(Kind::kStats), lse = g.request(Kind::kLse);
    backward(stats);
    backward(lse);
    // lse is rounded at its own size, which may be that of the greatest score.
    const double bound = 2 * unit_roundoff(dtype()) + 64 * u_sum * (4 + score_size(stats));
    EXPECT_LE(difference(lse.d_v, stats.d_v), bound) << "seed " << seed;
  }
}

TEST_P(GradKernels, ACallersDeltaStandsForTheOutput) {
  GradCase g(std::make_unique<AttentionCase>(Shape{2, 4, 2, 30, 50, 16, 24}, dtype(), 6));
  AttentionRequest& r = g.c->request;
  forward(g);
  const AttentionGradRequest expected = g.request(Kind::kStats);
  backward(expected);
  AttentionGradRequest request = g.request(Kind::kStats);
  request.delta =
      g.c->tensor(dtype() == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32, {2, 4, 30}, false);
  for_each_element(request.delta,
                   [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t) {
                     double sum = 0.0;
                     for (std::int64_t d = 0; d < 24; ++d)
                       sum += get(r.out, b, h, i, d) * get(g.d_out, b, h, i, d);
                     put(request.delta, sum, b, h, i);
                   });
  for_each_element(r.out, [&](auto... i) { put(r.out, kNan, i...); });  // is not read
  backward(request);
  const double bound = dtype() == Dtype::kF64 ? 1e-13 : 2e-5 + 2 * unit_roundoff(dtype());
  EXPECT_LE(difference(request.d_q, expected.d_q), bound);
  EXPECT_LE(difference(request.d_k, expected.d_k), bound);
}

TEST_P(GradKernels, WideHeads) {
  for (const std::int64_t d : {192, 256, 512}) {
    GradCase g(std::make_unique<AttentionCase>(Shape{1, 2, 1, 30, 90, d, d}, dtype(), 7));
    g.c->request.options.is_causal = true;
    g.c->request.options.diagonal = Diagonal::kBottomRight;
    GradCase wide = in_f64(g);
    forward(g);
    run_backend(math::backend(), wide.c->request);
    const AttentionGradRequest request = g.request(Kind::kStats);
    const AttentionGradRequest truth = wide.request(Kind::kStats);
    backward(request);
    run_backward(math::backend(), truth);
    const double bound = dtype() == Dtype::kF64 ? 1e-13 : 2e-5 + 4 * unit_roundoff(dtype());
    EXPECT_LE(difference(request.d_q, truth.d_q), bound) << d;
    EXPECT_LE(difference(request.d_k, truth.d_k), bound) << d;
    EXPECT_LE(difference(request.d_v, truth.d_v), bound) << d;
  }
}

void PrintTo(const Param& p, std::ostream* out) {
  *out << to_string(p.dtype) << " " << to_string(p.isa);
}
std::string name_of(const testing::TestParamInfo<Param>& info) {
  return std::string(to_string(info.param.dtype)) + "_" + to_string(info.param.isa);
}
INSTANTIATE_TEST_SUITE_P(Math, GradKernels, testing::ValuesIn(all_params()), name_of);

}  // namespace
}  // namespace regard::test
