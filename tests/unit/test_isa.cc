#include "regard/isa.h"

#include <gtest/gtest.h>

#include <string>

namespace regard {
namespace {

TEST(Isa, NamesParseBack) {
  for (const Isa& isa : named_isas()) {
    const Expected<Isa> parsed = parse_isa(to_string(isa));
    ASSERT_TRUE(parsed) << to_string(isa);
    EXPECT_EQ(*parsed, isa);
  }
  EXPECT_EQ(parse_isa("sse9").status().message(),
            "[parse_isa] unknown instruction set \"sse9\"; expected scalar, avx2, avx512, "
            "avx512_bf16, amx_bf16, neon or neon_bf16");
}

TEST(Isa, InclusionIsNoLinearOrder) {
  EXPECT_TRUE(Isa::kAvx512Bf16.includes(Isa::kAvx2));
  EXPECT_FALSE(Isa::kAvx2.includes(Isa::kAvx512));
  EXPECT_FALSE(Isa::kNeon.includes(Isa::kAvx2));
  EXPECT_TRUE(Isa::kAmxBf16.includes(Isa::kAvx512Bf16));
  EXPECT_EQ(isa_without(Isa::kAmxBf16, Isa::kAvx512Bf16), Isa::kAvx512);
  EXPECT_FALSE(Isa::kAvx512Bf16.includes(Isa::kNeon));
  for (const Isa& isa : named_isas()) EXPECT_TRUE(isa.includes(Isa::kScalar)) << to_string(isa);
}

TEST(Isa, EachNamedSetFollowsThoseThatItIncludes) {
  const auto all = named_isas();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j)
      EXPECT_FALSE(all[i].includes(all[j])) << i << j;
  }
}

TEST(Isa, ArchitectureFollowsTheExtensions) {
  EXPECT_EQ(Isa::kScalar.architecture(), Architecture::kPortable);
  EXPECT_EQ(Isa::kAvx512.architecture(), Architecture::kX86_64);
  EXPECT_EQ(Isa::kNeonBf16.architecture(), Architecture::kAarch64);
  EXPECT_EQ(Isa::kAvx512 & Isa::kNeon, Isa::kScalar);
}

TEST(Isa, ACapKeepsWhatBothHave) {
  EXPECT_EQ(Isa::kAvx512Bf16 & Isa::kAvx2, Isa::kAvx2);
  EXPECT_EQ(Isa::kAvx2 & Isa::kAvx512Bf16, Isa::kAvx2);
  // A machine whose extensions have no name of their own gets that of the largest named subset.
  const Isa unnamed{CpuExtension::kAvx2, CpuExtension::kAvx512Bf16};
  EXPECT_STREQ(to_string(unnamed), "avx2");
}

TEST(Isa, WithoutASetTheBestRemains) {
  EXPECT_EQ(isa_without(Isa::kAvx512Bf16, Isa::kAvx512Bf16), Isa::kAvx512);
  EXPECT_EQ(isa_without(Isa::kAvx512Bf16, Isa::kAvx2), Isa::kScalar);
  EXPECT_EQ(isa_without(Isa::kNeonBf16, Isa::kNeonBf16), Isa::kNeon);
  EXPECT_EQ(isa_without(Isa::kAvx2, Isa::kNeon), Isa::kAvx2);
}

}  // namespace
}  // namespace regard
