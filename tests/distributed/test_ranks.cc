#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/buffers.h"
#include "ranks.h"
#include "regard/case.h"
#include "regard/version.h"

// Layouts, plans that disagree, decoding.

namespace regard {
namespace {

using distributed::Algorithm;
using distributed::LayoutKind;
using test::Problem;

TEST(Layout, EveryRowBelongsToOneRank) {
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const int ranks = static_cast<int>(random() % 9) + 1;
    std::vector<std::int64_t> cu{0};
    for (unsigned x = random() % 5; x > 0; --x) cu.push_back(cu.back() + random() % 30);
    const std::int64_t length = cu.back();
    for (const LayoutKind kind :
         {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kPerDocument}) {
      const auto layout = distributed::make_layout(kind, length, ranks, cu).value();
      ASSERT_EQ(layout.size(), static_cast<std::size_t>(ranks));
      std::vector<int> owners(static_cast<std::size_t>(length), 0);
      for (const auto& pieces : layout) {
        std::int64_t end = 0;
        for (const distributed::Piece& piece : pieces) {
          EXPECT_GT(piece.length, 0);
          EXPECT_GE(piece.begin, end);
          end = piece.begin + piece.length;
          for (std::int64_t x = piece.begin; x < end; ++x) ++owners[static_cast<std::size_t>(x)];
        }
      }
      for (const int owner : owners) EXPECT_EQ(owner, 1);
    }
  }
}

TEST(Layout, RefusesWhatIsNoSequence) {
  EXPECT_EQ(distributed::make_layout(LayoutKind::kZigzag, -1, 2).status().message(),
            "[make_layout] seqlen (-1) must be at least 0");
  EXPECT_EQ(distributed::make_layout(LayoutKind::kZigzag, 4, 0).status().message(),
            "[make_layout] ranks (0) must be 1 to 1048576");
  const std::int64_t falling[] = {0, 3, 2, 4};
  EXPECT_EQ(distributed::make_layout(LayoutKind::kPerDocument, 4, 2, falling).status().message(),
            "[make_layout] cu_seqlens[2] (2) must be at least 3, the element before");
}

AttentionParams params_of(const char* text) { return parse_case(text).value().params; }

TEST(Buffers, BlocksThatWereLetGoAreUsedAgain) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const std::byte* const first = distributed::make_buffer(3 * kMiB).get();
  auto again = distributed::make_buffer(3 * kMiB - 1000);
  EXPECT_EQ(again.get(), first);
  auto beside = distributed::make_buffer(3 * kMiB);
  EXPECT_NE(beside.get(), first);
  again.reset();
  EXPECT_NE(distributed::make_buffer(kMiB).get(), first);  // not a quarter of a block unused
  EXPECT_EQ(distributed::make_buffer(3 * kMiB).get(), first);
  for (int x = 0; x < 64; ++x) distributed::make_buffer((40 + x % 2) * kMiB);  // more than is kept
  EXPECT_NE(distributed::make_buffer(0), nullptr);
}

TEST(Plan, ZigzagBalancesCausalWork) {
  for (const int ranks : {2, 4, 8, 64}) {
    for (const std::int64_t length : {4096, 16384}) {
      distributed::Options options;
      options.seqlen_q = options.seqlen_kv = length;
      options.algorithm = Algorithm::kP2p;
      const AttentionParams p = params_of("hq8 sq4096 skv4096 d64 causal diag=tl");
      options.layout = LayoutKind::kZigzag;
      EXPECT_LE(distributed::explain(p, options, ranks).value().chosen().balance, 1.03);
      options.layout = LayoutKind::kContiguous;
      EXPECT_GE(distributed::explain(p, options, ranks).value().chosen().balance, 1.4);
    }
  }
}

