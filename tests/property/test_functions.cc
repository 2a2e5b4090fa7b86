#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "oracle/number.h"
#include "property.h"
#include "regard/expression.h"
#include "tests/support/scratch.h"

// Score and mask functions: what equals the same edit by other means, the host language's function
// among them, and what decides no bit.

namespace regard {
namespace {

using conformance::Problem;
using test::largest_difference;
using test::Scratch;
using test::slice;
using test::unequal;

class ScoreFunctions : public test::Property {
 protected:
  using Request = AttentionGradRequest;

  static Expression parsed(const std::string& text) { return Expression::parse(text).value(); }

  /// Outputs of its own, as those that the request has; the saved statistics move with them.
  Request with_outputs(Request r) {
    const bool saves = r.saved.stats.present();
    tensors_.renew_outputs(&r);
    if (r.saved_stats.present()) r.saved_stats = tensors_.copy(r.saved_stats);
    if (saves) r.saved.stats = r.saved.kind == SavedContext::Kind::kLse ? r.lse : r.saved_stats;
    for (TensorView* view : {&r.d_q, &r.d_k, &r.d_v, &r.d_bias, &r.d_sinks, &r.d_captured0,
                             &r.d_captured1, &r.d_captured2}) {
      if (view->present()) *view = tensors_.copy(*view);
    }
    return r;
  }
  /// The forward, and the backward where there is one, in exactly the workspaces that are stated.
  void run(const Request& r, int workers = 3) {
    const auto context = test::make_context(GetParam().isa, workers);
    const Plan made = test::plan_forced(*context, r, GetParam());
    Scratch scratch(made.workspace_bytes());
    check(execute(made, r, scratch.launch));
    ASSERT_TRUE(scratch.intact());
    if (!r.options.needs_grad) return;
    Scratch backward(made.backward_workspace_bytes());
    check(execute_backward(made, r, r, backward.launch));
    ASSERT_TRUE(backward.intact());
  }
  Request run_anew(const Request& r, int workers = 3) {
    const Request fresh = with_outputs(r);
    run(fresh, workers);
    return fresh;
  }
  static void expect_same(const Request& a, const Request& b, const std::string& what) {
    EXPECT_EQ(unequal(a.out, b.out), "") << what;
    if (a.lse.present()) {
      EXPECT_EQ(unequal(a.lse, b.lse), "") << what;
    }
    if (!a.options.needs_grad) return;
    for (const auto view : {&GradBuffers::d_q, &GradBuffers::d_k, &GradBuffers::d_v,
                            &GradBuffers::d_bias, &GradBuffers::d_sinks, &GradBuffers::d_captured0,
                            &GradBuffers::d_captured1, &GradBuffers::d_captured2}) {
      if (!(a.*view).present()) continue;
      EXPECT_EQ(unequal(a.*view, b.*view), "") << what;
    }
  }

  /// A dense f32 tensor of small numbers.
  TensorView numbers(std::initializer_list<std::int64_t> shape, Dtype dtype = Dtype::kF32) {
    const TensorView view = tensors_.make(dtype, shape);
    int n = 0;
    conformance::for_each_element(view, [&](const auto&, unsigned char* at) {
      const double value = static_cast<double>((n * 37 + 11) % 97 - 48) / 32.0;
      oracle::encode(value, at, dtype);
      ++n;
    });
    return view;
  }
  static bool is_f64_alone(const char* text) {
    return std::string(text).find("f64") != std::string::npos;
  }
  bool supports_f64() const { return GetParam().backend.id == BackendId::kMath; }
};

const char* const kCalls[] = {
    "b2 hq4 hkv2 sq70 skv150 d24 f32 causal diag=br lse saved grad seed=1",
    "b2 hq3 hkv1 sq37 skv133 d17 dv23 bf16 softcap=3 sinks lse saved grad poison seed=2",
    "b3 hq2 sq60 skv131 d16 f16 lens window=50,9 diag=br alibi lse saved grad poison seed=3",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 bias mask dropout=0.3 lse saved grad poison seed=4",
    "b1 hq2 sq33 skv70 d16 f64 bias lse saved grad seed=5",
    "b2 hq8 hkv2 sq1 skv1100 d64 f32 causal diag=br lse seed=6",
    "b1 hq2 sq210 skv400 d8 bf16 lse saved grad seed=7",
};

// What multiplies scores by 1 and adds 0 changes no bit of a call whose scores are scaled first,
// narrow windows apart.
TEST_P(ScoreFunctions, IdentityChangesNothing) {
  for (const char* text : kCalls) {
    if (is_f64_alone(text) && !supports_f64()) continue;
    const Problem problem = problem_of(text);
    Request plain = problem.request();
    plain.sinks = tensors_.make(Dtype::kF32, {plain.q.shape[1]});  // scales them first
    if (plain.q.dtype == Dtype::kF64) continue;
    conformance::for_each_element(plain.sinks, [](const auto&, unsigned char* at) {
      oracle::encode(-std::numeric_limits<double>::infinity(), at, Dtype::kF32);
    });
    plain.d_sinks = {};
    plain.options.needs_grad = false;  // a backward scales them late without functions
    Request edited = plain;
    edited.options.score_function = parsed("where(kv_idx<0,0.0,score)");
    edited.options.mask_function = parsed("h>=0");
    expect_same_call(run_anew(plain), run_anew(edited), text);
  }
}

// ---- the host language's function

/// Multiplies and shifts as an expression does; counts the keys that it is given.
struct Scaling {
  float factor = 0.5f, shift = -0.75f;
  std::mutex mutex;
  std::vector<std::int64_t> rows;  // b, h, q, kv_begin, count of each call

