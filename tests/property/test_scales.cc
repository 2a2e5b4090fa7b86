#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "oracle/number.h"
#include "oracle/padded.h"
#include "oracle/rules.h"
#include "property.h"
#include "tests/support/all_units.h"

// Keys and values of 8 bits and of 4 with scales: the numbers that their codes stand for, in a
// batch, in pages and as rows are appended.

namespace regard {
namespace {

using conformance::Problem;
using test::unequal;

class Scales : public test::Property {
 protected:
  /// Scales become powers of two, and minima -1/2, with which a number is exact wherever it is
  /// computed.
  static void round_to_powers(const TensorView& scales) {
    if (!scales.present()) return;
    conformance::for_each_element(scales, [](const auto& at, unsigned char* element) {
      const float power = (at[0] + at[1] + at[2] + at[3] / 2) % 3 == 0 ? 0.03125f : 0.0625f;
      const float number = at[3] % 2 == 0 ? power : -0.5f;
      std::memcpy(element, &number, sizeof number);
    });
  }

  /// The rows as f32 [B,Hkv,Skv,D]: times their scales, and of u4 plus the minima of their groups.
  TensorView numbers_of(const TensorView& rows, const TensorView& scales) {
    std::vector<float>& memory = memory_.emplace_back(
        static_cast<std::size_t>(rows.shape[0] * rows.shape[1] * rows.shape[2] * rows.shape[3]));
    const TensorView view = make_view(memory.data(), Dtype::kF32,
                                      {rows.shape[0], rows.shape[1], rows.shape[2], rows.shape[3]});
    std::size_t n = 0;
    for (std::int64_t b = 0; b < rows.shape[0]; ++b) {
      for (std::int64_t h = 0; h < rows.shape[1]; ++h) {
        for (std::int64_t j = 0; j < rows.shape[2]; ++j) {
          for (std::int64_t d = 0; d < rows.shape[3]; ++d) {
            const std::int64_t at = scales.rank == 4 ? d / 32 * 2 : 0;
            const double scale = scales.present() ? oracle::element(scales, b, h, j, at) : 1.0;
            const double min = scales.rank == 4 ? oracle::element(scales, b, h, j, at + 1) : 0.0;
            memory[n++] = static_cast<float>(oracle::element(rows, b, h, j, d) * scale + min);
          }
        }
      }
    }
    return view;
  }

  /// Of f32: within what an order of sums changes.
  static void expect_near(const TensorView& a, const TensorView& b, const char* text) {
    conformance::for_each_element(a, [&](const auto& at, unsigned char* element) {
      const double expected =
          static_cast<double>(b.rank == 3 ? oracle::element(b, at[0], at[1], at[2])
                                          : oracle::element(b, at[0], at[1], at[2], at[3]));
      ASSERT_NEAR(static_cast<double>(oracle::decode(element, Dtype::kF32)), expected,
                  2e-6 * std::fmax(1.0, std::fabs(expected)))
          << text;
    });
  }

