#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "conformance/problem.h"
#include "oracle/gradients.h"
#include "oracle/oracle.h"
#include "tests/support/tensors.h"

// What would make the oracle read out of bounds although describe() accepts it.

namespace regard {
namespace {

using conformance::make_problem;
using conformance::Problem;

TEST(OracleRefusals, LengthsBeyondTheTensors) {
  const Case c = parse_case("b2 hq2 hkv1 sq5 skv9 d8 f32 lse grad").value();
  const Problem problem = make_problem(c);
  struct Lengths {
    const char* name;
    TensorView Buffers::*view;
    std::int32_t extent;
  };
  for (const Lengths& of :
       {Lengths{"seqlens_q", &Buffers::seqlens_q, 5}, {"seqlens_kv", &Buffers::seqlens_kv, 9}}) {
    for (const std::int32_t length : {of.extent + 1, -1, INT32_MAX, INT32_MIN}) {
      const std::int32_t lengths[] = {of.extent, length};
      AttentionGradRequest request = problem.request();
      TensorView& view = request.*of.view;
      view = {};
      view.data = const_cast<std::int32_t*>(lengths);
      view.dtype = Dtype::kI32;
      view.rank = 1;
      view.shape[0] = 2;
      view.strides[0] = 1;
      const std::string expected = std::string("[oracle] ") + of.name + "[1] (" +
                                   std::to_string(length) + "), expected 0 to " +
                                   std::to_string(of.extent);
      EXPECT_EQ(oracle::compute(request).status().message(), expected);
      EXPECT_EQ(oracle::compute_gradients(request).status().message(), expected);
      view.shape[0] = 1;
      EXPECT_FALSE(oracle::compute(request).ok()) << "a length for each sequence";
    }
  }
}

TEST(OracleRefusals, LseGradientOfAnotherShape) {
  const Case c = parse_case("b2 hq2 hkv1 sq5 skv9 d8 f32 lse grad").value();
  const Problem problem = make_problem(c);
  test::Tensors tensors;
  AttentionGradRequest request = problem.request();
  for (const TensorView& d_lse :
       {tensors.make(Dtype::kF32, {2, 2, 4}), tensors.make(Dtype::kF32, {2, 1, 5}),
        tensors.make(Dtype::kF32, {2, 2}), tensors.make(Dtype::kF32, {2, 2, 5, 2})}) {
    request.d_lse = d_lse;
    EXPECT_NE(oracle::compute_gradients(request).status().message().find("shape of d_lse"),
              std::string::npos)
        << to_string(d_lse);
  }
}

}  // namespace
}  // namespace regard
