// Every allocation of a call of the C ABI fails in turn: the n-th alone, and the n-th with all that
// follow.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "small_call.h"
#include "tests/support/allocations.h"
#include "tests/support/fail_each.h"

namespace regard::test {
namespace {

// A call whose allocations fail.
struct Attempt {
  std::function<regard_status()> call;
  std::function<void()> prepare = [] {};
  std::function<bool()> is_untouched = [] { return true; };  // after a failure
  regard_status expected = REGARD_STATUS_OK;                 // of a call whose allocations succeed
};

// What is wrong with the n-th allocation's failure, "" where nothing is. `last`: none failed.
std::string try_one(const Attempt& attempt, std::uint64_t n, AllocationFailure::Extent extent,
                    bool* last) {
  attempt.prepare();
  regard_status status = REGARD_STATUS_OK;
  {
    const AllocationFailure failure(n, extent);
    status = attempt.call();
    *last = !failure.happened();
  }
  if (status != attempt.expected) {
    if (*last || (status != REGARD_STATUS_OUT_OF_MEMORY && status != REGARD_STATUS_WORKSPACE)) {
      return regard_status_name(status);
    }
    if (std::strstr(regard_last_error(), "memory") == nullptr &&
        std::strstr(regard_last_error(), "workspace") == nullptr) {
      return std::string("the message is \"") + regard_last_error() + "\"";
    }
    if (!attempt.is_untouched()) return "a failed call has changed something";
    status = attempt.call();
  }
  return status == attempt.expected ? "" : std::string("then ") + regard_last_error();
}

// Returns how many allocations of the call could fail.
int fail_each_allocation(const char* name, const Attempt& attempt) {
  return fail_each(name, [&](std::uint64_t n, AllocationFailure::Extent extent, bool* last) {
    return try_one(attempt, n, extent, last);
  });
}

void run_serially(void*, int32_t workers, regard_task task, void* state) {
  for (int32_t worker = 0; worker < workers; ++worker) task(state, worker);
}

TEST(OutOfMemory, ContextsAndTheirSettings) {
  regard_context* context = nullptr;
  Attempt attempt;
  attempt.prepare = [&] {
    regard_context_destroy(context);
    context = nullptr;
  };
  attempt.call = [&] { return regard_context_create(&context); };
  attempt.is_untouched = [&] { return context == nullptr; };
  EXPECT_GT(fail_each_allocation("create", attempt), 10);

  const regard_policy policy = only_policy("flash,efficient,math");
  attempt = {};
  attempt.call = [&] { return regard_context_set_policy(context, &policy); };
  EXPECT_GT(fail_each_allocation("set_policy", attempt), 2);
  // A new executor each time: a known one is set without an allocation.
  std::vector<char> users(100);
  std::size_t next = 0;
  attempt.prepare = [&] { ++next; };
  attempt.call = [&] {
    const regard_executor executor{run_serially, &users[next]};
    return regard_context_set_executor(context, &executor);
  };
  EXPECT_GT(fail_each_allocation("set_executor", attempt), 0);
  regard_context_destroy(context);
}

TEST(OutOfMemory, Attention) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  const regard_policy policy = only_policy("flash");
  Attempt attempt;
  attempt.prepare = [&] { call.out.assign(call.out.size(), 7.0f); };
  attempt.call = [&] { return regard_attention(context.get(), &call.request, &policy, nullptr); };
  attempt.is_untouched = [&] { return call.untouched(); };
  EXPECT_GT(fail_each_allocation("attention", attempt), 2);
  EXPECT_FALSE(call.untouched());
  call.request.softcap = -1;
  attempt.expected = REGARD_STATUS_INVALID_ARGUMENT;
  EXPECT_GT(fail_each_allocation("attention that refuses", attempt), 0);
}

TEST(OutOfMemory, AttentionOfPaddedSequences) {
  const ContextHandle context = make_c_context();
  SmallCall call(5);
  const std::uint8_t rows[] = {0, 1, 1, 0, 0, 1, 1, 1, 1, 1};
  const std::int64_t shape[] = {2, 5};
  const regard_tensor mask = regard_make_input(rows, {REGARD_DTYPE_BOOL, 8, 1}, 2, shape);
  regard_padded_sequences sequences = regard_padded_sequences_default();
  regard_lengths* lengths = nullptr;
  ASSERT_EQ(regard_lengths_from_mask(&mask, &lengths), REGARD_STATUS_OK);
  sequences.q = lengths;
  Attempt attempt;
  attempt.prepare = [&] { call.out.assign(call.out.size(), 7.0f); };
  attempt.call = [&] {
    return regard_attention_padded(context.get(), &call.request, &sequences, nullptr, nullptr);
  };
  attempt.is_untouched = [&] { return call.untouched(); };
  for (const regard_padding padding : {REGARD_PADDING_PADDED, REGARD_PADDING_PACKED}) {
    sequences.padding = padding;
    EXPECT_GT(fail_each_allocation("attention_padded", attempt), 2);
    EXPECT_FALSE(call.untouched());
  }
  regard_lengths_destroy(lengths);
}

TEST(OutOfMemory, Plans) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  regard_plan* plan = nullptr;
  Attempt attempt;
  attempt.prepare = [&] {
    regard_plan_destroy(plan);
    plan = nullptr;
  };
  attempt.is_untouched = [&] { return plan == nullptr; };
  attempt.call = [&] { return regard_plan_create(context.get(), &call.request, nullptr, &plan); };
  EXPECT_GT(fail_each_allocation("plan", attempt), 1);
  attempt.call = [&] {
    return regard_plan_create_case(context.get(), "b1 hq8 sq128 d64", nullptr, &plan);
  };
  EXPECT_GT(fail_each_allocation("plan_create_case", attempt), 1);
  char text[16];
  attempt = {};
  attempt.call = [&] { return regard_plan_text(plan, text, sizeof(text), nullptr); };
  attempt.expected = REGARD_STATUS_INVALID_ARGUMENT;
  EXPECT_GT(fail_each_allocation("plan_text that refuses", attempt), 1);
  attempt.expected = REGARD_STATUS_OK;
  std::size_t needed = 0;
  attempt.call = [&] { return regard_plan_explain(plan, nullptr, 0, &needed); };
  EXPECT_GT(fail_each_allocation("plan_explain", attempt), 5);
  attempt.call = [&] { return regard_execute(plan, &call.request, nullptr); };
  attempt.expected = REGARD_STATUS_INVALID_ARGUMENT;
  EXPECT_GT(fail_each_allocation("execute that refuses", attempt), 0);
  regard_plan_destroy(plan);
}

TEST(OutOfMemory, Texts) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  std::vector<char> text(1 << 16);
  Attempt attempt;
  attempt.call = [&] { return regard_describe(&call.request, text.data(), text.size(), nullptr); };
  EXPECT_GT(fail_each_allocation("describe", attempt), 0);
  attempt.call = [&] {
    return regard_describe_json(&call.request, text.data(), text.size(), nullptr);
  };
  EXPECT_GT(fail_each_allocation("describe_json", attempt), 0);
  attempt.call = [&] {
    return regard_explain(context.get(), &call.request, nullptr, text.data(), text.size(), nullptr);
  };
  EXPECT_GT(fail_each_allocation("explain", attempt), 5);
  attempt.call = [&] {
    return regard_explain_case(context.get(), "b1 hq8 sq128 d64 isa=avx2", nullptr, text.data(),
                               text.size(), nullptr);
  };
  EXPECT_GT(fail_each_allocation("explain_case", attempt), 5);
}

}  // namespace
}  // namespace regard::test