 private:
  std::vector<std::vector<float>> memory_;
};

constexpr const char* kScaleCases[] = {
    "b2 hq4 hkv2 sq1 skv640 d64 f32 kv=i8 scales=token lens=kv lse seed=1",
    "b2 hq4 hkv2 sq5 skv200 d40 f32 kv=i8 v=f8e4m3 scales=all causal diag=br lse seed=2",
    "b2 hq2 sq70 skv320 d24 dv16 f32 kv=f8e5m2 scales=token window=40,0 diag=br lse seed=3",
    "b3 hq8 hkv2 sq1 skv300 d128 f32 kv=i8 v=f32 scales=token lse seed=4",
    "b2 hq2 sq130 skv96 d300 f32 kv=f8e4m3 scales=token softcap=4 lse seed=5",
    "b2 hq8 hkv2 sq1 skv640 d128 f32 kv=u4 lens=kv lse seed=6",
    "b2 hq6 hkv2 sq1 skv77 d96 f32 kv=u4 layout=bshd lse seed=7",
    "b1 hq2 sq1 skv333 d64 dv32 f32 kv=u4 lse seed=8",
    "b2 hq4 hkv2 sq7 skv200 d40 f32 kv=i8 v=u4 scales=token causal diag=br lse seed=9",
    "b2 hq2 sq70 skv320 d24 dv16 f32 kv=u4 v=f32 window=40,0 diag=br lse seed=10",
    "b1 hq2 sq130 skv96 d300 f32 kv=f32 v=u4 softcap=4 lse seed=11"};

// A scale that is a power of two changes no rounding; what is left is the order of sums, for tiles
// of few bits have more keys.
TEST_P(Scales, AreTheNumbersOfTheCodes) {
  for (const char* text : kScaleCases) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& r = problem.request();
    round_to_powers(r.scales_k);
    round_to_powers(r.scales_v);
    AttentionRequest plain = r;
    plain.k = numbers_of(r.k, r.scales_k);
    plain.v = numbers_of(r.v, r.scales_v);
    plain.scales_k = plain.scales_v = TensorView{};
    plain = run_anew(plain);
    run(r);
    expect_near(r.out, plain.out, text);
    expect_near(r.lse, plain.lse, text);
  }
}

// In pages, in entries of a cache and with new rows quantised on the way: the batch's bits.
TEST_P(Scales, InACacheAreTheBatch) {
  for (const char* text :
       {"b3 hq4 hkv2 sq1 skv640 d64 bf16 kv=i8 scales=token paged page_size=16 append causal "
        "diag=br lens_kv=639,77,0 rotary=64",
        "b2 hq2 sq5 skv200 d40 f32 kv=i8 scales=all channel_scales paged page_size=8 append=5 "
        "causal diag=br lens_kv=195,3",
        "b2 hq2 sq70 skv320 d24 dv16 f16 kv=f8e4m3 v=i8 scales=token paged page_size=1 append=70 "
        "lens_kv=0,250",
        "b2 hq4 hkv2 sq3 skv96 d300 bf16 kv=f8e5m2 scales=token cache_batch_idx append=3 lens=kv",
        "b2 hq4 hkv2 sq3 skv96 d64 f32 kv=i8 v=f32 channel_scales append=3 lens=kv",
        "b3 hq4 hkv2 sq1 skv640 d64 bf16 kv=u4 paged page_size=16 append causal diag=br "
        "lens_kv=639,77,0 rotary=64",
        "b2 hq8 hkv2 sq1 skv200 d128 f32 kv=u4 paged page_size=8 append lens_kv=195,3 hadamard",
        "b2 hq2 sq70 skv320 d34 dv16 f16 kv=u4 v=i8 scales=token paged page_size=1 append=70 "
        "lens_kv=0,250",
        "b2 hq4 hkv2 sq3 skv96 d64 f32 kv=i8 v=u4 channel_scales append=3 lens=kv hadamard",
        "b2 hq4 hkv2 sq3 skv96 d64 bf16 kv=u4 channel_scales cache_batch_idx append=3 lens=kv"}) {
    const std::string with_lse = std::string(text) + " lse seed=1";
    const Problem problem = problem_of(with_lse);
    const AttentionGradRequest& r = problem.request();
    const oracle::Padded twin = oracle::Padded::make(r).value();
    const AttentionRequest batch = run_anew(test::without_cache(r, twin));
    run(r);
    EXPECT_EQ(unequal(r.out, batch.out), "") << text;
    EXPECT_EQ(unequal(r.lse, batch.lse), "") << text;
    EXPECT_EQ(problem.check_memory(), "") << text;
  }
}

/// q's numbers in f32, and an output of its own.
AttentionRequest with_floats(AttentionRequest request, std::vector<float>* q,
                             std::vector<float>* out) {
  const TensorView from = request.q;
  q->clear();
  for (std::int64_t b = 0; b < from.shape[0]; ++b) {
    for (std::int64_t h = 0; h < from.shape[1]; ++h) {
      for (std::int64_t i = 0; i < from.shape[2]; ++i) {
        for (std::int64_t d = 0; d < from.shape[3]; ++d) {
          q->push_back(static_cast<float>(oracle::element(from, b, h, i, d)));
        }
      }
    }
  }
  const auto view = [&](std::vector<float>* data, std::int64_t dim) {
    const std::int64_t* const shape = from.shape;
    data->resize(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * dim));
    return make_view(data->data(), Dtype::kF32, {shape[0], shape[1], shape[2], dim});
  };
  request.q = view(q, from.shape[3]);
  request.out = view(out, request.out.shape[3]);
  return request;
}

