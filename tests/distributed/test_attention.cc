#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "ranks.h"

// Ranks give what one rank gives: forward, backward, counts.

namespace regard {
namespace {

using distributed::Algorithm;
using distributed::LayoutKind;
using test::Problem;

std::string name_of(const Problem& p, const distributed::Options& o, int ranks) {
  return std::to_string(ranks) + " ranks " + to_string(o.algorithm) + " " + to_string(o.layout) +
         " sq" + std::to_string(p.sq) + " skv" + std::to_string(p.skv) + " hq" +
         std::to_string(p.hq) + " hkv" + std::to_string(p.hkv) + " left" +
         std::to_string(p.options.window_left) + " right" + std::to_string(p.options.window_right) +
         " causal" + std::to_string(p.options.is_causal) + " dropout" +
         std::to_string(p.options.dropout_p) + " documents" + std::to_string(p.cu_q.size()) +
         " seed" + std::to_string(p.seed);
}

double largest(const TensorView& view) {
  const distributed::Tensor zero(view.dtype, {view.shape[0], view.shape[1], view.shape[2],
                                              view.rank == 4 ? view.shape[3] : 1});
  return test::distance(view, zero.view());
}

/// f64 to 1e-12, counts exactly.
void expect_equal(const Problem& p, const distributed::Options& options, int ranks, bool backward) {
  SCOPED_TRACE(name_of(p, options, ranks));
  test::Tensors alone = test::make_whole(p), spread = test::make_whole(p);
  const Status one = test::run_alone(p, alone, backward);
  ASSERT_TRUE(one.ok()) << one.to_string();
  const test::RankRun run = test::run_on_ranks(p, options, ranks, &spread, backward);
  ASSERT_TRUE(run.status.ok()) << run.status.to_string();
  EXPECT_LE(test::distance(alone.out.view(), spread.out.view()), 1e-12);
  EXPECT_LE(test::distance(alone.lse.view(), spread.lse.view()), 1e-12);
  EXPECT_EQ(run.forward, run.plan->chosen().forward);
  if (!backward) return;
  const double scale = std::max(1.0, largest(alone.d_k.view()));
  EXPECT_LE(test::distance(alone.d_q.view(), spread.d_q.view()), 1e-12 * scale);
  EXPECT_LE(test::distance(alone.d_k.view(), spread.d_k.view()), 1e-12 * scale);
  EXPECT_LE(test::distance(alone.d_v.view(), spread.d_v.view()), 1e-12 * scale);
  if (p.sinks) {
    for (std::int64_t h = 0; h < p.hq; ++h) {
      const float a = static_cast<const float*>(alone.d_sinks.view().data)[h];
      const float b = static_cast<const float*>(spread.d_sinks.view().data)[h];
      EXPECT_NEAR(a, b, 1e-5 * std::max(1.0F, std::abs(a)));
    }
  }
  EXPECT_EQ(run.backward, run.plan->chosen().backward);
}

TEST(Attention, RingOfTwoIsOneRank) {
  Problem p;
  p.options.is_causal = true;
  p.options.diagonal = Diagonal::kTopLeft;
  auto options = test::options_of(p);
  options.algorithm = Algorithm::kP2p;
  expect_equal(p, options, 2, true);
}

TEST(Attention, GradientsOfSinksAreThoseOfTheRanksOwnRows) {
  Problem p;
  p.sq = p.skv = 30;
  p.sinks = true;
  for (const Algorithm algorithm : {Algorithm::kP2p, Algorithm::kAllGather, Algorithm::kA2a}) {
    auto options = test::options_of(p);
    options.algorithm = algorithm;
    test::Tensors spread = test::make_whole(p);
    const test::RankRun run = test::run_on_ranks(p, options, 2, &spread, true);
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    for (int rank = 0; rank < 2; ++rank) {
      test::Tensors alone = test::make_whole(p);  // other ranks' rows of d_out are 0
      const TensorView others = distributed::rows_of(alone.d_out.view(), rank == 0 ? 15 : 0, 15);
      test::copy(test::allocate(p, 15, 15).d_out.view(), others);
      ASSERT_TRUE(test::run_alone(p, alone, true).ok());
      for (std::int64_t h = 0; h < p.hq; ++h) {
        const float expected = static_cast<const float*>(alone.d_sinks.view().data)[h];
        EXPECT_NE(expected, 0.0F);
        EXPECT_NEAR(run.d_sinks[static_cast<std::size_t>(2 * h + rank)], expected,
                    1e-5 * std::max(1.0F, std::abs(expected)));
      }
    }
  }
}

double largest_difference(const test::Tensors& a, const test::Tensors& b) {
  double most = 0.0;
  for (auto tensor :
       {&test::Tensors::out, &test::Tensors::d_q, &test::Tensors::d_k, &test::Tensors::d_v}) {
    const double scale = std::max(1.0, largest((a.*tensor).view()));
    most = std::max(most, test::distance((a.*tensor).view(), (b.*tensor).view()) / scale);
  }
  return most;
}

TEST(Attention, EightBitFloatsWithDescalesAreThoseOfOneRank) {
  Problem p;
  p.sq = p.skv = 131;
  p.hq = 8;
  p.hkv = 4;
  p.descales = true;
  p.options.is_causal = true;
  p.options.diagonal = Diagonal::kTopLeft;
  p.options.dtype_gradients = Dtype::kF32;
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kF32}) {
    for (const auto algorithm :
         {Algorithm::kP2p, Algorithm::kAllGather, Algorithm::kA2a, Algorithm::kA2aP2p}) {
      p.dtype = dtype;
      p.options.dtype_d_out = is_f8(dtype) ? Dtype::kF8E5M2 : dtype;
      p.options.dropout_p = algorithm == Algorithm::kAllGather ? 0.25 : 0.0;
      auto options = test::options_of(p);
      options.algorithm = algorithm;
      options.layout = LayoutKind::kZigzag;
      options.topology = {2, 2};
      SCOPED_TRACE(name_of(p, options, 4) + " " + to_string(dtype));
      test::Tensors alone = test::make_whole(p), spread = test::make_whole(p);
      const Status one = test::run_alone(p, alone, true);
      ASSERT_TRUE(one.ok()) << one.to_string();
      const test::RankRun run = test::run_on_ranks(p, options, 4, &spread, true);
      ASSERT_TRUE(run.status.ok()) << run.status.to_string();
      EXPECT_LE(largest_difference(alone, spread), 2e-6);
      EXPECT_EQ(run.forward, run.plan->chosen().forward);
      EXPECT_EQ(run.backward, run.plan->chosen().backward);
    }
  }
}

