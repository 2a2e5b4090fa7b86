// The support matrix of records that are written here.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/guide/support.h"

namespace regard::guide {
namespace {

BackendInfo record(BackendId id) {
  BackendInfo info;
  info.ref.id = id;
  info.forward.offered = info.backward.offered = true;
  info.forward.dtypes = info.backward.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 1e-6}};
  info.forward.features = info.backward.features = {Feature::kCausal};
  info.forward.head_dim_qk = info.forward.head_dim_v = {1, 64, 1};
  info.backward.head_dim_qk = info.backward.head_dim_v = {1, 64, 1};
  return info;
}

std::vector<BackendInfo> records() {
  BackendInfo flash = record(BackendId::kFlash), math = record(BackendId::kMath);
  flash.backward.features = {};
  DtypeClaim faster{Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 6e-3};
  faster.min_isa = Isa::kAvx512Bf16;
  math.forward.dtypes.push_back({Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 4e-3});
  math.forward.dtypes.push_back(faster);
  math.forward.features.set(Feature::kSoftcap);
  math.forward.head_dim_qk.max = 128;
  return {flash, math};
}

const SupportRow& row(const std::vector<SupportRow>& rows, const std::string& name) {
  for (const SupportRow& found : rows) {
    if (found.name == name) return found;
  }
  ADD_FAILURE() << "no row " << name;
  return rows.front();
}

const SupportCell kYes{SupportCell::Kind::kYes, "yes"};

TEST(Support, TypesHaveTheirBounds) {
  const SupportMatrix matrix = support_matrix(records(), DeviceType::kCpu);
  ASSERT_EQ(matrix.backends, (std::vector<std::string>{"flash", "math"}));
  const SupportCell bound{SupportCell::Kind::kYes, "1.0e-06"};
  EXPECT_EQ(row(matrix.types, "f32").forward, (std::vector<SupportCell>{bound, bound}));
  const SupportRow& bf16 = row(matrix.types, "bf16");
  EXPECT_EQ(bf16.forward[0].text, "does not support bf16; set dtype to f32, or use math");
  EXPECT_EQ(bf16.forward[1].text, "4.0e-03; 6.0e-03 from avx512_bf16");
  EXPECT_EQ(bf16.backward[1].text, "does not support bf16 in a backward; set dtype to f32");
}

TEST(Support, OfOneMachineStatesWhatHoldsThere) {
  Env env;
  env.sm_version = kSmUnread;
  env.isa = Isa::kAvx2;
  const auto bound = [&] {
    return row(support_matrix(records(), DeviceType::kCpu, &env).types, "bf16").forward[1].text;
  };
  EXPECT_EQ(bound(), "4.0e-03");
  env.isa = Isa::kAvx512Bf16;
  EXPECT_EQ(bound(), "6.0e-03");
}

TEST(Support, FeaturesAreJudgedAlone) {
  const SupportMatrix matrix = support_matrix(records(), DeviceType::kCpu);
  const SupportRow& causal = row(matrix.features, "causal");
  EXPECT_EQ(causal.forward, (std::vector<SupportCell>{kYes, kYes}));
  EXPECT_EQ(causal.backward[0].text,
            "does not support causal in a backward; remove it, or use math");
  EXPECT_EQ(causal.backward[1], kYes);
  const SupportRow& softcap = row(matrix.features, "softcap");
  EXPECT_EQ(softcap.forward[0].text, "does not support softcap; remove it, or use math");
  EXPECT_EQ(softcap.forward[1], kYes);
  EXPECT_EQ(row(matrix.features, "non_finite_behind_mask").forward[0].text,
            "does not support non_finite_behind_mask; set assume_finite to true");
  EXPECT_EQ(row(matrix.features, "delta").forward[0].kind, SupportCell::Kind::kNotApplicable);
  EXPECT_EQ(row(matrix.features, "delta").backward[0].kind, SupportCell::Kind::kNo);
}

TEST(Support, SizesThatAreRefused) {
  const SupportMatrix matrix = support_matrix(records(), DeviceType::kCpu);
  const SupportRow& first = row(matrix.sizes, "head_dim_qk 65");
  EXPECT_EQ(first.forward[0].text,
            "supports head_dim_qk 1 to 64, got 65; reduce it to 64, or use math");
  EXPECT_EQ(first.forward[1], kYes);
}

TEST(Support, RefusalsOfSeveralBackendsAreOne) {
  const std::vector<RefusedRequest> refused =
      refused_requests(support_matrix(records(), DeviceType::kCpu));
  int alibi = 0, causal = 0, softcap = 0;
  for (const RefusedRequest& request : refused) {
    if (request.request == "alibi") {
      EXPECT_EQ(request.backends, (std::vector<std::string>{"flash", "math"}));
      EXPECT_EQ(request.sentence, "does not support alibi; remove it");
      ++alibi;
    }
    causal += request.request == "causal, gradients";
    softcap += request.request == "softcap, gradients";  // of math; flash refuses the forward
  }
  EXPECT_EQ(alibi, 1);
  EXPECT_EQ(causal, 1);
  EXPECT_EQ(softcap, 1);
}

TEST(Support, BackendsThatAreNotBuiltHaveTheirReason) {
  std::vector<BackendInfo> infos = records();
  infos[1].built = false;
  infos[1].not_built_reason = "configure with -DX=ON";
  const SupportMatrix matrix = support_matrix(infos, DeviceType::kCpu);
  EXPECT_EQ(matrix.backends, (std::vector<std::string>{"flash"}));
  ASSERT_EQ(matrix.absent.size(), 1u);
  EXPECT_EQ(matrix.absent[0].name, "math");
  EXPECT_EQ(matrix.absent[0].reason, "configure with -DX=ON");
  EXPECT_TRUE(support_matrix(infos, DeviceType::kCuda).backends.empty());
}

}  // namespace
}  // namespace regard::guide