bool multiplies_words(const test::Forced& unit) {
  return unit.backend.id != BackendId::kMath && unit.isa.has(CpuExtension::kAvx2);
}

/// u4's codes are multiplied in bytes.
bool multiplies_bytes(const test::Forced& unit) {
  return unit.backend.id != BackendId::kMath && unit.isa.has(CpuExtension::kAvx512Bf16);
}

// Few rows of bf16 over int8 take words of 16 bits where the unit has them, over u4 bytes, over
// 8-bit floats pairs of bf16, or floats.
TEST(FewRowsOfBf16, AreWithinTheTolerance) {
  test::AllUnits& units = test::AllUnits::instance();
  for (const char* shape :
       {"b2 hq4 hkv1 sq1 skv640 d64 bf16 kv=i8 lens=kv",
        "b1 hq1 sq1 skv333 d128 bf16 kv=i8",
        "b2 hq3 hkv1 sq1 skv200 d40 dv96 bf16 kv=i8",
        "b2 hq2 hkv1 sq1 skv96 d300 dv320 bf16 kv=i8",
        "b1 hq7 hkv1 sq1 skv500 d96 bf16 kv=i8 v=bf16",
        "b1 hq8 hkv1 sq1 skv500 d80 bf16 v=i8",
        "b1 hq4 hkv1 sq3 skv300 d64 bf16 kv=i8 causal diag=br",
        "b2 hq4 hkv1 sq1 skv640 d64 bf16 kv=i8 paged page_size=16 lens=kv",
        "b2 hq4 hkv1 sq1 skv640 d64 bf16 kv=i8 window=200,0 diag=br",
        "b1 hq4 hkv1 sq1 skv640 d64 bf16 kv=i8 data=outlier",
        "b2 hq4 hkv1 sq1 skv640 d128 bf16 kv=u4 lens=kv",
        "b1 hq1 sq1 skv333 d256 bf16 kv=u4",
        "b2 hq3 hkv1 sq1 skv200 d128 dv384 bf16 kv=u4",
        "b2 hq2 hkv1 sq1 skv96 d384 dv64 bf16 kv=u4",
        "b1 hq7 hkv1 sq1 skv500 d128 bf16 kv=u4 v=bf16",
        "b1 hq8 hkv1 sq1 skv500 d128 bf16 v=u4",
        "b1 hq4 hkv1 sq3 skv300 d128 bf16 kv=u4 causal diag=br",
        "b2 hq4 hkv1 sq1 skv640 d128 bf16 kv=u4 paged page_size=16 lens=kv",
        "b2 hq4 hkv1 sq1 skv640 d128 bf16 kv=u4 paged page_size=8 lens=kv",
        "b2 hq4 hkv1 sq1 skv640 d128 bf16 kv=u4 window=200,0 diag=br",
        "b1 hq4 hkv1 sq1 skv640 d128 bf16 kv=u4 data=outlier",
        "b2 hq4 hkv1 sq1 skv640 d64 bf16 kv=f8e4m3 lens=kv",
        "b1 hq1 sq1 skv333 d128 bf16 kv=f8e5m2",
        "b2 hq3 hkv1 sq1 skv200 d40 dv96 bf16 kv=f8e4m3",
        "b2 hq2 sq1 skv96 d300 dv320 bf16 kv=f8e5m2",
        "b1 hq7 hkv1 sq1 skv500 d96 bf16 kv=f8e4m3 v=bf16",
        "b1 hq8 hkv1 sq1 skv500 d80 bf16 v=f8e5m2",
        "b1 hq4 hkv1 sq3 skv300 d64 bf16 kv=f8e4m3 causal diag=br channel_scales",
        "b2 hq4 hkv1 sq1 skv640 d64 bf16 kv=f8e4m3 paged page_size=16 lens=kv",
        "b2 hq4 hkv1 sq1 skv640 d64 bf16 kv=f8e5m2 paged page_size=5 lens=kv",
        "b1 hq4 hkv1 sq1 skv640 d64 bf16 kv=f8e4m3 data=outlier"}) {
    for (const char* outputs : {"", " lse"}) {
      const std::string text = std::string(shape) + " scales=token poison seed=5" + outputs;
      EXPECT_EQ(units.run(parse_case(text).value(), {}), units.count()) << text;
    }
  }
}

