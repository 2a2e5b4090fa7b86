#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "regard/attention.h"
#include "small_call.h"

namespace regard::test {
namespace {

// DLPack 1.x as its header writes it.
struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
static_assert(sizeof(DLTensor) == sizeof(regard_tensor) &&
              alignof(DLTensor) == alignof(regard_tensor) &&
              offsetof(DLTensor, device) == offsetof(regard_tensor, device) &&
              offsetof(DLTensor, ndim) == offsetof(regard_tensor, ndim) &&
              offsetof(DLTensor, dtype) == offsetof(regard_tensor, dtype) &&
              offsetof(DLTensor, shape) == offsetof(regard_tensor, shape) &&
              offsetof(DLTensor, strides) == offsetof(regard_tensor, strides) &&
              offsetof(DLTensor, byte_offset) == offsetof(regard_tensor, byte_offset));

// No padding: the tail of a struct is fields, and an uninitialised byte cannot look like one.
static_assert(sizeof(regard_request) ==
              46 * sizeof(void*) + sizeof(size_t) + 6 * sizeof(void*) + 14 * 8 + 12 * 4);
static_assert(sizeof(regard_gradients) == sizeof(size_t) + 22 * sizeof(void*) + 2 * 8 + 2 * 4);
static_assert(sizeof(regard_policy) == sizeof(size_t) + 11 * sizeof(void*));
static_assert(sizeof(regard_launch) == 2 * sizeof(size_t) + 4 * sizeof(void*));

std::string describe_text(const regard_request* request) {
  return text_of([&](auto... out) { return regard_describe(request, out...); });
}

TEST(CTensor, AnyOfDLPacksTensorsIsOne) {
  SmallCall call;
  std::int64_t shape[4] = {2, 4, 8, 16};
  std::int64_t strides[4] = {512, 16, 64, 1};  // [B,S,H,D] in memory
  DLTensor tensor{call.q.data() - 2, {1, 0}, 4, {2, 32, 1}, shape, strides, 8};
  call.request.q = reinterpret_cast<const regard_tensor*>(&tensor);
  EXPECT_EQ(describe_text(&call.request), "b2 hq4 hkv4 sq8 skv8 d16 f32 causal layout_q=bshd");
}

TEST(CTensor, NoStridesMeanDense) {
  SmallCall call;
  const std::string dense = describe_text(&call.request);
  const std::int64_t strides[4] = {512, 128, 16, 1};
  for (regard_tensor& tensor : call.tensors) tensor.strides = strides;
  EXPECT_EQ(describe_text(&call.request), dense);
  for (regard_tensor& tensor : call.tensors) tensor.strides = nullptr;
  std::int64_t huge[4] = {2, std::numeric_limits<std::int64_t>::max(), 8, 16};
  call.tensors[0].shape = huge;
  EXPECT_EQ(regard_describe(&call.request, nullptr, 0, nullptr), REGARD_STATUS_INVALID_ARGUMENT);
  std::size_t needed = 0;
  EXPECT_EQ(regard_describe(&call.request, nullptr, 0, &needed), REGARD_STATUS_OVERFLOW);
}

TEST(CTensor, HasDLPacksElementTypes) {
  struct Known {
    regard_dtype dtype;
    const char* name;
  };
  // Numbers, not this header's names: they are DLPack's.
  const Known known[] = {{{2, 64, 1}, "f64"}, {{2, 32, 1}, "f32"},    {{4, 16, 1}, "bf16"},
                         {{2, 16, 1}, "f16"}, {{10, 8, 1}, "f8e4m3"}, {{12, 8, 1}, "f8e5m2"},
                         {{0, 8, 1}, "i8"},   {{1, 8, 1}, "u8"},      {{6, 8, 1}, "bool"},
                         {{0, 32, 1}, "i32"}, {{0, 64, 1}, "i64"},    {{1, 4, 1}, "u4"}};
  static_assert(std::size(known) == kDtypeCount);
  for (const Known& k : known) {
    const Dtype dtype = parse_dtype(k.name).value();
    const regard_dtype made = c_dtype(dtype);
    EXPECT_EQ(std::memcmp(&made, &k.dtype, sizeof(made)), 0) << k.name;
    // sinks must be f32: the refusal names the type that it read.
    SmallCall call;
    std::vector<double> sinks(4);
    const std::int64_t heads[1] = {4};
    const regard_tensor tensor = regard_make_tensor(sinks.data(), k.dtype, 1, heads);
    call.request.sinks = &tensor;
    const std::string text = describe_text(&call.request);
    if (dtype == Dtype::kF32) {
      EXPECT_NE(text.find("sinks"), std::string::npos) << text;
    } else {
      EXPECT_EQ(text, "<[describe] dtype of sinks (" + std::string(k.name) + ") must be f32");
    }
  }
  for (const regard_dtype bad :
       {regard_dtype{2, 32, 2}, regard_dtype{2, 32, 0}, regard_dtype{2, 8, 1},
        regard_dtype{3, 64, 1}, regard_dtype{8, 8, 1}, regard_dtype{1, 32, 1}}) {
    SmallCall call;
    call.tensors[0].dtype = bad;
    const std::string text = describe_text(&call.request);
    EXPECT_EQ(
        text.rfind("<[regard_describe] dtype of q (code " + std::to_string(bad.code) + ", ", 0), 0u)
        << text;
  }
}

TEST(CTensor, RefusesWhatIsNoTensor) {
  const auto refused = [](auto change) {
    SmallCall call;
    change(call.tensors[2]);
    return describe_text(&call.request);
  };
  EXPECT_EQ(refused([](regard_tensor& t) { t.ndim = 0; }),
            "<[regard_describe] ndim of v (0) must be 1..4");
  EXPECT_EQ(refused([](regard_tensor& t) { t.ndim = 5; }),
            "<[regard_describe] ndim of v (5) must be 1..4");
  EXPECT_EQ(refused([](regard_tensor& t) { t.ndim = -3; }),
            "<[regard_describe] ndim of v (-3) must be 1..4");
  EXPECT_EQ(refused([](regard_tensor& t) { t.shape = nullptr; }),
            "<[regard_describe] shape of v (null) must hold its 4 extents");
  EXPECT_EQ(refused([](regard_tensor& t) { t.device = {}; }),
            "<[regard_describe] device_type of v (0) must be 1 (cpu) or 2 (cuda)");
  EXPECT_EQ(refused([](regard_tensor& t) { t.device.device_type = REGARD_DEVICE_CUDA; }),
            "<[describe] device of v (cuda:0) must be q's, cpu:0");
  EXPECT_EQ(refused([](regard_tensor& t) { t.byte_offset = ~std::uint64_t{0} - 7; }),
            "<[regard_describe] byte_offset of v (18446744073709551608) must not lead past the "
            "address space");
  EXPECT_EQ(refused([](regard_tensor& t) {
              t.data = nullptr;
              t.byte_offset = 64;
            }),
            "<[describe] data of v (null) must hold its [2,4,8,16] elements");
  EXPECT_EQ(refused([](regard_tensor& t) { t.ndim = 3; }),
            "<[describe] rank of v (3) must be 4, [B,Hkv,Skv,Dv]");
}

// A tensor that both layers refuse by name, in each field alone.
TEST(CRequest, EveryTensorGoesWhereItsNameSays) {
  const char* const names[] = {"q",
                               "k",
                               "v",
                               "out",
                               "lse",
                               "saved_stats",
                               "scores_out",
                               "attn_mask",
                               "attn_bias",
                               "alibi_slopes",
                               "sinks",
                               "segment_ids_q",
                               "segment_ids_kv",
                               "seqlens_q",
                               "seqlens_kv",
                               "cache_leftpad",
                               "diagonal_offsets",
                               "cu_seqlens_q",
                               "cu_seqlens_kv",
                               "page_table",
                               "scales_k",
                               "scales_v",
                               "channel_scales_k",
                               "scales_q",
                               "block_mask",
                               "captured0",
                               "captured1",
                               "captured2",
                               "captured3",
                               "captured4",
                               "captured5",
                               "captured6",
                               "captured7",
                               "k_new",
                               "v_new",
                               "tree_mask",
                               "rotary_cos",
                               "rotary_sin",
                               "positions",
                               "cache_batch_idx",
                               "descale_q",
                               "descale_k",
                               "descale_v",
                               "out_amax"};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    SmallCall call;
    const std::int64_t shape[4] = {-1, 1, 1, 1};
    regard_tensor bad = regard_make_tensor(call.q.data(), {REGARD_DTYPE_FLOAT, 32, 1}, 4, shape);
    const regard_tensor* const pointer = &bad;
    std::memcpy(reinterpret_cast<char*>(&call.request) + sizeof(std::size_t) + i * sizeof(pointer),
                &pointer, sizeof(pointer));
    EXPECT_EQ(describe_text(&call.request),
              std::string("<[describe] extent 0 of ") + names[i] + " (-1) must be >= 0");
    bad.ndim = 9;
    EXPECT_EQ(describe_text(&call.request),
              std::string("<[regard_describe] ndim of ") + names[i] + " (9) must be 1..4");
  }
}

TEST(CRequestOptions, ZeroIsTheDefaultAndOtherNumbersAreRefused) {
  SmallCall call;
  call.request.is_causal = 0;
  EXPECT_EQ(describe_text(&call.request), "b2 hq4 hkv4 sq8 skv8 d16 f32");
  call.request.is_causal = 2;
  EXPECT_EQ(describe_text(&call.request), "<[regard_describe] is_causal (2) must be 0..1");
  call.request.is_causal = 1;
  call.request.needs_grad = -1;
  EXPECT_EQ(describe_text(&call.request), "<[regard_describe] needs_grad (-1) must be 0..1");
  call.request.needs_grad = 0;
  call.request.d_lse = 2;
  EXPECT_EQ(describe_text(&call.request), "<[regard_describe] d_lse (2) must be 0..1");
  call.request.d_lse = 0;
  call.request.delta = 1;
  EXPECT_EQ(describe_text(&call.request),
            "<[describe] delta (true) is given to a backward: needs_grad must be true");
  call.request.delta = 0;
  call.request.diagonal = static_cast<regard_diagonal>(256);
  EXPECT_EQ(describe_text(&call.request), "<[regard_describe] diagonal (256) must be 0..3");
  call.request.diagonal = REGARD_DIAGONAL_BOTTOM_RIGHT;
  call.request.scores_kind = static_cast<regard_scores_kind>(4);
  EXPECT_EQ(describe_text(&call.request), "<[regard_describe] scores_kind (4) must be 0..3");
  call.request.scores_kind = REGARD_SCORES_NONE;
  const std::int64_t left = 3, right = 0;
  const double scale = 0.5;
  call.request.window_left = &left;
  call.request.window_right = &right;
  call.request.softmax_scale = &scale;
  EXPECT_EQ(describe_text(&call.request),
            "b2 hq4 hkv4 sq8 skv8 d16 f32 causal diag=br window=3,0 scale=0.5");
}

// A request as a later version may have it.
struct LargerRequest {
  regard_request known = regard_request_default();
  const void* later[2] = {nullptr, nullptr};
};

TEST(CStructSize, AnOlderStructLacksItsTail) {
  SmallCall call;
  const double scale = 0.5;
  call.request.softmax_scale = &scale;
  call.request.struct_size = offsetof(regard_request, softmax_scale);  // before the options
  EXPECT_EQ(describe_text(&call.request), "b2 hq4 hkv4 sq8 skv8 d16 f32");
  call.request.struct_size = offsetof(regard_request, window_left);
  EXPECT_EQ(describe_text(&call.request), "b2 hq4 hkv4 sq8 skv8 d16 f32 scale=0.5");
  call.request.struct_size = offsetof(regard_request, out);
  EXPECT_EQ(describe_text(&call.request),
            "<[describe] out (absent) must have rank 4, [B,Hq,Sq,Dv]");
}

TEST(CStructSize, ALaterStructMayAskForNothingUnknown) {
  SmallCall call;
  LargerRequest larger;
  larger.known = call.request;
  larger.known.struct_size = sizeof(larger);
  EXPECT_EQ(describe_text(&larger.known), "b2 hq4 hkv4 sq8 skv8 d16 f32 causal");
  larger.later[1] = &larger;
  const std::string text = describe_text(&larger.known);
  EXPECT_EQ(
      text.rfind("<[regard_describe] struct_size of request (" + std::to_string(sizeof(larger)) +
                     ") must be at most " + std::to_string(sizeof(regard_request)) +
                     " with a byte that is not 0 at ",
                 0),
      0u)
      << text;
}

TEST(CStructSize, RefusesWhatNoVersionStates) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, sizeof(regard_request) - 4,
        sizeof(regard_request) + 1, std::size_t{4104}, std::numeric_limits<std::size_t>::max()}) {
    SmallCall call;
    call.request.struct_size = size;
    EXPECT_EQ(describe_text(&call.request), "<[regard_describe] struct_size of request (" +
                                                std::to_string(size) + ") must be its sizeof, " +
                                                std::to_string(sizeof(regard_request)) +
                                                " in regard " + version());
  }
  SmallCall call;
  const ContextHandle context = make_c_context();
  regard_policy policy = {};
  EXPECT_EQ(regard_attention(context.get(), &call.request, &policy, nullptr),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(regard_last_error(), std::string("[regard_attention] struct_size of policy (0) must be "
                                             "its sizeof, 96 in regard ") +
                                     version());
  regard_launch launch = {};
  EXPECT_EQ(regard_attention(context.get(), &call.request, nullptr, &launch),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(regard_last_error(), std::string("[regard_attention] struct_size of launch (0) must be "
                                             "its sizeof, 48 in regard ") +
                                     version());
  EXPECT_TRUE(call.untouched());
}

TEST(CStructSize, OfAnOlderPolicyAndLaunch) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  regard_policy policy = only_policy("math");
  policy.on_fallback = "no such word";
  policy.struct_size = offsetof(regard_policy, require);
  regard_launch launch = regard_launch_default();
  launch.workspace = &launch;  // misaligned and too small, were it read
  launch.struct_size = offsetof(regard_launch, workspace);
  EXPECT_EQ(regard_attention(context.get(), &call.request, &policy, &launch), REGARD_STATUS_OK)
      << regard_last_error();
}

}  // namespace
}  // namespace regard::test
