// The table of tensors: complete, and what iterates it follows a row that is added.

#include "regard/tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "c_api/read.h"
#include "core/describe/check_data.h"
#include "core/describe/describe.h"
#include "core/describe/describe_gradients.h"
#include "core/execute/check_workspace.h"
#include "tests/unit/described_request.h"

namespace regard {
namespace {

using namespace described;

// A call with three tensors more than this version has, and its twin in C.
struct LaterBuffers : Buffers {
  TensorView scale;    // broadcasts
  TensorView blocks;   // defines an extent
  TensorView row_max;  // an output
};
struct LaterGradients : GradBuffers {
  TensorView d_row_max;
};
struct LaterRequest : regard_request {
  const regard_tensor* scale = nullptr;
  const regard_tensor* blocks = nullptr;
  const regard_tensor* row_max = nullptr;
};
struct LaterCGradients : regard_gradients {
  const regard_tensor* d_row_max = nullptr;
};

template <class T, class Base, class Later>
constexpr T Base::*member(T Later::*later) {
  return static_cast<T Base::*>(later);
}

const TensorSpec kLaterForward[] = {
    {.name = "scale",
     .buffer = member<TensorView, Buffers>(&LaterBuffers::scale),
     .c_request = member<const regard_tensor*, regard_request>(&LaterRequest::scale),
     .forward = TensorRole::kIn,
     .backward = TensorRole::kIn,
     .written_with = {Feature::kAppendKv},
     .data = DataRule::kScale,
     .shape = "[1|B,1|Hkv]",
     .dtype = DtypeRule::kF32,
     .features = {Feature::kDescales},
     .full_dims = &AttentionParams::mask_dims},
    {.name = "blocks",
     .buffer = member<TensorView, Buffers>(&LaterBuffers::blocks),
     .c_request = member<const regard_tensor*, regard_request>(&LaterRequest::blocks),
     .forward = TensorRole::kIn,
     .backward = TensorRole::kIn,
     .shape = "[B+1,positions,positions]",
     .dtype = DtypeRule::kI64,
     .beside = &Buffers::sinks,
     .features = {Feature::kSegmentIds}},
    {.name = "row_max",
     .buffer = member<TensorView, Buffers>(&LaterBuffers::row_max),
     .c_request = member<const regard_tensor*, regard_request>(&LaterRequest::row_max),
     .forward = TensorRole::kOut,
     .backward = TensorRole::kIn,
     .shape = "[Hq] or [B,Hq]",
     .dtype = DtypeRule::kStatistics,
     .second_shape_features = {Feature::kCacheBatchIdx}},
};
const TensorSpec kLaterBackward[] = {
    {.name = "d_row_max",
     .gradient = member<TensorView, GradBuffers>(&LaterGradients::d_row_max),
     .c_gradient = member<const regard_tensor*, regard_gradients>(&LaterCGradients::d_row_max),
     .backward = TensorRole::kOut,
     .shape = "[Hq] or [B,Hq]",
     .dtype = DtypeRule::kStatistics},
};

const std::vector<TensorSpec>& later_specs() {
  static const std::vector<TensorSpec> specs = [] {
    std::vector<TensorSpec> made(std::begin(kTensors), std::end(kTensors));
    std::size_t forward = 0;
    while (made[forward].buffer != nullptr) ++forward;
    made.insert(made.begin() + static_cast<std::ptrdiff_t>(forward), std::begin(kLaterForward),
                std::end(kLaterForward));
    made.insert(made.end(), std::begin(kLaterBackward), std::end(kLaterBackward));
    return made;
  }();
  return specs;
}

LaterBuffers later_buffers() {
  LaterBuffers b;
  static_cast<Buffers&>(b) = good_request();
  b.scale = tensor(20, Dtype::kF32, {kB, 1});
  b.blocks = tensor(21, Dtype::kI64, {kB + 1, 5, 5});
  b.sinks = tensor(10, Dtype::kF32, {kHq});
  b.row_max = tensor(22, Dtype::kF32, {kB, kHq});
  return b;
}

Expected<AttentionParams> describe_later(const LaterBuffers& b) {
  return describe_buffers(b, {}, "later", later_specs());
}

TEST(Tensors, ANewRowIsDescribed) {
  const AttentionParams plain = describe(good_request()).value();
  const Expected<AttentionParams> p = describe_later(later_buffers());
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->features, plain.features.with({Feature::kDescales, Feature::kSegmentIds,
                                              Feature::kCacheBatchIdx, Feature::kSinks}));
  LaterBuffers b = later_buffers();
  b.row_max = tensor(22, Dtype::kF32, {kHq});
  EXPECT_FALSE(describe_later(b).value().features.has(Feature::kCacheBatchIdx));
  // Without the rows they are not there.
  EXPECT_EQ(describe_buffers(b, {}, "now").value().features,
            plain.features.with({Feature::kSinks}));
}

struct Bad {
  const char* name;
  void (*spoil)(LaterBuffers&);
  const char* message;
};

TEST(Tensors, ANewRowIsChecked) {
  const Bad bad[] = {
      {"dtype", [](LaterBuffers& b) { b.scale.dtype = Dtype::kI32; },
       "[later] dtype of scale (i32) must be f32"},
      {"broadcast",
       [](LaterBuffers& b) {
         b.scale = tensor(20, Dtype::kF32, {kB, kHq});
       },
       "[later] shape of scale ([2,8]) must broadcast to [2,4], [1|B,1|Hkv]"},
      {"rank", [](LaterBuffers& b) { b.blocks = tensor(21, Dtype::kI64, {kB + 1}); },
       "[later] rank of blocks (1) must be 3, [B+1,positions,positions]"},
      {"sum",
       [](LaterBuffers& b) {
         b.blocks = tensor(21, Dtype::kI64, {kB, 5, 5});
       },
       "[later] shape of blocks ([2,5,5]) must be [3,5,5], [B+1,positions,positions]"},
      {"own extent",
       [](LaterBuffers& b) {
         b.blocks = tensor(21, Dtype::kI64, {kB + 1, 5, 4});
       },
       "[later] shape of blocks ([3,5,4]) must be [3,5,5], [B+1,positions,positions]"},
      {"beside", [](LaterBuffers& b) { b.sinks = {}; },
       "[later] sinks (absent) must be given with blocks"},
      {"second shape",
       [](LaterBuffers& b) {
         b.row_max = tensor(22, Dtype::kF32, {kB, 3});
       },
       "[later] shape of row_max ([2,3]) must be [2,8], [B,Hq] or [Hq]"},
      {"stride", [](LaterBuffers& b) { b.scale.strides[0] = -1; },
       "[later] stride 0 of scale (-1) must be >= 0"},
      {"device", [](LaterBuffers& b) { b.blocks.device.type = DeviceType::kCuda; },
       "[later] device of blocks (cuda:0) must be q's, cpu:0"},
      {"output on input", [](LaterBuffers& b) { b.row_max.data = b.k.data; },
       "[later] row_max f32[2,8] strides (8,1) must not overlap k f32[2,4,10,16] strides "
       "(640,160,16,1)"},
      {"input on output", [](LaterBuffers& b) { b.scale.data = b.out.data; },
       "[later] out f32[2,8,6,32] strides (1536,192,32,1) must not overlap scale f32[2,1] strides "
       "(1,1)"},
      {"itself", [](LaterBuffers& b) { b.row_max.strides[0] = 0; },
       "[later] row_max f32[2,8] strides (0,1) must not overlap itself"},
  };
  for (const Bad& each : bad) {
    LaterBuffers b = later_buffers();
    each.spoil(b);
    const Expected<AttentionParams> p = describe_later(b);
    ASSERT_FALSE(p.ok()) << each.name;
    EXPECT_EQ(p.status().message(), each.message);
  }
}

TEST(Tensors, ARoleMayDependOnTheRequest) {
  LaterBuffers b = later_buffers();
  b.scale.data = b.q.data;  // inputs may overlap
  EXPECT_TRUE(describe_later(b).ok());
  b.seqlens_kv = tensor(17, Dtype::kI32, {kB});
  b.k_new = tensor(15, Dtype::kF32, {kB, kHkv, 1, kD});
  b.v_new = tensor(16, Dtype::kF32, {kB, kHkv, 1, kDv});
  EXPECT_NE(describe_later(b).status().message().find("scale f32[2,1]"), std::string::npos)
      << describe_later(b).status().message();

  AttentionRequest r = good_request();
  r.v = r.k;
  r.v.shape[3] = 8;
  r.out = tensor(3, Dtype::kF32, {kB, kHq, kSq, 8});
  EXPECT_TRUE(describe(r).ok());
  r.seqlens_kv = tensor(17, Dtype::kI32, {kB});
  r.k_new = tensor(15, Dtype::kF32, {kB, kHkv, 1, kD});
  r.v_new = tensor(16, Dtype::kF32, {kB, kHkv, 1, 8});
  EXPECT_NE(describe(r).status().message().find("k f32[2,4,10,16]"), std::string::npos)
      << "rows are written to k and v: " << describe(r).status().message();
}

TEST(Tensors, DataAndWorkspaceOfANewRowAreChecked) {
  const LaterBuffers b = later_buffers();
  const AttentionParams p = describe_later(b).value();
  const float bad[] = {1.0f, -2.0f};
  std::memcpy(b.scale.data, bad, sizeof(bad));
  EXPECT_EQ(check_data(b, p, "later", later_specs()).message(),
            "[later] scale[1,0] (-2), expected finite and at least 0");
  EXPECT_TRUE(check_data(b, p, "now").ok());
  const Workspace workspace{b.blocks.data, 64};
  EXPECT_EQ(check_workspace(workspace, 64, b, nullptr, "later", later_specs()).message(),
            "[later] workspace of 64 bytes must not overlap blocks i64[3,5,5] strides (25,5,1)");
  EXPECT_TRUE(check_workspace(workspace, 64, b, nullptr, "now").ok());
}

TEST(Tensors, ABackwardFollowsANewRow) {
  LaterBuffers b = later_buffers();
  LaterGradients g;
  g.saved.stats = tensor(5, Dtype::kF32, {kB, kHq, kSq, 2});
  g.saved.kind = SavedContext::Kind::kStats;
  g.d_out = tensor(6, Dtype::kF32, {kB, kHq, kSq, kDv});
  g.d_row_max = tensor(23, Dtype::kF32, {kHq});
  const AttentionParams p = describe_later(b).value();
  const auto message = [&] { return check_gradients(b, g, p, "later", later_specs()).message(); };
  EXPECT_EQ(message(), "");
  g.d_row_max = tensor(23, Dtype::kF32, {kHkv});
  EXPECT_EQ(message(), "[later] shape of d_row_max ([4]) must be [8], [Hq] or [B,Hq]");
  g.d_row_max = tensor(22, Dtype::kF32, {kHq});
  EXPECT_EQ(message(),
            "[later] d_row_max f32[8] strides (1) must not overlap row_max f32[2,8] strides (8,1)");
  const Workspace workspace{g.d_row_max.data, 64};
  b.row_max = {};
  EXPECT_EQ(check_workspace(workspace, 64, b, &g, "later", later_specs()).message(),
            "[later] workspace of 64 bytes must not overlap d_row_max f32[8] strides (1)");
}

TEST(Tensors, TheCAbiReadsANewRow) {
  const std::int64_t shape[] = {2, 3};
  float data[6] = {};
  const regard_tensor given = regard_make_tensor(data, {REGARD_DTYPE_FLOAT, 32, 1}, 2, shape);
  LaterRequest request{regard_request_default()};
  request.scale = &given;
  LaterBuffers b;
  ASSERT_TRUE(c_api::read_tensors("later", request, &b, later_specs()).ok());
  EXPECT_EQ(b.scale.data, data);
  EXPECT_EQ(to_string(b.scale), "f32[2,3] strides (3,1)");
  EXPECT_FALSE(b.row_max.present());
  LaterCGradients gradients{regard_gradients_default()};
  gradients.d_row_max = &given;
  LaterGradients g;
  ASSERT_TRUE(c_api::read_tensors("later", gradients, &g, later_specs()).ok());
  EXPECT_EQ(g.d_row_max.data, data);
}

TEST(Tensors, TheTableOfTheDocumentsShowsANewRow) {
  const std::string table = tensor_table(later_specs());
  for (const char* row :
       {"| `scale` | in; in-out with `append_kv` | in | `[1\\|B,1\\|Hkv]` | f32 | `descales` |\n",
        "| `row_max` | out | in | `[Hq] or [B,Hq]` | f32 (f64 for f64) | `cache_batch_idx` where "
        "`[B,Hq]` |\n",
        "| `d_row_max` | - | out | `[Hq] or [B,Hq]` | f32 (f64 for f64) |  |\n"}) {
    EXPECT_NE(table.find(row), std::string::npos) << row << table;
  }
}

TEST(Tensors, RowsAreDistinctAndEachHasItsTwinInC) {
  std::set<std::string> names;
  for (const TensorSpec& spec : kTensors) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_EQ(spec.buffer != nullptr, spec.c_request != nullptr) << spec.name;
    EXPECT_EQ(spec.buffer == nullptr, spec.c_gradient != nullptr) << spec.name;
    EXPECT_EQ(spec.buffer == nullptr, spec.forward == TensorRole::kNone) << spec.name;
  }
}

}  // namespace
}  // namespace regard