TEST(Plan, WindowsSendWhatIsSeenAlone) {
  distributed::Options options;
  options.seqlen_q = options.seqlen_kv = 1000;
  options.algorithm = Algorithm::kP2p;
  const AttentionParams p = params_of("hq1 sq1000 d4 window=9,0 diag=tl f32");
  const auto plan = distributed::explain(p, options, 4).value();
  // Each rank but the last sends its last 9 keys to the next one: 9 * (4 + 4) * 4 bytes.
  const distributed::Traffic one{1, 288}, none{};
  EXPECT_EQ(plan.chosen().forward, (std::vector<distributed::Traffic>{one, one, one, none}));
}

TEST(Plan, RefusesByName) {
  distributed::Options options;
  options.seqlen_q = options.seqlen_kv = 64;
  options.algorithm = Algorithm::kA2a;
  const AttentionParams p = params_of("hq2 hkv1 sq64 d8");
  EXPECT_EQ(distributed::explain(p, options, 4).status().message(),
            "[explain] comm (a2a) cannot be: a2a divides query heads among 4 ranks, got 2 heads; "
            "use p2p or all_gather; a2a+p2p needs a topology of at least 2x2, got 1x4");
}

TEST(Plan, ExplainRefusesFeaturesByName) {
  const auto refusal = [](const char* text) {
    distributed::Options options;
    const AttentionParams p = params_of(text);
    options.seqlen_q = p.seqlen_q;
    options.seqlen_kv = p.seqlen_kv;
    return distributed::explain(p, options, 4).status().message();
  };
  EXPECT_EQ(refusal("hq8 sq64 d8 mask"),
            "[explain] attn_mask (given) must be left out: it is not divided among ranks");
  for (const char* word :
       {"bias", "lens", "segments", "paged", "scores=probs", "hadamard", "append", "amax", "packed",
        "diag=seq causal", "saved grad", "callback"}) {
    EXPECT_NE(refusal((std::string("hq8 sq64 d64 f32 ") + word).c_str())
                  .find("must be left out: it is not divided among ranks"),
              std::string::npos)
        << word;
  }
  EXPECT_NE(refusal("hq8 sq64 d64 f8e4m3 quantized_probs").find("quantized_probs (given)"),
            std::string::npos);
  EXPECT_EQ(refusal("hq8 sq64 d64 f8e4m3 out=f8e4m3"),
            "[explain] dtype of out (f8e4m3) must be f64, f32, bf16 or f16");
  EXPECT_EQ(refusal("hq8 sq64 d64 f32 device=cuda"),
            "[explain] device (cuda) must be cpu on ranks");
  for (const char* text :
       {"hq8 hkv2 sq64 d64 f8e4m3 descales softcap=3 causal diag=tl grad",
        "hq8 sq64 skv32 d64 dv32 dropout=0.1 alibi sinks window=3,4 diag=br lse"}) {
    EXPECT_EQ(refusal(text), "");
  }
}

/// What rank 2 plans with, and both values in the keys' texts.
constexpr struct Deviation {
  void (*apply)(Problem&, distributed::Options&);
  const char *common, *other;
} kDeviations[] = {
    {[](Problem& p, auto&) { p.options.softcap = 3.0; }, "f64 lse ", "softcap=3"},
    {[](Problem& p, auto&) { p.options.dropout_p = 0.5; }, "f64 lse ", "dropout=0.5"},
    {[](Problem& p, auto&) { p.dtype = Dtype::kF32; }, " f64 ", " f32 "},
    {[](Problem& p, auto&) { p.hq = 4; }, " hq2 ", " hq4 "},
    {[](Problem&, auto& o) { o.algorithm = Algorithm::kAllGather; }, "=p2p", "=all_gather"}};

TEST(Plan, RanksThatDisagreeAreRefusedEverywhere) {
  for (const Deviation& deviation : kDeviations) {
    distributed::ThreadGroup group(3);
    std::vector<Status> statuses(3);
    test::on_ranks(3, [&](int r) {
      Problem p;
      auto options = test::options_of(p);
      options.algorithm = Algorithm::kP2p;
      if (r == 2) deviation.apply(p, options);
      const auto rows = distributed::make_layout(options.layout, p.sq, 3).value();
      const std::int64_t own = distributed::rows_of(rows[static_cast<std::size_t>(r)]);
      const test::Tensors x = test::allocate(p, own, own);
      statuses[static_cast<std::size_t>(r)] =
          distributed::plan(default_context(), group.communicator(r), x.request(p, false), options)
              .status();
    });
    for (const Status& s : statuses) {
      EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << deviation.other;
      const std::size_t other = s.message().find("), rank 2 (");
      EXPECT_LT(s.message().find(deviation.common), other) << s.message();
      EXPECT_NE(s.message().find(deviation.other, other), std::string::npos) << s.message();
    }
  }
}