// That words and bytes ran where they should shows in a few of 8,192 roundings to bf16: of K alone,
// of V alone.
TEST_P(Scales, WordsAreFloatsButForTheLastBits) {
  for (const std::string types :
       {"d64 kv=i8 v=bf16", "d64 kv=bf16 v=i8", "d128 kv=u4 v=bf16", "d128 kv=bf16 v=u4"}) {
    const Problem problem = problem_of("b4 hq32 hkv8 sq1 skv320 bf16 scales=token seed=6 " + types);
    const AttentionRequest r = problem.request();
    std::vector<float> q, out;
    const AttentionRequest floats = run_anew(with_floats(r, &q, &out));
    run(r);
    int different = 0;
    conformance::for_each_element(r.out, [&](const auto& at, unsigned char* element) {
      const double expected =
          static_cast<double>(oracle::element(floats.out, at[0], at[1], at[2], at[3]));
      unsigned char rounded[2];
      oracle::encode(expected, rounded, Dtype::kBf16);
      different += std::memcmp(element, rounded, 2) != 0;
      ASSERT_NEAR(static_cast<double>(oracle::decode(element, Dtype::kBf16)), expected,
                  0.005 * std::fabs(expected) + 5e-5);
    });
    const bool expected = types.find("u4") == std::string::npos ? multiplies_words(GetParam())
                                                                : multiplies_bytes(GetParam());
    EXPECT_EQ(different > 0, expected) << types << ": " << different;
  }
}

// A NaN or an infinity in q is one row's, as among floats.
TEST_P(Scales, NumbersThatAreNotFiniteStayInTheirRow) {
  for (const char* kv : {"d64 bf16 kv=i8", "d128 bf16 kv=u4", "d64 bf16 kv=f8e4m3"}) {
    for (const std::uint16_t word : {0x7fc0, 0x7f80, 0xff80}) {
      const Problem problem =
          problem_of(std::string("b1 hq4 hkv1 sq1 skv640 scales=token seed=7 ") + kv);
      const AttentionRequest r = problem.request();
      const TensorView row = r.q;  // of the second head
      std::memcpy(static_cast<unsigned char*>(row.data) + 2 * (row.strides[1] + 3), &word, 2);
      std::vector<float> q, out;
      const AttentionRequest floats = run_anew(with_floats(r, &q, &out));
      run(r);
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t d = 0; d < r.out.shape[3]; ++d) {
          const double a = static_cast<double>(oracle::element(r.out, 0, h, 0, d)),
                       b = static_cast<double>(oracle::element(floats.out, 0, h, 0, d));
          ASSERT_EQ(std::isnan(a), std::isnan(b)) << kv << ", " << word << ", head " << h;
          if (std::isnan(b)) continue;
          ASSERT_NEAR(a, b, 1e-2 * (std::fabs(b) + 1)) << kv << ", " << word << ", head " << h;
        }
      }
    }
  }
}

