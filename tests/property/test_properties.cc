// What must hold between calls, on every backend and instruction set: no oracle is needed to see
// it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "regard/attention.h"
#include "tests/support/backends.h"

namespace regard {
namespace {

using test::Forced;

struct Sizes {
  std::int64_t b = 2, hq = 4, hkv = 2, sq = 33, skv = 130, d = 40, dv = 24;
};

std::size_t size_of_all(std::initializer_list<std::int64_t> extents) {
  std::int64_t n = 1;
  for (const std::int64_t extent : extents) n *= extent;
  return static_cast<std::size_t>(n);
}

/// Dense f32 tensors with values of their own, and the request over them.
struct Call {
  explicit Call(const Sizes& s)
      : q(size_of_all({s.b, s.hq, s.sq, s.d})),
        k(size_of_all({s.b, s.hkv, s.skv, s.d})),
        v(size_of_all({s.b, s.hkv, s.skv, s.dv})),
        out(size_of_all({s.b, s.hq, s.sq, s.dv})),
        lse(size_of_all({s.b, s.hq, s.sq})) {
    std::uint32_t state = 12345;
    for (std::vector<float>* data : {&q, &k, &v}) {
      for (float& x : *data) {
        state = state * 1664525u + 1013904223u;
        x = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
      }
    }
    request.q = make_view(q.data(), Dtype::kF32, {s.b, s.hq, s.sq, s.d});
    request.k = make_view(k.data(), Dtype::kF32, {s.b, s.hkv, s.skv, s.d});
    request.v = make_view(v.data(), Dtype::kF32, {s.b, s.hkv, s.skv, s.dv});
    request.out = make_view(out.data(), Dtype::kF32, {s.b, s.hq, s.sq, s.dv});
    request.lse = make_view(lse.data(), Dtype::kF32, {s.b, s.hq, s.sq});
  }
  std::vector<float> q, k, v, out, lse;
  AttentionRequest request;
};

TensorView narrowed(TensorView view, int dim, std::int64_t begin, std::int64_t size) {
  view.data = static_cast<float*>(view.data) + begin * view.strides[dim];
  view.shape[dim] = size;
  return view;
}

class Properties : public testing::TestWithParam<Forced> {
 protected:
  void run(const AttentionRequest& request) {
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    const Status status = attention(*context_, request, policy);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  std::unique_ptr<Context> context_ = test::make_context(GetParam().isa);
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(Properties, LengthsEqualALoopOfSingles) {
  const Sizes s{3, 4, 2, 33, 130, 40, 24};
  Call padded(s), singles(s);
  std::int32_t lens_q[3] = {33, 7, 0}, lens_kv[3] = {130, 65, 12};
  padded.request.seqlens_q = make_view(lens_q, Dtype::kI32, {3});
  padded.request.seqlens_kv = make_view(lens_kv, Dtype::kI32, {3});
  padded.request.options.is_causal = true;
  padded.request.options.diagonal = Diagonal::kBottomRight;
  run(padded.request);
  std::fill(singles.lse.begin(), singles.lse.end(), -std::numeric_limits<float>::infinity());
  for (std::int64_t b = 0; b < 3; ++b) {
    AttentionRequest one;
    one.options = padded.request.options;
    const auto part = [b](const TensorView& view, std::int64_t rows) {
      return narrowed(narrowed(view, 0, b, 1), 2, 0, rows);
    };
    one.q = part(singles.request.q, lens_q[b]);
    one.k = part(singles.request.k, lens_kv[b]);
    one.v = part(singles.request.v, lens_kv[b]);
    one.out = part(singles.request.out, lens_q[b]);
    one.lse = part(singles.request.lse, lens_q[b]);
    run(one);
  }
  EXPECT_TRUE(same_bits(padded.out, singles.out));
  EXPECT_TRUE(same_bits(padded.lse, singles.lse));
}

TEST_P(Properties, GroupedHeadsEqualRepeatedOnes) {
  const Sizes s;
  Call grouped(s), repeated(s);
  // Stride 0 over the group's heads would be [B,Hkv,G,...]: repeated memory instead.
  std::vector<float> k2(repeated.k.size() * 2), v2(repeated.v.size() * 2);
  const auto repeat = [&](const std::vector<float>& from, std::vector<float>* to, std::int64_t d) {
    const std::size_t head = static_cast<std::size_t>(s.skv * d);
    for (std::size_t h = 0; h < to->size() / head; ++h) {
      std::memcpy(to->data() + h * head, from.data() + h / 2 * head, head * sizeof(float));
    }
  };
  repeat(repeated.k, &k2, s.d);
  repeat(repeated.v, &v2, s.dv);
  repeated.request.k = make_view(k2.data(), Dtype::kF32, {s.b, s.hq, s.skv, s.d});
  repeated.request.v = make_view(v2.data(), Dtype::kF32, {s.b, s.hq, s.skv, s.dv});
  run(grouped.request);
  run(repeated.request);
  EXPECT_TRUE(same_bits(grouped.out, repeated.out));
  EXPECT_TRUE(same_bits(grouped.lse, repeated.lse));
}

TEST_P(Properties, LayoutsGiveTheSameBits) {
  const Sizes s;
  Call bhsd(s), bshd(s);
  const auto transpose = [](std::vector<float>* data, TensorView* view) {
    const std::vector<float> from = *data;
    const std::int64_t h_count = view->shape[1], rows = view->shape[2], d = view->shape[3];
    view->strides[1] = d;
    view->strides[2] = h_count * d;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(from.size()); ++i) {
      const std::int64_t x = i % d, row = i / d % rows, h = i / d / rows % h_count;
      const std::int64_t b = i / d / rows / h_count;
      (*data)[static_cast<std::size_t>(((b * rows + row) * h_count + h) * d + x)] =
          from[static_cast<std::size_t>(i)];
    }
  };
  run(bhsd.request);
  transpose(&bshd.q, &bshd.request.q);
  transpose(&bshd.k, &bshd.request.k);
  transpose(&bshd.v, &bshd.request.v);
  run(bshd.request);
  EXPECT_TRUE(same_bits(bhsd.out, bshd.out));
}

TEST_P(Properties, SplitKeysMergeToTheWhole) {
  const Sizes s;
  Call whole(s), first(s), second(s);
  run(whole.request);
  const std::int64_t cut = 47;
  first.request.k = narrowed(first.request.k, 2, 0, cut);
  first.request.v = narrowed(first.request.v, 2, 0, cut);
  second.request.k = narrowed(second.request.k, 2, cut, s.skv - cut);
  second.request.v = narrowed(second.request.v, 2, cut, s.skv - cut);
  run(first.request);
  run(second.request);
  Call merged(s);
  const std::vector<StateView> states = {{first.request.out, first.request.lse},
                                         {second.request.out, second.request.lse}};
  ASSERT_TRUE(merge_states(states, merged.request.out, merged.request.lse).ok());
  for (std::size_t i = 0; i < whole.out.size(); ++i) {
    ASSERT_NEAR(merged.out[i], whole.out[i], 1e-6) << i;
  }
  for (std::size_t i = 0; i < whole.lse.size(); ++i) {
    ASSERT_NEAR(merged.lse[i], whole.lse[i], 2e-6) << i;
  }
}

TEST_P(Properties, AMaskEqualsTheOptionItSpells) {
  const Sizes s{2, 4, 2, 33, 65, 40, 24};
  Call option(s), mask(s);
  option.request.options.window_left = 9;
  option.request.options.window_right = 2;
  option.request.options.diagonal = Diagonal::kBottomRight;
  std::vector<std::uint8_t> attend(static_cast<std::size_t>(s.sq * s.skv));
  for (std::int64_t i = 0; i < s.sq; ++i) {
    for (std::int64_t j = 0; j < s.skv; ++j) {
      const std::int64_t position = i + s.skv - s.sq;
      attend[static_cast<std::size_t>(i * s.skv + j)] = j >= position - 9 && j <= position + 2;
    }
  }
  mask.request.attn_mask = make_view(attend.data(), Dtype::kU8, {1, 1, s.sq, s.skv});
  run(option.request);
  run(mask.request);
  EXPECT_TRUE(same_bits(option.out, mask.out));
  EXPECT_TRUE(same_bits(option.lse, mask.lse));
}

TEST_P(Properties, APrefillInChunksEqualsOneCall) {
  // Dropout included: its mask follows a row's position on the diagonal, not its place in the call.
  const Sizes s{1, 4, 2, 70, 70, 40, 24};
  Call whole(s), chunks(s);
  for (Call* call : {&whole, &chunks}) {
    call->request.options.is_causal = true;
    call->request.options.dropout_p = 0.25;
    call->request.rng_seed = 99;
    call->request.options.diagonal = Diagonal::kOffset;
  }
  run(whole.request);
  for (std::int64_t begin = 0; begin < s.sq; begin += 23) {
    const std::int64_t rows = std::min<std::int64_t>(23, s.sq - begin);
    AttentionRequest chunk = chunks.request;
    chunk.q = narrowed(chunk.q, 2, begin, rows);
    chunk.out = narrowed(chunk.out, 2, begin, rows);
    chunk.lse = narrowed(chunk.lse, 2, begin, rows);
    chunk.diagonal_offset = begin;
    run(chunk);
  }
  EXPECT_TRUE(same_bits(whole.out, chunks.out));
  EXPECT_TRUE(same_bits(whole.lse, chunks.lse));
}

std::string param_name(const testing::TestParamInfo<Forced>& info) {
  return test::name_of(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, Properties, testing::ValuesIn(test::forced_backends()), param_name);

}  // namespace
}  // namespace regard