/// plan() of rank 0, whose other rank states `text` as a program of its own would.
std::string plan_beside(const std::string& text) {
  Problem p;
  distributed::ThreadGroup group(2);
  std::vector<std::string> messages(2);
  test::on_ranks(2, [&](int r) {
    const auto options = test::options_of(p);
    const test::Tensors x = test::allocate(p, 32, 32);
    Context context;
    distributed::Communicator& own = group.communicator(r);
    const Status s = r == 0 ? distributed::plan(context, own, x.request(p, false), options).status()
                            : distributed::agree(own, options.limits, text, {}, "plan").status();
    messages[static_cast<std::size_t>(r)] = s.message();
  });
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

TEST(Plan, VersionsThatDifferAreRefused) {
  const std::string known = plan_beside("another program");
  const std::string begin = "ranks disagree: rank 0 (", end = "), rank 1 (another program)";
  const std::size_t from = known.find(begin), to = known.find(end);
  ASSERT_NE(to, std::string::npos) << known;
  std::string text = known.substr(from + begin.size(), to - from - begin.size());
  const std::string own = std::string(" version=") + version(), other = " version=0.0.9";
  const std::size_t at = text.find(own);
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(plan_beside(text), "");
  text.replace(at, own.size(), other);
  const std::string refused = plan_beside(text);
  EXPECT_NE(refused.find(own), std::string::npos) << refused;
  EXPECT_NE(refused.find(other), std::string::npos) << refused;
}

/// plan() on two ranks, of which rank r has the policies set by prepare(r, context, scopes).
std::vector<Status> plan_with_policies(
    const std::function<void(int, Context*, std::optional<ScopedPolicy>*)>& prepare) {
  Problem p;
  distributed::ThreadGroup group(2);
  std::vector<Status> statuses(2);
  test::on_ranks(2, [&](int r) {
    const auto options = test::options_of(p);
    const test::Tensors x = test::allocate(p, 32, 32);
    Context context;
    std::optional<ScopedPolicy> scope;
    prepare(r, &context, &scope);
    statuses[static_cast<std::size_t>(r)] =
        distributed::plan(context, group.communicator(r), x.request(p, false), options).status();
  });
  return statuses;
}

TEST(Plan, PoliciesThatDifferAreRefused) {
  using Scope = std::optional<ScopedPolicy>;
  const auto of_context = plan_with_policies([](int r, Context* context, Scope*) {
    Policy policy;
    policy.only = {{BackendId::kMath}};
    if (r == 1) context->set_policy(policy);
  });
  const auto of_scope = plan_with_policies([](int r, Context*, Scope* scope) {
    Policy policy;
    policy.max_error = r == 0 ? 0.5 : 0.25;
    scope->emplace(policy);
  });
  for (int r = 0; r < 2; ++r) {
    const Status& context = of_context[static_cast<std::size_t>(r)];
    EXPECT_EQ(context.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(context.message().find("policy: default), rank 1 ("), std::string::npos)
        << context.message();
    EXPECT_NE(context.message().find("policy: only=[math])"), std::string::npos)
        << context.message();
    const Status& scope = of_scope[static_cast<std::size_t>(r)];
    EXPECT_NE(scope.message().find("max_error=0.5), rank 1 ("), std::string::npos)
        << scope.message();
    EXPECT_NE(scope.message().find("max_error=0.25)"), std::string::npos) << scope.message();
  }
  const auto alike = plan_with_policies([](int r, Context*, Scope* scope) {
    Policy policy;
    policy.require = Determinism::kRunToRun;
    policy.self_check_dir = "rank" + std::to_string(r);  // decides nothing
    scope->emplace(policy);
  });
  for (const Status& s : alike) EXPECT_TRUE(s.ok()) << s.to_string();
}

TEST(Plan, NumbersOfAllRanksArrive) {
  distributed::ThreadGroup group(3);
  test::on_ranks(3, [&](int r) {
    const auto all =
        distributed::agree(group.communicator(r), {}, "the same", {r, -1, 10 + r, 0}, "test");
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    for (int x = 0; x < 3; ++x) {
      EXPECT_EQ((*all)[static_cast<std::size_t>(x)], (distributed::RankNumbers{x, -1, 10 + x, 0}));
    }
  });
}

TEST(Plan, AgreedIsThatOfMessages) {
  Problem p;
  p.sq = 61;
  p.skv = 40;
  p.options.is_causal = true;
  p.options.diagonal = Diagonal::kBottomRight;
  auto options = test::options_of(p);
  options.layout = LayoutKind::kZigzag;
  distributed::ThreadGroup group(3);
  test::on_ranks(3, [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    const auto q = distributed::make_layout(options.layout, p.sq, 3).value();
    const auto kv = distributed::make_layout(options.layout, p.skv, 3).value();
    const test::Tensors x =
        test::allocate(p, distributed::rows_of(q[at]), distributed::rows_of(kv[at]));
    const AttentionRequest request = x.request(p, false);
    const auto made =
        distributed::plan(default_context(), group.communicator(r), request, options).value();
    const auto agreed = distributed::plan_agreed(r, 3, request, options).value();
    EXPECT_EQ(agreed.explain(), made.explain());
    EXPECT_EQ(agreed.pieces_q(r), q[at]);
  });
  const test::Tensors x = test::allocate(p, 21, 14);
  EXPECT_EQ(distributed::plan_agreed(3, 3, x.request(p, false), options).status().message(),
            "[plan_agreed] rank (3) must be at least 0 and less than ranks, 3");
  EXPECT_EQ(distributed::plan_agreed(1, 3, x.request(p, false), options).status().message(),
            "[plan_agreed] rows of q (21) must be 20, those of rank 1 by layout zigzag");
}

/// Runs tasks on the calling thread, and counts.
class CountingExecutor final : public Executor {
 public:
  void run(int workers, Task task, void* state) override {
    ++runs;
    for (int worker = 0; worker < workers; ++worker) task(state, worker);
  }
  int runs = 0;
};

TEST(Attention, EveryPartRunsAsTheLaunchSays) {
  Problem p;
  p.sq = p.skv = 512;
  p.d = p.dv = 64;
  p.hq = p.hkv = 4;
  auto options = test::options_of(p);
  options.cu_seqlens_q = options.cu_seqlens_kv = {0, 256, 512};  // two parts
  const test::Tensors x = test::make_whole(p);
  Context context;
  check(context.set_concurrency(2));
  CountingExecutor executor, contexts_own;
  context.set_executor(&contexts_own);
  Launch launch;
  launch.executor = &executor;
  distributed::ThreadGroup group(1);
  auto& alone = group.communicator(0);
  const auto plan = distributed::plan(context, alone, x.request(p, false), options).value();
  check(distributed::attention(context, alone, plan, x.request(p, false), nullptr, launch));
  const int forward = executor.runs;
  EXPECT_GE(forward, 2);
  check(distributed::attention_backward(context, alone, plan, x.gradient_request(p, false), nullptr,
                                        launch));
  EXPECT_GE(executor.runs, forward + 2);
  EXPECT_EQ(contexts_own.runs, 0);
}

TEST(Plan, SeedsThatDifferAreRefused) {
  Problem p;
  distributed::ThreadGroup group(2);
  std::vector<Status> statuses(2);
  test::on_ranks(2, [&](int r) {
    const auto options = test::options_of(p);
    const auto rows = distributed::make_layout(options.layout, p.sq, 2).value();
    const std::int64_t own = distributed::rows_of(rows[static_cast<std::size_t>(r)]);
    const test::Tensors x = test::allocate(p, own, own);
    AttentionRequest request = x.request(p, false);
    request.options.dropout_p = 0.5;
    request.rng_seed = static_cast<std::uint64_t>(r);
    statuses[static_cast<std::size_t>(r)] =
        distributed::plan(default_context(), group.communicator(r), request, options).status();
  });
  for (const Status& s : statuses) {
    EXPECT_NE(s.message().find("rng=1,0"), std::string::npos) << s.message();
  }
}

TEST(Plan, DescalesThatDifferAreRefused) {
  Problem p;
  p.dtype = Dtype::kF8E4M3;
  p.descales = true;
  distributed::ThreadGroup group(2);
  std::vector<Status> statuses(2);
  test::on_ranks(2, [&](int r) {
    const auto options = test::options_of(p);
    const test::Tensors x = test::allocate(p, 32, 32);
    static_cast<float*>(x.descales.view().data)[1] = r == 0 ? 0.5F : 0.125F;
    statuses[static_cast<std::size_t>(r)] =
        distributed::plan(default_context(), group.communicator(r), x.request(p, false), options)
            .status();
  });
  for (const Status& s : statuses) {
    EXPECT_NE(s.message().find("descale_k=0.5 "), std::string::npos) << s.message();
    EXPECT_NE(s.message().find("descale_k=0.125 "), std::string::npos) << s.message();
  }
}

/// What plan() of one rank says of a request that `change` has changed; then attention() with the
/// plan of the request before.
std::pair<std::string, std::string> refusals_of(
    const Problem& p, const std::function<void(AttentionRequest*)>& change) {
  distributed::ThreadGroup group(1);
  auto& alone = group.communicator(0);
  Context context;
  const auto options = test::options_of(p);
  const test::Tensors x = test::allocate(p, p.sq, p.skv);
  AttentionRequest request = x.request(p, false);
  const auto plan = distributed::plan(context, alone, request, options).value();
  change(&request);
  return {distributed::plan(context, alone, request, options).status().message(),
          distributed::attention(context, alone, plan, request).message()};
}

TEST(Plan, WhatRanksDoNotDivideIsRefusedInCallsToo) {
  Problem p;
  p.dtype = Dtype::kF8E4M3;
  const test::Tensors descales = test::allocate(p, 2, 2);
  const auto of_heads = refusals_of(p, [&](AttentionRequest* r) {
    r->descale_k = make_view(descales.descales.view().data, Dtype::kF32, {1, 2});
  });
  EXPECT_NE(of_heads.first.find("descale_k (f32[1,2] strides (2,1)) must have one element"),
            std::string::npos)
      << of_heads.first;
  EXPECT_EQ(of_heads.second.find("[distributed::attention] descale_k"), 0U) << of_heads.second;
  const auto rounded =
      refusals_of(p, [](AttentionRequest* r) { r->options.quantize_probs = true; });
  EXPECT_NE(rounded.first.find("quantize_probs (true) must be false"), std::string::npos)
      << rounded.first;
  const distributed::Tensor mask(Dtype::kU8, {1, 1, p.sq, p.skv});
  const auto masked = refusals_of(p, [&](AttentionRequest* r) { r->attn_mask = mask.view(); });
  EXPECT_EQ(masked.first.find("[plan] attn_mask"), 0U) << masked.first;
  EXPECT_EQ(masked.second.find("[distributed::attention] attn_mask"), 0U) << masked.second;
}

TEST(Plan, CallsHaveTheOptionsOfTheirPlan) {
  Problem p;
  p.options.window_left = 5;
  p.options.diagonal = Diagonal::kTopLeft;
  using Options = AttentionOptions;
  const std::pair<const char*, std::function<void(Options*)>> changes[] = {
      {"window (5, 0) must be the plan's, 5, -1", [](Options* o) { o->is_causal = true; }},
      {"window (4, -1) must be the plan's", [](Options* o) { o->window_left = 4; }},
      {"diagonal (bottom_right) must be the plan's, top_left",
       [](Options* o) { o->diagonal = Diagonal::kBottomRight; }},
      {"softcap (3", [](Options* o) { o->softcap = 3.0; }},
      {"dropout_p (0.5", [](Options* o) { o->dropout_p = 0.5; }},
      {"softmax_scale (2", [](Options* o) { o->softmax_scale = 2.0; }},
      {"score_function (score*2)",
       [](Options* o) { o->score_function = Expression::parse("score * 2").value(); }}};
  for (const auto& [words, change] : changes) {
    const auto refused = refusals_of(p, [&](AttentionRequest* r) { change(&r->options); });
    EXPECT_EQ(refused.first, "") << words;
    EXPECT_EQ(refused.second.find(std::string("[distributed::attention] ") + words), 0U)
        << refused.second;
  }
}

TEST(Plan, AScaleIsThePlansWhereTheCallHasNone) {
  Problem p;
  p.options.softmax_scale = 2.0;
  const auto refused =
      refusals_of(p, [](AttentionRequest* r) { r->options.softmax_scale.reset(); });
  EXPECT_NE(refused.second.find("must be the plan's, 2"), std::string::npos) << refused.second;
}

TEST(Plan, AFunctionThatIsASoftcapIsThePlans) {
  Problem p;
  p.options.score_function = Expression::parse("3 * tanh(score / 3)").value();
  EXPECT_EQ(refusals_of(p, [](AttentionRequest*) {}).second, "");
}

TEST(Plan, DescalesAreOneNumberOfF32) {
  Problem p;
  p.dtype = Dtype::kF8E4M3;
  const distributed::Tensor doubles(Dtype::kF64, {1});
  const auto refused = refusals_of(p, [&](AttentionRequest* r) { r->descale_k = doubles.view(); });
  EXPECT_NE(refused.second.find("descale_k (f64[1]"), std::string::npos) << refused.second;
}

TEST(Plan, QueriesOfF64HaveNoKeysOf8Bits) {
  Problem p;
  p.dtype = Dtype::kF8E4M3;
  const distributed::Tensor q(Dtype::kF64, {p.batch, p.hq, p.sq, p.d});
  const auto refused = refusals_of(p, [&](AttentionRequest* r) { r->q = q.view(); });
  for (const std::string& message : {refused.first, refused.second}) {
    EXPECT_NE(message.find("must not be f64 beside k and v of 8 bits"), std::string::npos)
        << message;
  }
}

TEST(Attention, BackwardRefusesWhatItWouldIgnore) {
  Problem p;
  distributed::ThreadGroup group(1);
  auto& alone = group.communicator(0);
  Context context;
  const test::Tensors x = test::make_whole(p);
  AttentionGradRequest request = x.gradient_request(p, false);
  const auto plan = distributed::plan(context, alone, request, test::options_of(p)).value();
  check(distributed::attention(context, alone, plan, request));
  request.gradient_scales = x.descales.view();
  const Status s = distributed::attention_backward(context, alone, plan, request);
  EXPECT_EQ(s.message().find("[distributed::attention_backward] gradient_scales (f32[4]"), 0U)
      << s.message();
}

TEST(Plan, RanksCountDropoutFromTheWhole) {
  Problem p;
  distributed::ThreadGroup group(1);
  const test::Tensors x = test::allocate(p, p.sq, p.skv);
  AttentionRequest request = x.request(p, false);
  request.options.dropout_p = 0.5;
  request.dropout_origin.key = 8;
  const Status s =
      distributed::plan(default_context(), group.communicator(0), request, test::options_of(p))
          .status();
  EXPECT_NE(s.message().find("dropout_origin (given) must be left out"), std::string::npos)
      << s.message();
}

TEST(Plan, AnErrorOfOneRankIsOneOfAll) {
  Problem p;
  distributed::ThreadGroup group(2);
  std::vector<Status> statuses(2);
  test::on_ranks(2, [&](int r) {
    const auto options = test::options_of(p);
    const test::Tensors x = test::allocate(p, 32 + r, 32);
    statuses[static_cast<std::size_t>(r)] =
        distributed::plan(default_context(), group.communicator(r), x.request(p, false), options)
            .status();
  });
  for (const Status& s : statuses) {
    EXPECT_NE(s.message().find("rows of q (33) must be 32, those of rank 1"), std::string::npos)
        << s.to_string();
  }
}

TEST(Decode, MergesWhatRanksHold) {
  for (const int ranks : {2, 3, 4, 7}) {
    for (const LayoutKind layout : {LayoutKind::kContiguous, LayoutKind::kZigzag}) {
      Problem p;
      p.sq = 3;
      p.skv = 101;
      p.hq = 4;
      p.sinks = true;
      p.options.is_causal = true;
      p.options.diagonal = Diagonal::kBottomRight;
      const test::Tensors whole = test::make_whole(p);
      ASSERT_TRUE(test::run_alone(p, whole, false).ok());
      auto options = test::options_of(p);
      options.layout = layout;
      const auto rows = distributed::make_layout(layout, p.skv, ranks).value();
      distributed::ThreadGroup group(ranks);
      test::on_ranks(ranks, [&](int r) {
        const auto& pieces = rows[static_cast<std::size_t>(r)];
        const test::Tensors x = test::allocate(p, p.sq, distributed::rows_of(pieces));
        test::copy(whole.q.view(), x.q.view());
        test::copy_pieces(whole.k.view(), x.k.view(), pieces, true);
        test::copy_pieces(whole.v.view(), x.v.view(), pieces, true);
        auto& communicator = group.communicator(r);
        Context context;
        const auto plan =
            distributed::plan_decode(context, communicator, x.request(p, false), options);
        ASSERT_TRUE(plan.ok()) << plan.status().to_string();
        distributed::CallRecord record;
        const Status s = distributed::attention_decode(context, communicator, *plan,
                                                       x.request(p, false), &record);
        ASSERT_TRUE(s.ok()) << s.to_string();
        EXPECT_LE(test::distance(whole.out.view(), x.out.view()), 1e-12);
        EXPECT_LE(test::distance(whole.lse.view(), x.lse.view()), 1e-12);
        EXPECT_EQ(record.sent, plan->chosen().forward[static_cast<std::size_t>(r)]);
      });
    }
  }
}

double error_of(const Problem& p, const distributed::Options& options, int ranks,
                const test::Tensors& truth, bool backward) {
  test::Tensors x = test::make_whole(p);
  const Status s = ranks == 1 ? test::run_alone(p, x, backward)
                              : test::run_on_ranks(p, options, ranks, &x, backward).status;
  EXPECT_TRUE(s.ok()) << s.to_string();
  double most = test::distance(x.out.view(), truth.out.view());
  if (!backward) return most;
  for (auto tensor : {&test::Tensors::d_q, &test::Tensors::d_k, &test::Tensors::d_v}) {
    most = std::max(most, test::distance((x.*tensor).view(), (truth.*tensor).view()));
  }
  return most;
}

TEST(Attention, ErrorsDoNotGrowWithRanks) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const Algorithm algorithm : {Algorithm::kP2p, Algorithm::kAllGather}) {
      Problem exact;
      exact.sq = exact.skv = 333;
      exact.options.is_causal = true;
      exact.options.diagonal = Diagonal::kTopLeft;
      const test::Tensors truth = test::make_whole(exact);
      ASSERT_TRUE(test::run_alone(exact, truth, true).ok());
      Problem p = exact;
      p.dtype = dtype;
      auto options = test::options_of(p);
      options.algorithm = algorithm;
      options.layout = LayoutKind::kZigzag;
      const double alone = error_of(p, options, 1, truth, true);
      for (const int ranks : {2, 3, 4, 7}) {
        EXPECT_LE(error_of(p, options, ranks, truth, true), 1.5 * alone)
            << to_string(dtype) << " " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace regard
