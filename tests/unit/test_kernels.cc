#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "attention_case.h"
#include "backends/cpu_efficient/backend.h"
#include "backends/cpu_flash/backend.h"
#include "backends/math/backend.h"
#include "cpu/kernel_isa.h"

namespace regard::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double unit_roundoff(Dtype dtype) { return std::ldexp(1.0, -1 - dtype_info(dtype).mantissa_bits); }

void expect_scores(const AttentionRequest& r, const ReferenceRow& row, double tolerance,
                   const std::int64_t (&at)[3]) {
  for (std::int64_t j = 0; j < r.k.shape[2]; ++j) {
    const auto n = static_cast<std::size_t>(j);
    const bool probs = r.options.scores_kind == ScoresKind::kProbs;
    const double expected = r.options.scores_kind == ScoresKind::kScaled ? row.scaled[n]
                            : probs                                      ? row.probs[n]
                                                                         : row.edited[n];
    const double actual = get(r.scores_out, at[0], at[1], at[2], j);
    if (std::isinf(expected)) {
      EXPECT_EQ(actual, expected) << j;
    } else {
      EXPECT_NEAR(actual, expected, probs ? tolerance : tolerance * (1 + row.score_size)) << j;
    }
  }
}

/// Holds what the backend wrote against the reference.
void expect_close(const AttentionRequest& r) {
  const double u =
      r.q.dtype == Dtype::kF64 ? unit_roundoff(Dtype::kF64) : unit_roundoff(Dtype::kF32);
  for (std::int64_t b = 0; b < r.out.shape[0]; ++b) {
    for (std::int64_t h = 0; h < r.out.shape[1]; ++h) {
      for (std::int64_t i = 0; i < r.out.shape[2]; ++i) {
        const ReferenceRow row = reference_row(r, b, h, i);
        SCOPED_TRACE("b " + std::to_string(b) + " h " + std::to_string(h) + " i " +
                     std::to_string(i));
        const double tolerance = 8 * u * (2 + row.score_size);
        const double drop = r.options.dropout_p > 0 ? 1 / (1 - r.options.dropout_p) : 1;
        for (std::int64_t x = 0; x < r.out.shape[3]; ++x) {
          const double expected = row.out[static_cast<std::size_t>(x)];
          const double rounding = unit_roundoff(r.out.dtype) * std::fabs(expected);
          ASSERT_NEAR(get(r.out, b, h, i, x), expected,
                      rounding * 1.01 + tolerance * row.max_v * drop + 1e-37);
        }
        if (r.scores_out.present()) expect_scores(r, row, tolerance, {b, h, i});
        if (!r.lse.present()) continue;
        const double lse = get(r.lse, b, h, i);
        if (std::isinf(row.lse)) {
          ASSERT_EQ(lse, row.lse);
        } else {
          ASSERT_NEAR(lse, row.lse, tolerance + 2 * u * std::fabs(row.lse));
        }
      }
    }
  }
}

struct Param {
  const Backend* backend;
  Dtype dtype;
  Isa isa;
};

// Every backend, dtype and instruction set that this machine has.
std::vector<Param> all_params() {
  const Backend* math = &math::backend();
  const Backend* efficient = &efficient::backend();
  const Backend* flash = &flash::backend();
  std::vector<Param> params;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > cpu::kernel_isa(read_env().isa_available)) continue;
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBf16, Dtype::kF16}) {
      params.push_back({math, dtype, isa});
      if (dtype == Dtype::kF64) continue;
      params.push_back({efficient, dtype, isa});
      params.push_back({flash, dtype, isa});
    }
  }
  return params;
}

class Kernels : public testing::TestWithParam<Param> {
 protected:
  const Backend& backend() const { return *GetParam().backend; }
  Dtype dtype() const { return GetParam().dtype; }
  std::vector<char> run(const AttentionRequest& request, RunOptions options = {}) const {
    options.isa = GetParam().isa;
    return run_backend(backend(), request, options);
  }
  bool is_math() const { return backend().info().ref.id == BackendId::kMath; }
};

TEST_P(Kernels, RandomCasesMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    const auto c = random_case(dtype(), seed, is_math());
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(c->request);
    expect_close(c->request);
    if (HasFailure()) return;
  }
}