  static void edit(void* self, float* scores, std::int64_t count, std::int64_t b, std::int64_t h,
                   std::int64_t q, std::int64_t kv_begin) {
    auto& s = *static_cast<Scaling*>(self);
    for (std::int64_t x = 0; x < count; ++x) {
      scores[x] = scores[x] * s.factor;
      scores[x] = scores[x] + s.shift * static_cast<float>(h);
      if ((kv_begin + x + q) % 7 == 0) scores[x] = -std::numeric_limits<float>::infinity();
    }
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.rows.insert(s.rows.end(), {b, h, q, kv_begin, count});
  }
  static void gradient(void* self, const float*, float* d_scores, std::int64_t count, std::int64_t,
                       std::int64_t, std::int64_t, std::int64_t) {
    for (std::int64_t x = 0; x < count; ++x) d_scores[x] *= static_cast<Scaling*>(self)->factor;
  }
  ScoreCallback callback() { return {edit, gradient, this}; }
};

constexpr const char* kScaling = "where((kv_idx+q_idx)%7==0,-inf,score*0.5+(-0.75)*h)";

TEST_P(ScoreFunctions, TheHostsFunctionIsTheExpression) {
  for (const char* text : kCalls) {
    if (is_f64_alone(text)) continue;
    const Problem problem = problem_of(text);
    Request by_expression = problem.request();
    by_expression.options.score_function = parsed(kScaling);
    Request by_host = problem.request();
    Scaling scaling;
    by_host.score_callback = scaling.callback();
    by_host = run_anew(by_host);
    expect_same(run_anew(by_expression), by_host, text);
    for (std::size_t x = 0; x < scaling.rows.size(); x += 5) {
      EXPECT_LT(scaling.rows[x], by_host.q.shape[0]);
      EXPECT_LT(scaling.rows[x + 1], by_host.q.shape[1]);
      EXPECT_LT(scaling.rows[x + 2], by_host.q.shape[2]);
      EXPECT_GE(scaling.rows[x + 3], 0);
      EXPECT_GE(scaling.rows[x + 4], 1);
      EXPECT_LE(scaling.rows[x + 3] + scaling.rows[x + 4], by_host.k.shape[2]);
    }
  }
}

// The host's edits come after the function: both are one expression.
TEST_P(ScoreFunctions, TheHostEditsWhatTheFunctionGives) {
  for (const char* text : kCalls) {
    if (is_f64_alone(text)) continue;
    const Problem problem = problem_of(text);
    Request one = problem.request();
    one.options.score_function =
        parsed("where((kv_idx+q_idx)%7==0,-inf,(score*score+0.25*q_idx)*0.5+(-0.75)*h)");
    Request both = problem.request();
    both.options.score_function = parsed("score*score+0.25*q_idx");
    Scaling scaling;
    both.score_callback = scaling.callback();
    one = run_anew(one);
    both = run_anew(both);
    EXPECT_EQ(unequal(one.out, both.out), "") << text;
    if (!one.options.needs_grad) continue;
    // The derivative of one is rounded in another order.
    for (const auto view : {&GradBuffers::d_q, &GradBuffers::d_k, &GradBuffers::d_v}) {
      const double tolerance = one.q.dtype == Dtype::kF32 ? 1e-5 : 0.05;
      EXPECT_LT(largest_difference(one.*view, both.*view), tolerance) << text;
    }
  }
}

// ---- captured tensors

TEST_P(ScoreFunctions, ACapturedMatrixIsABias) {
  const Problem problem = problem_of(
      "b2 hq4 hkv2 sq70 skv150 d24 f32 bias=1,H,Sq,Skv causal diag=br saved grad seed=1");
  const Request biased = problem.request();
  Request captured = biased;
  captured.attn_bias = captured.d_bias = {};
  captured.captured0 = biased.attn_bias;
  captured.captured0.rank = 3;  // [H,Sq,Skv]
  for (int i = 0; i < 3; ++i) {
    captured.captured0.shape[i] = biased.attn_bias.shape[i + 1];
    captured.captured0.strides[i] = biased.attn_bias.strides[i + 1];
  }
  captured.d_captured0 = tensors_.make(Dtype::kF32, {4, 70, 150});
  captured.options.score_function = parsed("score+r0[h,q_idx,kv_idx]");
  const Request a = run_anew(biased), b = run_anew(captured);
  EXPECT_EQ(unequal(a.out, b.out), "");
  EXPECT_EQ(unequal(a.d_q, b.d_q), "");
  EXPECT_EQ(unequal(a.d_k, b.d_k), "");
  EXPECT_LT(largest_difference(a.d_bias, b.d_captured0), 1e-6);
}

// A tensor of more elements than are summed at once: its gradient is a bias's, too.
TEST_P(ScoreFunctions, LargeCapturedTensorsAreSummedInRanges) {
  const Problem problem =
      problem_of("b1 hq5 hkv5 sq470 skv480 d8 f32 causal diag=br saved grad seed=3");
  Request r = problem.request();
  r.captured0 = numbers({5, 470, 480});  // 1.1 million
  r.d_captured0 = tensors_.make(Dtype::kF32, {5, 470, 480});
  r.captured1 = numbers({3});
  r.d_captured1 = tensors_.make(Dtype::kF32, {3});
  r.options.score_function = parsed("score+r0[h,q_idx,kv_idx]*0.5-r1[(h+q_idx)%3]*0.001*kv_idx");
  const Request ranges = run_anew(r);
  // The same in two halves of the heads.
  for (const std::int64_t begin : {0, 2}) {
    Request half = r;
    const std::int64_t count = begin == 0 ? 2 : 3;
    for (TensorView* view : {&half.q, &half.k, &half.v, &half.out, &half.saved_stats, &half.d_out,
                             &half.d_q, &half.d_k, &half.d_v, &half.saved.stats}) {
      if (view->present()) *view = tensors_.copy(slice(*view, 1, begin, count));
    }
    half.captured0 = tensors_.copy(slice(r.captured0, 0, begin, count), {0, 1, 2});
    half.d_captured0 = tensors_.make(Dtype::kF32, {count, 470, 480});
    half.options.score_function = parsed("score+r0[h,q_idx,kv_idx]*0.5-r1[(h+" +
                                         std::to_string(begin) + "+q_idx)%3]*0.001*kv_idx");
    half = run_anew(half);
    EXPECT_EQ(unequal(slice(ranges.out, 1, begin, count), half.out), "") << begin;
    EXPECT_LT(largest_difference(slice(ranges.d_captured0, 0, begin, count), half.d_captured0),
              1e-7);
  }
}

/// Central differences of the sum of d_out * out by an element.
TEST_P(ScoreFunctions, GradientsOfCapturedElementsAreDifferences) {
  for (const char* text : {"b2 hq4 hkv2 sq37 skv70 d16 f32 causal diag=br saved grad seed=9",
                           "b2 hq2 sq33 skv40 d16 f64 bias saved grad seed=5"}) {
    if (is_f64_alone(text) && !supports_f64()) continue;
    const Problem problem = problem_of(text);
    Request r = problem.request();
    const std::int64_t heads = r.q.shape[1];
    const Dtype dtype = r.q.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
    r.captured0 = numbers({heads}, dtype);
    r.captured1 = numbers({2, 5}, dtype);
    r.captured2 = tensors_.make(Dtype::kI32, {70});
    int n = 0;
    conformance::for_each_element(r.captured2, [&](const auto&, unsigned char* at) {
      const std::int32_t index = n++ * 3 % 5;
      std::memcpy(at, &index, sizeof(index));
    });
    r.d_captured0 = tensors_.make(dtype, {heads});
    r.d_captured1 = tensors_.make(dtype, {2, 5});
    r.options.score_function = parsed(
        "score*sigmoid(r0[h])+r1[b,i2[kv_idx]]*r0[(h+1)%2]*0.1+where(q_idx>kv_idx,r0[h],0.0)");
    const Request analytic = run_anew(r);
    const auto loss = [&](const Request& of) {
      double sum = 0.0;
      std::vector<double> d_out;
      conformance::for_each_element(of.d_out, [&](const auto&, unsigned char* at) {
        d_out.push_back(oracle::decode(at, of.d_out.dtype));
      });
      std::size_t x = 0;
      conformance::for_each_element(of.out, [&](const auto&, unsigned char* at) {
        sum += d_out[x++] * oracle::decode(at, of.out.dtype);
      });
      return sum;
    };
    for (const auto& [values, gradients] : {std::pair{analytic.captured0, analytic.d_captured0},
                                            std::pair{analytic.captured1, analytic.d_captured1}}) {
      for (std::int64_t x = 0; x < values.num_elements(); ++x) {
        auto* const at = static_cast<unsigned char*>(values.data) + x * size_of(dtype);
        const double value = oracle::decode(at, dtype), step = dtype == Dtype::kF64 ? 1e-5 : 0x1p-5;
        Request forward = analytic;
        forward.options.needs_grad = false;
        double losses[2];
        for (const int side : {0, 1}) {
          oracle::encode(value + (side == 0 ? -step : step), at, dtype);
          losses[side] = loss(run_anew(forward));
        }
        oracle::encode(value, at, dtype);
        const double expected = (losses[1] - losses[0]) / (2 * step);
        const double actual =
            oracle::decode(static_cast<unsigned char*>(gradients.data) + x * size_of(dtype), dtype);
        EXPECT_NEAR(actual, expected, dtype == Dtype::kF64 ? 1e-6 : 5e-3) << text << " " << x;
      }
    }
  }
}

// What no score depends on by a derivative has the gradient 0.
TEST_P(ScoreFunctions, ComparisonsHaveNoGradient) {
  const Problem problem = problem_of("b1 hq2 sq20 skv30 d8 f32 saved grad seed=9");
  Request r = problem.request();
  r.captured0 = numbers({2});
  r.d_captured0 = tensors_.make(Dtype::kF32, {2});
  r.options.score_function = parsed("where(r0[h]<0.1,score*0.5,score)");
  const Request done = run_anew(r);
  EXPECT_EQ(unequal(done.d_captured0,
                    [&] {
                      const TensorView zeros = tensors_.make(Dtype::kF32, {2});
                      std::memset(zeros.data, 0, 8);
                      return zeros;
                    }()),
            "");
}

// ---- what decides no bit

constexpr const char* kFunction =
    "where(abs(q_idx-kv_idx)%5==3,-inf,tanh(score)*r0[h]+r1[(q_idx+kv_idx)%9,b%2]*0.25)";

class FunctionInvariance : public ScoreFunctions {
 protected:
  Request request_of(const Problem& problem) {
    Request r = problem.request();
    r.captured0 = numbers({r.q.shape[1]});
    r.captured1 = numbers({9, 2}, Dtype::kBf16);
    if (r.options.needs_grad) {
      r.d_captured0 = tensors_.make(Dtype::kF32, {r.q.shape[1]});
      r.d_captured1 = tensors_.make(Dtype::kBf16, {9, 2});
    }
    r.options.score_function = parsed(kFunction);
    r.options.mask_function = parsed("(q_idx+kv_idx)%11!=4|h==0");
    return r;
  }
};

TEST_P(FunctionInvariance, BitsDoNotDependOnWorkers) {
  for (const char* text : kCalls) {
    if (is_f64_alone(text) && !supports_f64()) continue;
    const Problem problem = problem_of(text);
    const Request r = request_of(problem);
    const Request one = run_anew(r, 1);
    for (const int workers : {2, 5}) {
      expect_same(one, run_anew(r, workers),
                  std::string(text) + " on " + std::to_string(workers) + " workers");
    }
  }
}

TEST_P(FunctionInvariance, ABatchIsItsSequences) {
  const Problem problem =
      problem_of("b6 hq4 hkv2 sq65 skv127 d16 bf16 lens causal diag=br lse poison seed=2");
  Request whole = request_of(problem);
  whole.options.score_function =
      parsed("score*0.5+where(kv_len-q_len>2,0.01,0.02)*q_pos-r0[h]*r1[q_idx%9,0]");
  whole = run_anew(whole);
  for (std::int64_t b = 0; b < whole.q.shape[0]; ++b) {
    Request cut = whole;
    static_cast<AttentionRequest&>(cut) = test::single_sequence(whole, b);
    const Request alone = run_anew(cut);
    EXPECT_EQ(unequal(cut.out, alone.out), "") << b;
    EXPECT_EQ(unequal(cut.lse, alone.lse), "") << b;
  }
}

// Rows in a decode kernel, in row blocks and in larger calls see the same functions.
TEST_P(FunctionInvariance, QueriesOneByOneAreTheCall) {
  const Problem problem = problem_of("b1 hq4 hkv2 sq40 skv90 d16 f32 diag=30 causal lse seed=2");
  Request whole = request_of(problem);
  whole.captured1 = {};
  whole.options.score_function = parsed("tanh(score)*r0[h]+0.01*(q_pos-kv_idx)");
  whole.options.mask_function = parsed("(q_pos+kv_idx)%11!=4|h==0");
  whole = run_anew(whole);
  for (std::int64_t i = 0; i < 40; i += 13) {
    Request some = whole;
    static_cast<AttentionRequest&>(some) = test::some_queries(whole, i, i + 1);
    const Request alone = run_anew(some);
    EXPECT_LT(largest_difference(some.out, alone.out), 1e-6) << i;
  }
}

// NaN and infinities behind a mask function, and where a score function gives -inf.
TEST_P(FunctionInvariance, HiddenKeysMatterNot) {
  for (const char* text : {"b1 hq2 sq70 skv90 d16 f32 lse saved grad seed=2",
                           "b1 hq2 sq70 skv90 d16 bf16 lse saved grad seed=2",
                           "b2 hq2 sq1 skv90 d16 f32 lse seed=3"}) {
    const Problem problem = problem_of(text);
    for (const bool by_mask : {false, true}) {
      Request r = problem.request();
      const char* const hides = "kv_idx%10!=7";
      if (by_mask) {
        r.options.mask_function = parsed(hides);
        r.options.score_function = parsed("exp(score*0.1)-r0[h]");
      } else {
        r.options.score_function =
            parsed(std::string("where(") + hides + ",exp(score*0.1)-r0[h],-inf)");
      }
      r.captured0 = numbers({2});
      if (r.options.needs_grad) r.d_captured0 = tensors_.make(Dtype::kF32, {2});
      const Request clean = run_anew(r);
      r.k = tensors_.copy(r.k);
      r.v = tensors_.copy(r.v);
      const auto spoil = [](const std::int64_t(&index)[4], unsigned char* at, Dtype dtype) {
        if (index[2] % 10 != 7) return;
        oracle::encode(index[3] % 2 == 0 ? std::nan("") : HUGE_VAL, at, dtype);
      };
      for (const TensorView& view : {r.k, r.v}) {
        conformance::for_each_element(
            view, [&](const auto& index, unsigned char* at) { spoil(index, at, view.dtype); });
      }
      const Request spoiled = run_anew(r);
      const std::string what = std::string(text) + (by_mask ? " by mask" : " by score");
      EXPECT_EQ(unequal(clean.out, spoiled.out), "") << what;
      EXPECT_EQ(unequal(clean.lse, spoiled.lse), "") << what;
      if (!r.options.needs_grad) continue;
      EXPECT_EQ(unequal(clean.d_q, spoiled.d_q), "") << what;
      EXPECT_EQ(unequal(clean.d_captured0, spoiled.d_captured0), "") << what;
      EXPECT_EQ(unequal(clean.d_k, spoiled.d_k), "") << what;
    }
  }
}

REGARD_INSTANTIATE_PROPERTIES(ScoreFunctions);
REGARD_INSTANTIATE_PROPERTIES(FunctionInvariance);

}  // namespace
}  // namespace regard
