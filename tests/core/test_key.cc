#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

#include "mock_backend.h"

namespace regard::test {
namespace {

// A different valid value of a field, by its type.
template <class T>
void change(T& field) {
  if constexpr (std::is_same_v<T, Device>) {
    field.type = DeviceType::kCuda;
  } else if constexpr (std::is_same_v<T, FeatureSet>) {
    field.set(Feature::kSinks, !field.has(Feature::kSinks));
  } else if constexpr (std::is_same_v<T, Expression>) {
    field = field.type() == ValueType::kBool ? Expression(true) : Expression(1.5);
  } else if constexpr (std::is_enum_v<T>) {
    field = static_cast<T>(static_cast<int>(field) + 1);
  } else if constexpr (std::is_floating_point_v<T>) {
    field += 0.25;
  } else {
    field = static_cast<T>(field + 1);
  }
}

AttentionParams full_case() {
  return case_params(
      "b3 hq8 hkv4 sq40 skv40 d16 dv24 bf16 causal diag=br window=7,0 softcap=2 scale=0.5 "
      "score=score*2.0 mask=B,1,Sq,Skv mask=kv_idx%2==0 block_mask=8,8 bias=1,H,1,Skv dropout=0.25 "
      "scores=scaled");
}

TEST(Key, EveryFieldChangesIt) {
  const AttentionKey base = AttentionKey::make(full_case(), false).value();
  int fields = 0;
  for_each_field(base.params(), [&](const char*, const auto&) { ++fields; });
  for (int changed = 0; changed < fields; ++changed) {
    AttentionParams params = full_case();
    int i = 0;
    std::string name;
    for_each_field(params, [&](const char* field_name, auto& field) {
      if (i++ != changed) return;
      name = field_name;
      change(field);
    });
    const Expected<AttentionKey> key = AttentionKey::make(params, false);
    ASSERT_TRUE(key) << name;
    EXPECT_FALSE(*key == base) << name << " is not part of the key";
    EXPECT_NE(key->hash(), base.hash()) << name << " is not part of the hash";
  }
}

TEST(Key, RoundedExtentsCannotChangeTheDecision) {
  // Extents of one class are one key: select is given nothing else, so it cannot tell them apart.
  AttentionParams a = full_case(), b = full_case();
  a.seqlen_kv = 1025;
  b.seqlen_kv = 1100;
  EXPECT_EQ(AttentionKey::make(a, false).value(), AttentionKey::make(b, false).value());
  b.seqlen_kv = 1153;
  EXPECT_FALSE(AttentionKey::make(a, false).value() == AttentionKey::make(b, false).value());
}

TEST(Key, ClassesAreExactTo64ThenEightAnOctave) {
  for (std::int64_t n = 0; n <= 64; ++n) EXPECT_EQ(extent_class(n), n);
  std::set<std::int64_t> classes;
  for (std::int64_t n = 65; n <= 4096; ++n) {
    const std::int64_t c = extent_class(n);
    EXPECT_GE(c, n);
    EXPECT_LE(c - n, n / 8 + 1);
    classes.insert(c);
  }
  EXPECT_EQ(classes.size(), 48u);
  EXPECT_EQ(extent_class(65), 72);
  EXPECT_EQ(extent_class(72), 72);
  EXPECT_EQ(extent_class(129), 144);
}

TEST(Key, ARelationIsComputedBeforeRounding) {
  // 130 and 129 share a class; only the feature bit still knows which is larger.
  AttentionParams params = case_params("sq130 skv129 d8 f32");
  const AttentionKey longer = AttentionKey::make(params, false).value();
  EXPECT_EQ(longer.params().seqlen_q, longer.params().seqlen_kv);
  EXPECT_TRUE(longer.params().features.has(Feature::kSeqlenQGreaterKv));
}

TEST(Key, AssumingFiniteInputsIsPartOfIt) {
  EXPECT_FALSE(AttentionKey::make(full_case(), true).value() ==
               AttentionKey::make(full_case(), false).value());
}

TEST(Key, HugeExtentsAreAnError) {
  AttentionParams params = full_case();
  params.seqlen_kv = (std::int64_t{1} << 62) + 1;
  const auto key = AttentionKey::make(params, false);
  ASSERT_FALSE(key);
  EXPECT_EQ(key.status().code(), StatusCode::kOverflow);
}

}  // namespace
}  // namespace regard::test