TEST_P(Kernels, BitsDependOnNeitherThreadsNorWorkspace) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const auto c = random_case(dtype(), seed, is_math());
    const std::vector<char> once = run(c->request);
    for (const std::int32_t slots : {1, 2, 3, 7}) {
      for (const int poison : {0x00, 0xff}) {
        const RunOptions options{slots, slots > 1 && poison == 0, poison};
        ASSERT_EQ(run(c->request, options), once)
            << "seed " << seed << " slots " << slots << " poison " << poison;
      }
    }
    ASSERT_EQ(run(c->request, {3, false, 0xa5, true}), once)
        << "seed " << seed << " in a larger plan";
  }
}

// The sequence alone, and in a batch with others: the same bits.
TEST_P(Kernels, BitsDependOnNoOtherSequence) {
  AttentionCase c({3, 4, 2, 37, 150, 24, 16}, dtype(), 5);
  AttentionRequest& r = c.request;
  r.seqlens_q = c.tensor(Dtype::kI32, {3}, false);
  r.seqlens_kv = c.tensor(Dtype::kI32, {3}, false);
  c.fill_ints(r.seqlens_q, 5, 37);
  c.fill_ints(r.seqlens_kv, 60, 150);
  r.options.is_causal = true;
  r.options.diagonal = Diagonal::kBottomRight;
  run(r);
  for (std::int64_t b = 0; b < 3; ++b) {
    const auto rows = static_cast<std::int64_t>(get(r.seqlens_q, b));
    const auto keys = static_cast<std::int64_t>(get(r.seqlens_kv, b));
    AttentionRequest alone;
    alone.options = r.options;
    const auto part = [b](TensorView view, std::int64_t extent) {
      view.data = static_cast<char*>(view.data) + b * view.strides[0] * size_of(view.dtype);
      view.shape[0] = 1;
      view.shape[2] = extent;
      return view;
    };
    alone.q = part(r.q, rows);
    alone.k = part(r.k, keys);
    alone.v = part(r.v, keys);
    alone.out = c.tensor(dtype(), {1, 4, rows, 16}, true);
    run(alone);
    std::vector<char> expected, actual;
    append_bytes(alone.out, &expected);
    append_bytes(part(r.out, rows), &actual);
    EXPECT_EQ(expected, actual) << b;
  }
}

// Skipped tiles and tiles that a mask hides give the same bits.
TEST_P(Kernels, EmptyTilesEqualMaskedOnes) {
  AttentionCase c({1, 2, 1, 90, 200, 16, 16}, dtype(), 6);
  AttentionRequest& r = c.request;
  r.options.window_left = 70;
  r.options.window_right = 3;
  r.options.diagonal = Diagonal::kTopLeft;
  const std::vector<char> skipped = run(r);
  r.attn_mask = c.tensor(Dtype::kBool, {1, 1, 90, 200}, false);
  for (std::int64_t i = 0; i < 90; ++i) {
    for (std::int64_t j = 0; j < 200; ++j) {
      put(r.attn_mask, j >= i - 70 && j <= i + 3 ? 1 : 0, 0, 0, i, j);
    }
  }
  r.options.window_left = r.options.window_right = kUnlimited;
  EXPECT_EQ(run(r), skipped);
  // NaN behind the mask takes the selecting product: still the same bits.
  c.poison_hidden();
  EXPECT_EQ(run(r), skipped);
}

TEST_P(Kernels, VisibleNanReachesItsRowsAlone) {
  AttentionCase c({1, 1, 1, 20, 90, 8, 8}, dtype(), 7);
  AttentionRequest& r = c.request;
  r.options.is_causal = true;
  r.options.diagonal = Diagonal::kTopLeft;
  put(r.v, std::nan(""), 0, 0, 12, 3);
  run(r);
  for (std::int64_t i = 0; i < 20; ++i) {
    for (std::int64_t d = 0; d < 8; ++d) {
      EXPECT_EQ(std::isnan(get(r.out, 0, 0, i, d)), i >= 12 && d == 3) << i << " " << d;
    }
  }
  put(r.k, std::nan(""), 0, 0, 15, 0);
  run(r);
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(std::isnan(get(r.out, 0, 0, i, 0)), i >= 15) << i;
    EXPECT_EQ(std::isnan(get(r.lse, 0, 0, i)), i >= 15) << i;
  }
}