// Codes of 8-bit floats that are NaN stay it: of V in their column, of K in all columns of its
// heads, in tiles that are whole, in those that a window cuts, and in pages.
TEST_P(Scales, CodesThatAreNoNumbersStayNan) {
  constexpr std::int64_t kHeadKv = 1, kKey = 611, kColumn = 69;
  for (const std::string rows : {"sq1", "sq1 window=300,0 diag=br", "sq1 paged page_size=5"}) {
    for (const std::string dtype : {"f8e4m3", "f8e5m2"}) {
      for (const int code : {0x7f, 0xff}) {
        for (const bool in_values : {false, true}) {
          const Problem problem = problem_of(
              "b1 hq4 hkv2 skv640 d72 bf16 scales=token seed=8 kv=" + dtype + " " + rows);
          const AttentionRequest r = problem.request();
          const TensorView& x = in_values ? r.v : r.k;
          const std::int64_t block_rows = x.shape[2];  // of a sequence, or of a page
          const auto* const pages = static_cast<const std::int32_t*>(r.page_table.data);
          const std::int64_t block = pages == nullptr ? 0 : pages[kKey / block_rows];
          const std::int64_t at = x.strides[0] * block + x.strides[1] * kHeadKv +
                                  x.strides[2] * (kKey % block_rows) + kColumn;
          static_cast<unsigned char*>(x.data)[at] = static_cast<unsigned char>(code);
          run(r);
          for (std::int64_t h = 0; h < 4; ++h) {
            for (std::int64_t d = 0; d < r.out.shape[3]; ++d) {
              const bool is_nan = h / 2 == kHeadKv && (!in_values || d == kColumn);
              ASSERT_EQ(std::isnan(static_cast<double>(oracle::element(r.out, 0, h, 0, d))), is_nan)
                  << dtype << ", " << rows << ", code " << code << ", head " << h << ", column "
                  << d;
            }
          }
        }
      }
    }
  }
}

TEST_P(Scales, ValuesOfOneGiveOne) {
  for (const char* dtype : {"i8", "f8e4m3", "f8e5m2"}) {
    for (const char* rows : {"sq1 skv333", "sq40 skv77"}) {
      const Problem problem =
          problem_of(std::string("b2 hq4 hkv2 d64 f32 kv=") + dtype + " scales=token " + rows);
      const AttentionGradRequest& r = problem.request();
      conformance::for_each_element(r.v, [&](const auto&, unsigned char* element) {
        oracle::encode(64.0, element, r.v.dtype);
      });
      conformance::for_each_element(r.scales_v, [](const auto&, unsigned char* element) {
        oracle::encode(1.0 / 64.0, element, Dtype::kF32);
      });
      run(r);
      conformance::for_each_element(r.out, [&](const auto&, unsigned char* element) {
        ASSERT_NEAR(oracle::decode(element, r.out.dtype), 1.0, 1e-6) << dtype << " " << rows;
      });
    }
  }
}

// A row of equal numbers is its minimum: the bits are those of ones that are not quantised.
TEST_P(Scales, AppendedOnesAreOnes) {
  for (const char* text : {"b2 hq4 hkv2 sq1 skv64 d64 f32 kv=u4 append=60 lens_kv=0,0 seed=1",
                           "b2 hq4 hkv2 sq40 skv64 d40 f32 kv=u4 append=60 lens_kv=0,0 seed=1"}) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& r = problem.request();
    conformance::for_each_element(r.v_new, [&](const auto&, unsigned char* element) {
      oracle::encode(1.0, element, r.v_new.dtype);
    });
    run(r);
    AttentionRequest plain = r;
    plain.k_new = plain.v_new = TensorView{};
    for (std::int64_t b = 0; b < 2; ++b) {
      static_cast<std::int32_t*>(plain.seqlens_kv.data)[b * plain.seqlens_kv.strides[0]] = 60;
    }
    plain.v = numbers_of(r.v, r.scales_v);
    plain.scales_v = TensorView{};
    conformance::for_each_element(plain.v, [&](const auto& at, unsigned char* element) {
      if (at[2] < 60) {
        ASSERT_EQ(oracle::decode(element, Dtype::kF32), 1.0) << text;
      }
    });
    plain = run_anew(plain);
    expect_near(r.out, plain.out, text);
  }
}

