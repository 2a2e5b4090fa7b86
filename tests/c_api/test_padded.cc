#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "small_call.h"

// Padded sequences, forward and backward.

namespace regard::test {
namespace {

using conformance::Problem;

static_assert(sizeof(regard_padded_sequences) == sizeof(size_t) + 2 * sizeof(void*) + 2 * 4);

struct DestroyLengths {
  void operator()(regard_lengths* lengths) const { regard_lengths_destroy(lengths); }
};
using LengthsHandle = std::unique_ptr<regard_lengths, DestroyLengths>;

struct Mask {
  std::int64_t batch, seqlen;
  std::vector<std::uint8_t> rows;

  LengthsHandle c() const {
    const std::int64_t shape[] = {batch, seqlen};
    const regard_tensor mask = regard_make_input(rows.data(), {REGARD_DTYPE_BOOL, 8, 1}, 2, shape);
    regard_lengths* lengths = nullptr;
    EXPECT_EQ(regard_lengths_from_mask(&mask, &lengths), REGARD_STATUS_OK);
    return LengthsHandle(lengths);
  }
  Lengths cxx() const {
    return Lengths::from_mask(make_view(rows.data(), Dtype::kU8, {batch, seqlen})).value();
  }
};

const Mask kMasks[] = {
    {3, 5, {1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}},
    {3, 5, {0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
    {3, 5, {1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0}},
};

regard_padded_sequences c_sequences(const regard_lengths* q, const regard_lengths* kv,
                                    PaddingPolicy padding) {
  regard_padded_sequences sequences = regard_padded_sequences_default();
  sequences.q = q;
  sequences.kv = kv;
  sequences.padding = static_cast<regard_padding>(padding);
  return sequences;
}

// Forward and, of a problem with gradients, backward as C++ and as C callers make them.
Status run_cxx(Context& context, Problem& problem, const PaddedSequences& sequences) {
  problem.reset_outputs();
  const Status status = attention_padded(context, problem.request(), sequences);
  if (!status.ok() || !problem.request().options.needs_grad) return status;
  problem.begin_backward();
  return attention_padded_backward(context, problem.request(), sequences);
}

regard_status run_c(regard_context* context, Problem& problem,
                    const regard_padded_sequences& sequences) {
  problem.reset_outputs();
  CRequest request(problem.request());
  const regard_status status =
      regard_attention_padded(context, request.get(), &sequences, nullptr, nullptr);
  if (status != REGARD_STATUS_OK || request->needs_grad == 0) return status;
  problem.begin_backward();
  CGradients gradients(problem.request());
  return regard_attention_padded_backward(context, request.get(), gradients.get(), &sequences,
                                          nullptr, nullptr);
}

TEST(CPadded, ComputesWhatTheCxxCallsDo) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  int computed = 0, refused = 0;
  for (const char* words :
       {"f32", "f32 lse", "bf16 lse causal diag=br", "f16 window=1,0 diag=tl", "f32 dropout=0.5",
        "f32 saved grad", "f32 lse grad", "f32 saved lse d_lse sinks grad",
        "bf16 saved causal diag=tl grad", "f32 saved bias=B,H,Sq,Skv grad", "f32 mask"}) {
    const Case c = parse_case(std::string("b3 hq4 hkv2 sq5 d8 ") + words).value();
    Problem problem = conformance::make_problem(c);
    for (const Mask& mask : kMasks) {
      const LengthsHandle lengths = mask.c();
      for (const PaddingPolicy padding :
           {PaddingPolicy::kAuto, PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
        SCOPED_TRACE(std::string(words) + " " + to_string(padding));
        const Status expected = run_cxx(cxx_context, problem, {mask.cxx(), mask.cxx(), padding});
        const std::vector<unsigned char> bytes = problem.output_bytes();
        // Without kv those of q.
        const regard_lengths* const kv = computed % 2 == 0 ? nullptr : lengths.get();
        const regard_status status =
            run_c(context.get(), problem, c_sequences(lengths.get(), kv, padding));
        ASSERT_EQ(static_cast<int>(status), static_cast<int>(expected.code()))
            << regard_last_error();
        if (status != REGARD_STATUS_OK) {
          EXPECT_EQ(regard_last_error(), expected.message());
          ++refused;
          continue;
        }
        EXPECT_EQ(problem.output_bytes(), bytes);
        EXPECT_EQ(problem.check_memory(), "");
        ++computed;
      }
    }
  }
  EXPECT_GT(computed, 70);
  EXPECT_GT(refused, 5);
}

TEST(CPadded, LengthsOfKeysMayDiffer) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  Problem problem =
      conformance::make_problem(parse_case("b3 hq4 hkv2 sq5 d8 f32 lse saved grad").value());
  const LengthsHandle q = kMasks[0].c(), kv = kMasks[1].c();
  const PaddedSequences sequences{kMasks[0].cxx(), kMasks[1].cxx(), PaddingPolicy::kPacked};
  ASSERT_EQ(run_cxx(cxx_context, problem, sequences).to_string(), "ok");
  const std::vector<unsigned char> bytes = problem.output_bytes();
  ASSERT_EQ(run_c(context.get(), problem, c_sequences(q.get(), kv.get(), PaddingPolicy::kPacked)),
            REGARD_STATUS_OK)
      << regard_last_error();
  EXPECT_EQ(problem.output_bytes(), bytes);
}

TEST(CPadded, ExplainWritesTheCxxJson) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  int explained = 0, refused = 0;
  for (const char* words : {"f32", "bf16 lse causal diag=tl", "f32 saved grad"}) {
    const Problem problem =
        conformance::make_problem(parse_case(std::string("b3 hq4 hkv2 sq5 d8 ") + words).value());
    CRequest request(problem.request());
    for (const Mask& mask : kMasks) {
      const LengthsHandle lengths = mask.c();
      for (const PaddingPolicy padding :
           {PaddingPolicy::kAuto, PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
        SCOPED_TRACE(std::string(words) + " " + to_string(padding));
        const Expected<Selection> expected =
            explain_padded(cxx_context, problem.request(), {mask.cxx(), mask.cxx(), padding});
        const regard_padded_sequences sequences = c_sequences(lengths.get(), nullptr, padding);
        EXPECT_EQ(text_of([&](auto... out) {
                    return regard_explain_padded(context.get(), request.get(), &sequences, nullptr,
                                                 out...);
                  }),
                  expected ? to_json(*expected) : "<" + expected.status().message());
        ++(expected ? explained : refused);
      }
    }
  }
  EXPECT_GT(explained, 20);
  EXPECT_GT(refused, 0);
}

TEST(CPadded, ExplainIsOfThePathThatIsTaken) {
  const ContextHandle context = make_c_context();
  const Problem problem = conformance::make_problem(parse_case("b3 hq4 hkv2 sq5 d8 f32").value());
  CRequest request(problem.request());
  const LengthsHandle first = kMasks[0].c(), holes = kMasks[2].c();
  const regard_policy flash = only_policy("flash");
  const auto explained = [&](const LengthsHandle& lengths, PaddingPolicy padding,
                             const regard_policy* policy) {
    const regard_padded_sequences sequences = c_sequences(lengths.get(), nullptr, padding);
    return text_of([&](auto... out) {
      return regard_explain_padded(context.get(), request.get(), &sequences, policy, out...);
    });
  };
  const auto case_of = [](const std::string& json) {
    const std::size_t begin = json.find("\"case\"");
    return json.substr(begin, json.find("\"params\"") - begin);
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string packed = explained(holes, PaddingPolicy::kPacked, nullptr);
  EXPECT_TRUE(has(case_of(packed), "packed") && !has(case_of(packed), "mask")) << packed;
  const std::string masked = explained(holes, PaddingPolicy::kPadded, nullptr);
  EXPECT_TRUE(has(case_of(masked), "mask=B,1,1,Skv") && !has(case_of(masked), "packed")) << masked;
  const std::string lengths = explained(first, PaddingPolicy::kPadded, &flash);
  EXPECT_TRUE(has(case_of(lengths), "lens") && has(lengths, "call policy (only")) << lengths;
  EXPECT_FALSE(has(masked, "call policy")) << masked;
}

TEST(CPadded, APolicyAndALaunchAreRead) {
  const ContextHandle context = make_c_context();
  SmallCall call(5);
  const Mask mask{2, 5, {1, 1, 1, 0, 0, 1, 1, 1, 1, 1}};
  const LengthsHandle lengths = mask.c();
  const regard_padded_sequences s = c_sequences(lengths.get(), nullptr, PaddingPolicy::kAuto);
  const regard_policy none = only_policy("cudnn");
  call.request.is_causal = 0;
  EXPECT_EQ(regard_attention_padded(context.get(), &call.request, &s, &none, nullptr),
            REGARD_STATUS_NO_BACKEND);
  regard_launch launch = regard_launch_default();
  launch.struct_size = 3;
  EXPECT_EQ(regard_attention_padded(context.get(), &call.request, &s, nullptr, &launch),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_TRUE(call.untouched());
}

TEST(CPadded, WhatIsWrongIsNamed) {
  const ContextHandle context = make_c_context();
  regard_context* const c = context.get();
  SmallCall call(5);
  const regard_request* const r = &call.request;
  const Mask mask{2, 5, {1, 1, 1, 0, 0, 1, 1, 1, 1, 1}};
  const LengthsHandle lengths = mask.c(), others = kMasks[0].c();
  const regard_padded_sequences good = c_sequences(lengths.get(), nullptr, PaddingPolicy::kAuto);
  const regard_gradients g = regard_gradients_default();
  const auto expect = [](regard_status status, const std::string& message) {
    EXPECT_EQ(status, REGARD_STATUS_INVALID_ARGUMENT) << message;
    EXPECT_EQ(regard_last_error(), message);
  };
  const auto forward = [&](auto change) {
    regard_padded_sequences sequences = good;
    change(sequences);
    return regard_attention_padded(c, r, &sequences, nullptr, nullptr);
  };
  const std::string name = "[regard_attention_padded] ";
  const std::string back = "[regard_attention_padded_backward] ";
  expect(regard_attention_padded(nullptr, r, &good, nullptr, nullptr),
         name + "context (null) must be given");
  expect(regard_attention_padded(c, nullptr, &good, nullptr, nullptr),
         name + "request (null) must be given");
  expect(regard_attention_padded(c, r, nullptr, nullptr, nullptr),
         name + "sequences (null) must be given");
  expect(regard_attention_padded_backward(nullptr, r, &g, &good, nullptr, nullptr),
         back + "context (null) must be given");
  expect(regard_attention_padded_backward(c, nullptr, &g, &good, nullptr, nullptr),
         back + "request (null) must be given");
  expect(regard_attention_padded_backward(c, r, nullptr, &good, nullptr, nullptr),
         back + "gradients (null) must be given");
  expect(regard_attention_padded_backward(c, r, &g, nullptr, nullptr, nullptr),
         back + "sequences (null) must be given");
  const auto explained = [&](regard_context* of, const regard_request* request,
                             const regard_padded_sequences* sequences, char* buffer) {
    return regard_explain_padded(of, request, sequences, nullptr, buffer, 8, nullptr);
  };
  char buffer[8] = "same";
  const std::string explain = "[regard_explain_padded] ";
  expect(explained(nullptr, r, &good, buffer), explain + "context (null) must be given");
  expect(explained(c, nullptr, &good, buffer), explain + "request (null) must be given");
  expect(explained(c, r, nullptr, buffer), explain + "sequences (null) must be given");
  EXPECT_EQ(explained(c, r, &good, nullptr), REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(explained(c, r, &good, buffer), REGARD_STATUS_INVALID_ARGUMENT);  // too small
  EXPECT_STREQ(buffer, "same");
  expect(forward([](auto& s) { s.q = nullptr; }), name + "q of sequences (null) must be given");
  expect(forward([](auto& s) { s.padding = regard_padding(3); }),
         name + "padding (3) must be 0..2");
  expect(forward([](auto& s) { s.reserved = 1; }), name + "reserved (1) must be 0");
  expect(forward([](auto& s) { s.struct_size = 0; }),
         name + "struct_size of sequences (0) must be its sizeof, " +
             std::to_string(sizeof(regard_padded_sequences)) + " in regard " + version());
  expect(forward([&](auto& s) { s.q = others.get(); }),
         "[attention_padded] lengths of q (<3 sequences of at most 5 rows, 8 of 3 x 5 positions>) "
         "must be of 2 x 5 positions, the batch and seqlen of q");
  EXPECT_TRUE(call.untouched());
}

// An older caller's struct ends before `padding`.
TEST(CPadded, WhatAnOlderStructLacksIsTheDefault) {
  const ContextHandle context = make_c_context();
  SmallCall call(5);
  const Mask mask{2, 5, {1, 1, 1, 0, 0, 1, 1, 1, 1, 1}};
  const LengthsHandle lengths = mask.c();
  regard_padded_sequences sequences = c_sequences(lengths.get(), nullptr, PaddingPolicy::kAuto);
  sequences.struct_size = offsetof(regard_padded_sequences, padding);
  sequences.padding = regard_padding(9);
  EXPECT_EQ(regard_attention_padded(context.get(), &call.request, &sequences, nullptr, nullptr),
            REGARD_STATUS_OK)
      << regard_last_error();
  EXPECT_FALSE(call.untouched());
}

}  // namespace
}  // namespace regard::test