TEST_P(Kernels, LowestFiniteBiasIsANumber) {
  for (const Dtype bias : {Dtype::kF32, Dtype::kF64}) {
    AttentionCase c({1, 1, 1, 3, 70, 8, 8}, dtype(), 8);
    AttentionRequest& r = c.request;
    r.attn_bias = c.tensor(bias, {1, 1, 3, 70}, false);
    const double lowest = bias == Dtype::kF64 ? std::numeric_limits<double>::lowest()
                                              : std::numeric_limits<float>::lowest();
    for (std::int64_t j = 0; j < 70; ++j) {
      put(r.attn_bias, lowest, 0, 0, 0, j);
      put(r.attn_bias, j % 2 == 0 ? lowest : 0.0, 0, 0, 1, j);
      put(r.attn_bias, -kInfinity, 0, 0, 2, j);
    }
    run(r);
    for (std::int64_t d = 0; d < 8; ++d) {
      double mean = 0.0;
      for (std::int64_t j = 0; j < 70; ++j) mean += get(r.v, 0, 0, j, d) / 70;
      EXPECT_NEAR(get(r.out, 0, 0, 0, d), mean, 2e-6 + unit_roundoff(dtype())) << d;
      EXPECT_EQ(get(r.out, 0, 0, 2, d), 0.0);
      EXPECT_TRUE(std::isfinite(get(r.out, 0, 0, 1, d)));
    }
    EXPECT_EQ(get(r.lse, 0, 0, 2), -kInfinity);
  }
}

TEST_P(Kernels, LargeScores) {
  AttentionCase c({1, 2, 2, 33, 130, 32, 32}, dtype(), 9);
  AttentionRequest& r = c.request;
  c.fill_normal(r.q, 8.0);
  c.fill_normal(r.k, 8.0);
  r.options.softmax_scale = 1.0;  // |score| up to about 1,200
  run(r);
  expect_close(r);
}

TEST_P(Kernels, HostileOffsetsAndWindows) {
  const std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t offset : {kMin, kMin + 1, kMax - 1, kMax}) {
    AttentionCase c({1, 1, 1, 9, 30, 8, 8}, dtype(), 10);
    AttentionRequest& r = c.request;
    r.options.diagonal = Diagonal::kOffset;
    r.diagonal_offset = offset;
    r.options.window_left = offset > 0 ? kMax : kUnlimited;
    r.options.window_right = offset < 0 ? kMax : kUnlimited;
    run(r);
    for (std::int64_t i = 0; i < 9; ++i) {
      // kMax - kMax + i: keys from i on; kMin + kMax + i: keys up to i - 1.
      const std::int64_t from = offset > 0 ? i + (offset - kMax) : 0;
      const std::int64_t to = offset < 0 ? i + (offset + kMax) : 29;
      EXPECT_EQ(std::isinf(get(r.lse, 0, 0, i)), from > to) << offset << " " << i;
    }
  }
}

void PrintTo(const Param& p, std::ostream* out) {
  *out << to_string(p.backend->info().ref) << " " << to_string(p.dtype) << " " << to_string(p.isa);
}

std::string name_of(const testing::TestParamInfo<Param>& info) {
  const Param& p = info.param;
  return to_string(p.backend->info().ref) + "_" + to_string(p.dtype) + "_" + to_string(p.isa);
}
INSTANTIATE_TEST_SUITE_P(All, Kernels, testing::ValuesIn(all_params()), name_of);

TEST(Efficient, WorkspaceIsIndependentOfLengthsAndUnderAMegabyteASlot) {
  struct Row {
    Dtype dtype;
    Isa isa;
  };
  for (const Row row : {Row{Dtype::kF32, Isa::kScalar}, Row{Dtype::kBf16, Isa::kScalar},
                        Row{Dtype::kF32, Isa::kAvx2}, Row{Dtype::kBf16, Isa::kAvx2}}) {
    Env env;
    env.concurrency = 4;
    env.isa = row.isa;
    for (const std::int64_t head_dim : {1, 64, 128, 256, 576}) {
      AttentionParams p;
      p.num_heads_q = p.num_heads_kv = 8;
      p.seqlen_q = 64;
      p.dtype_q = p.dtype_kv = p.dtype_out = row.dtype;
      p.head_dim_qk = p.head_dim_v = head_dim;
      std::int64_t bytes[2] = {};
      int n = 0;
      for (const std::int64_t skv : {1024, 65536}) {
        p.seqlen_kv = skv;
        canonicalize(p);
        bytes[n++] = efficient::backend().workspace_bytes(*AttentionKey::make(p, false), env);
      }
      EXPECT_EQ(bytes[0], bytes[1]);
      EXPECT_LT(bytes[0] / 4, 1000 * 1000) << head_dim;
    }
  }
}

}  // namespace
}  // namespace regard::test