// Rows that the call quantised are, to the rounding of each number, those that are dequantised by
// hand; with a fused multiply-add to the bit.
TEST_P(Scales, OfGroupsAreWhatTheyStandFor) {
  for (const char* text :
       {"b2 hq4 hkv2 sq3 skv64 d128 f32 kv=u4 append=60 lens_kv=4,0 lse seed=3",
        "b2 hq4 hkv2 sq50 skv64 d40 f32 kv=u4 append=60 lens_kv=4,0 lse seed=4"}) {
    const Problem problem = problem_of(text);
    const AttentionGradRequest& r = problem.request();
    run(r);
    AttentionRequest plain = r;
    plain.k_new = plain.v_new = TensorView{};
    for (std::int64_t b = 0; b < 2; ++b) {
      static_cast<std::int32_t*>(plain.seqlens_kv.data)[b * plain.seqlens_kv.strides[0]] += 60;
    }
    plain.k = numbers_of(r.k, r.scales_k);
    plain.v = numbers_of(r.v, r.scales_v);
    plain.scales_k = plain.scales_v = TensorView{};
    plain = run_anew(plain);
    expect_near(r.out, plain.out, text);
  }
}

// Pages that follow one another in memory are read as one run; their scales may lie apart.
TEST_P(Scales, MayLieApartWherePagesDoNot) {
  for (const char* text : {"b1 hq4 hkv1 sq1 skv128 d64 f32 kv=u4 paged page_size=4 seed=5",
                           "b1 hq4 hkv1 sq70 skv128 d64 f32 kv=u4 paged page_size=4 seed=6",
                           "b1 hq4 hkv1 sq1 skv128 d64 f32 kv=i8 scales=token paged page_size=4",
                           "b1 hq4 hkv1 sq1 skv128 d64 bf16 kv=i8 scales=all paged page_size=4"}) {
    const Problem problem = problem_of(text);
    AttentionRequest r = problem.request();
    for (std::int32_t page = 0; page < r.page_table.shape[1]; ++page) {
      static_cast<std::int32_t*>(r.page_table.data)[page * r.page_table.strides[1]] = page;
    }
    const AttentionRequest expected = run_anew(r);
    std::vector<float> apart[2];
    for (TensorView* const scales : {&r.scales_k, &r.scales_v}) {
      std::vector<float>& memory = apart[scales == &r.scales_v];
      const std::int64_t page = 2 * scales->strides[0];
      memory.assign(static_cast<std::size_t>(page * scales->shape[0]), NAN);
      TensorView to = *scales;
      to.data = memory.data();
      to.strides[0] = page;
      conformance::for_each_element(*scales, [&](const auto& at, unsigned char* element) {
        std::int64_t offset = 0;
        for (int dim = 0; dim < to.rank; ++dim) offset += at[dim] * to.strides[dim];
        std::memcpy(memory.data() + offset, element, sizeof(float));
      });
      *scales = to;
    }
    run(r);
    EXPECT_EQ(unequal(r.out, expected.out), "") << text;
  }
}

// Scales of a page are not the call's to change: what lies beyond becomes the greatest code.
TEST_P(Scales, GivenOnesSaturate) {
  const Problem problem =
      problem_of("b1 hq1 sq1 skv16 d16 f32 kv=i8 scales=all paged page_size=8 append lens_kv=9");
  const AttentionGradRequest& r = problem.request();
  const auto fill = [](const TensorView& view, double value) {
    conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
      oracle::encode(value, element, view.dtype);
    });
  };
  fill(r.scales_k, 0.5);
  fill(r.scales_v, 0.5);
  fill(r.k_new, 100.0);
  fill(r.v_new, -3.2);
  run(r);
  const oracle::Padded twin = oracle::Padded::make(r).value();
  const oracle::KeyPlace place = twin.place_of_key(0, 9);
  EXPECT_EQ(oracle::element(r.k, place.entry, 0, place.row, 3), 127.0);
  EXPECT_EQ(oracle::element(r.v, place.entry, 0, place.row, 3), -6.0);
  EXPECT_EQ(oracle::element(r.scales_k, place.entry, 0, 0), 0.5);
}

REGARD_INSTANTIATE_PROPERTIES(Scales);

}  // namespace
}  // namespace regard