TEST(Attention, KeysOfEightBitsTravelAsSuch) {
  Problem p;
  p.dtype = Dtype::kF8E4M3;
  auto options = test::options_of(p);
  options.algorithm = Algorithm::kP2p;
  test::Tensors spread = test::make_whole(p);
  const test::RankRun run = test::run_on_ranks(p, options, 2, &spread, false);
  ASSERT_TRUE(run.status.ok()) << run.status.to_string();
  // Two heads of 32 keys and values of 16 bytes each.
  const distributed::Traffic each{1, 2 * 32 * 2 * 16};
  EXPECT_EQ(run.forward, (std::vector<distributed::Traffic>{each, each}));
}

/// One entry after the other: rows [e * S, (e + 1) * S) are those of batch entry e.
TensorView by_entry(TensorView rows, std::int64_t entries) {
  rows.shape[0] = entries;
  rows.shape[2] /= entries;
  rows.strides[0] = rows.shape[2] * rows.strides[2];
  return rows;
}

TEST(Attention, DocumentsOfABatchAreSequencesOfTheirOwn) {
  Problem one;  // six packed sequences
  one.cu_q = one.cu_kv = {0, 20, 21, 50, 70, 71, 100};
  one.sq = one.skv = 100;
  one.options.dropout_p = 0.25;
  one.options.is_causal = true;
  one.options.diagonal = Diagonal::kTopLeft;
  one.options.score_function = Expression::parse("score*(1.0+0.1*b)+0.01*q_idx").value();
  Problem two = one;  // three of them in each of two batch entries
  two.batch = 2;
  two.cu_q = two.cu_kv = {0, 20, 21, 50};
  two.sq = two.skv = 50;
  for (const Algorithm algorithm : {Algorithm::kP2p, Algorithm::kA2a}) {
    test::Tensors alone = test::make_whole(one), spread = test::make_whole(two);
    ASSERT_TRUE(test::run_alone(one, alone, true).ok());
    for (auto tensor :
         {&test::Tensors::q, &test::Tensors::k, &test::Tensors::v, &test::Tensors::d_out}) {
      test::copy(by_entry((alone.*tensor).view(), 2), (spread.*tensor).view());
    }
    auto options = test::options_of(two);
    options.algorithm = algorithm;
    options.layout = LayoutKind::kPerDocument;
    const test::RankRun run = test::run_on_ranks(two, options, 2, &spread, true);
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    for (auto tensor :
         {&test::Tensors::out, &test::Tensors::d_q, &test::Tensors::d_k, &test::Tensors::d_v}) {
      const test::Tensors expected = test::allocate(two, two.sq, two.skv);
      test::copy(by_entry((alone.*tensor).view(), 2), (expected.*tensor).view());
      EXPECT_LE(test::distance((expected.*tensor).view(), (spread.*tensor).view()), 1e-12);
    }
  }
}

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, CasesAreThoseOfOneRank) {
  const int from = GetParam() * 50;
  for (int seed = from; seed < from + 50 && !HasFailure(); ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](int n) { return static_cast<std::int64_t>(random() % unsigned(n)); };
    const int ranks[] = {2, 3, 4, 7};
    const std::int64_t groups[] = {1, 2, 3};
    Problem p;
    p.seed = static_cast<std::uint64_t>(seed) + 1;
    p.hkv = below(3) + 1;
    p.hq = p.hkv * groups[below(3)];
    p.d = 8 + 4 * below(4);
    p.dv = 8 + 4 * below(3);
    const int most = below(25) == 0 ? 1001 : 120;  // long ones take long
    p.sq = below(8) == 0 ? below(8) : below(most);
    p.skv = below(3) == 0 ? below(most) : p.sq;
    p.batch = below(3) == 0 ? 2 : 1;
    const int n = ranks[below(4)];
    if (below(3) == 0) {
      p.batch = 1;
      p.cu_q = p.cu_kv = {0};
      const std::int64_t documents = below(4) + 1;
      for (std::int64_t x = 0; x < documents; ++x) {
        p.cu_q.push_back(p.cu_q.back() + below(40));
        p.cu_kv.push_back(p.cu_kv.back() +
                          (p.sq == p.skv ? p.cu_q.back() - p.cu_q[p.cu_q.size() - 2] : below(40)));
      }
      p.sq = p.cu_q.back();
      p.skv = p.cu_kv.back();
    }
    p.options.diagonal = below(2) == 0 ? Diagonal::kTopLeft : Diagonal::kBottomRight;
    if (below(2) == 0) p.options.is_causal = true;
    if (below(3) == 0) p.options.window_left = below(30);
    if (below(4) == 0 && !p.options.is_causal) p.options.window_right = below(30);
    if (below(4) == 0) p.options.softcap = 5.0;
    if (below(4) == 0) p.options.dropout_p = 0.25;
    p.alibi = below(4) == 0 && p.cu_q.empty();
    p.sinks = below(4) == 0;
    if (below(5) == 0) {
      p.options.score_function =
          Expression::parse("score+0.01*(q_idx-kv_idx)*(h+1)+0.001*q_pos+b+0.01*kv_len").value();
    }
    if (below(5) == 0) {
      p.options.mask_function = Expression::parse("(q_idx+2*kv_idx+h)%3!=0").value();
    }
    auto options = test::options_of(p);
    options.layout = static_cast<LayoutKind>(below(3));
    const Algorithm algorithms[] = {Algorithm::kP2p, Algorithm::kAllGather, Algorithm::kA2a,
                                    Algorithm::kA2aP2p, Algorithm::kAuto};
    options.algorithm = algorithms[below(5)];
    if (n == 4) options.topology = {2, 2};
    if (options.algorithm == Algorithm::kA2aP2p && (n != 4 || p.hq < 2)) {
      options.algorithm = Algorithm::kP2p;
    }
    if (options.algorithm == Algorithm::kA2a && p.hq < n) options.algorithm = Algorithm::kAllGather;
    if (below(3) == 0) options.limits.max_bytes = 1000;
    expect_equal(p, options, n, p.sq > 0 && p.skv > 0);
  }
}
INSTANTIATE_TEST_SUITE_P(All, Random, testing::Range(0, 10));

}  // namespace
}  // namespace regard
