#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "oracle/evaluate.h"
#include "oracle/expression.h"
#include "oracle/functions.h"

// The oracle's reading of functions, against values worked out by hand and central differences.

namespace regard {
namespace {

using oracle::ElementSlope;
using oracle::Evaluator;
using oracle::Function;
using oracle::FunctionPlace;
using oracle::FunctionResult;
using oracle::NodeType;
using oracle::ScoreError;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr FunctionPlace kPlace{2, 3, 5, 7, 9, 11, 13};  // b h q_idx kv_idx q_pos q_len kv_len

/// r0 is [4] of f64, r1 [2,3] of f32, i2 [8] of i32, i3 [3] of u8.
class Captured {
 public:
  Captured() {
    views_[0] = make_view(real_, Dtype::kF64, {4});
    views_[1] = make_view(table_, Dtype::kF32, {2, 3});
    views_[2] = make_view(ints_, Dtype::kI32, {8});
    views_[3] = make_view(bytes_, Dtype::kU8, {3});
  }
  const TensorView* views() const { return views_; }
  double real_[4] = {0.5, -1.25, 2.0, 3.0};

 private:
  float table_[6] = {0.0f, 0.25f, 0.5f, 1.0f, 1.25f, 1.5f};
  std::int32_t ints_[8] = {3, 1, 4, 1, 5, 9, 2, 6};
  std::uint8_t bytes_[3] = {0, 1, 255};
  TensorView views_[oracle::kCapturedCount];
};

Function parsed(const std::string& text) {
  const Expected<Function> f = Function::parse(text);
  EXPECT_TRUE(f.ok()) << f.status().to_string();
  return f.ok() ? *f : Function::parse("0").value();
}

double value_of(const std::string& text, double score = 2.0) {
  const Captured captured;
  const Function f = parsed(text);
  Evaluator<double> evaluator(f, captured.views());
  const double value = evaluator.value(kPlace, score).value;
  EXPECT_FALSE(evaluator.left_a_tensor()) << text;
  return value;
}

struct Value {
  const char* text;
  double expected;
};

const Value kValues[] = {
    {"score", 2.0},
    {"b", 2},
    {"h", 3},
    {"q_idx", 5},
    {"kv_idx", 7},
    {"q_pos", 9},
    {"q_len", 11},
    {"kv_len", 13},
    {"inf", kInf},
    {"-inf", -kInf},
    {"1.5", 1.5},
    {"1e-2", 0.01},
    {"2.5e+1", 25},
    {"true", 1},
    {"false", 0},
    // precedence and association, as C's
    {"2+3*4", 14},
    {"(2+3)*4", 20},
    {"10-4-3", 3},
    {"10-(4-3)", 9},
    {"-2*-3", 6},
    {"-2+5", 3},
    {"2-3<1&4>3", 1},
    {"1==2|3!=4&5<6", 1},
    {"!false&false", 0},
    {"!(false&false)", 1},
    {" 1 +\t2 ", 3},
    // int stays int, and wraps at 32 bits
    {"7//2", 3},
    {"-7//2", -4},
    {"7//-2", -4},
    {"-7//-2", 3},
    {"7%3", 1},
    {"-7%3", 2},
    {"7%-3", -2},
    {"-7%-3", -1},
    {"7//0", 0},
    {"7%0", 0},
    {"2147483647+1", -2147483648.0},
    {"-2147483647-2", 2147483647},
    {"65536*65536", 0},
    {"65537*65537", 131073},
    {"-2147483648", -2147483648.0},
    {"-(-2147483648)", -2147483648.0},
    {"abs(-2147483648)", -2147483648.0},
    {"-2147483648//-1", -2147483648.0},
    {"-2147483648%-1", 0},
    {"min(3,-4)", -4},
    {"max(3,-4)", 3},
    {"abs(-3)", 3},
    // reals
    {"7/2", 3.5},
    {"1/0", kInf},
    {"2+0.5", 2.5},
    {"min(3,0.5)", 0.5},
    {"max(0.5,3)", 3},
    {"abs(-0.5)", 0.5},
    {"exp(0)", 1},
    {"log(1)", 0},
    {"log(0.0)", -kInf},
    {"sqrt(2.25)", 1.5},
    {"sqrt(-1.0)", kNan},
    {"tanh(0.0)", 0},
    {"sigmoid(0)", 0.5},
    {"sigmoid(-inf)", 0},
    {"int(2.75)", 2},
    {"int(-2.75)", -2},
    {"int(1e10)", 2147483647},
    {"int(-inf)", -2147483648.0},
    {"int(0.0/0.0)", 0},
    {"int(3)", 3},
    // a minimum and a maximum are the second where a NaN is one of them
    {"min(0.0/0.0,1.0)", 1},
    {"min(1.0,0.0/0.0)", kNan},
    {"max(0.0/0.0,1.0)", 1},
    {"max(1.0,0.0/0.0)", kNan},
    // comparisons with a NaN are false, but for !=
    {"0.0/0.0<1.0", 0},
    {"0.0/0.0>=1.0", 0},
    {"0.0/0.0==0.0/0.0", 0},
    {"0.0/0.0!=1.0", 1},
    {"2<2", 0},
    {"2<=2", 1},
    {"3>2", 1},
    {"2>=3", 0},
    {"2<2.5", 1},
    {"2==2.0", 1},
    {"where(q_idx<kv_idx,score,-inf)", 2},
    {"where(q_idx>kv_idx,score,-inf)", -kInf},
    {"where(true,1,0.5)", 1},
    {"where(false,0.0/0.0,1.0)", 1},
    {"where(true,false,true)", 0},
    // captured tensors
    {"r0[1]", -1.25},
    {"r1[1,2]", 1.5},
    {"i2[5]", 9},
    {"i3[2]", 255},
    {"r0[i2[6]+1]", 3},
    {"r1[b//2,h%3]", 1.0},
    {"i2[kv_idx]-i2[q_idx]", -3},
};

TEST(OracleExpression, ValuesByHand) {
  for (const Value& v : kValues) {
    const double actual = value_of(v.text);
    if (std::isnan(v.expected)) {
      EXPECT_TRUE(std::isnan(actual)) << v.text << " " << actual;
    } else {
      EXPECT_EQ(actual, v.expected) << v.text;
    }
  }
}

TEST(OracleExpression, ValuesInF32AreRoundedThere) {
  const Captured captured;
  const Function f = parsed("0.1+r0[1]*score");
  Evaluator<float> evaluator(f, captured.views());
  EXPECT_EQ(evaluator.value(kPlace, 3.3f).value, 0.1f + -1.25f * 3.3f);
}

TEST(OracleExpression, Types) {
  const struct {
    const char* text;
    NodeType type;
  } cases[] = {{"score", NodeType::kReal},
               {"q_idx", NodeType::kInt},
               {"q_idx+1", NodeType::kInt},
               {"q_idx+1.0", NodeType::kReal},
               {"q_idx/2", NodeType::kReal},
               {"q_idx//2", NodeType::kInt},
               {"q_idx<2", NodeType::kBool},
               {"where(true,1,2)", NodeType::kInt},
               {"where(true,1,2.0)", NodeType::kReal},
               {"where(true,true,false)", NodeType::kBool},
               {"-q_idx", NodeType::kInt},
               {"abs(q_idx)", NodeType::kInt},
               {"exp(q_idx)", NodeType::kReal},
               {"int(score)", NodeType::kInt},
               {"min(1,2.0)", NodeType::kReal},
               {"r0[1]", NodeType::kReal},
               {"i2[1]", NodeType::kInt},
               {"!(1<2)", NodeType::kBool}};
  for (const auto& c : cases) EXPECT_EQ(parsed(c.text).type(), c.type) << c.text;
}

TEST(OracleExpression, RefusesWhatDoesNotFit) {
  for (const char* text : {"",
                           "1+",
                           "(1",
                           "1)",
                           "1 2",
                           "x",
                           "score+true",
                           "true<false",
                           "1<2==true",
                           "!1",
                           "-true",
                           "1&true",
                           "1.0//2",
                           "1%2.0",
                           "where(1,2,3)",
                           "where(true,1,false)",
                           "min(1)",
                           "min(1,2,3)",
                           "exp(true)",
                           "int(true)",
                           "r8[1]",
                           "r0",
                           "r0[]",
                           "r0[1.0]",
                           "r0[1,2,3,4,5]",
                           "i0[true]",
                           "4294967296",
                           "1e",
                           "1.2.3",
                           "&1",
                           "true||false",
                           "a&&b",
                           "max(1,)",
                           "b[1]",
                           "R0[1]"}) {
    EXPECT_FALSE(Function::parse(text).ok()) << text;
  }
  EXPECT_FALSE(Function::parse(std::string(5000, '(')).ok());
  EXPECT_FALSE(Function::parse(std::string(5000, '-').append("1")).ok());
}

TEST(OracleExpression, AnIndexOutsideIsRemembered) {
  const Captured captured;
  for (const char* text : {"r0[4]", "r0[-1]", "r1[0,3]", "where(true,1.0,r0[9])"}) {
    const Function f = parsed(text);
    Evaluator<double> evaluator(f, captured.views());
    evaluator.value(kPlace, 0.0);
    EXPECT_TRUE(evaluator.left_a_tensor()) << text;
  }
}

TEST(OracleExpression, KnowsWhereTheScoreDoesNotMatter) {
  const Captured captured;
  const struct {
    const char* text;
    bool reads;
  } cases[] = {{"score", true},
               {"q_idx*0.5", false},
               {"where(q_idx<kv_idx,-inf,score)", false},
               {"where(q_idx>kv_idx,-inf,score)", true},
               {"where(score<0.0,1.0,2.0)", true},
               {"where(q_idx<kv_idx,where(false,score,-inf),score)", false}};
  for (const auto& c : cases) {
    const Function f = parsed(c.text);
    Evaluator<double> evaluator(f, captured.views());
    EXPECT_EQ(evaluator.value(kPlace, kNan).reads_score, c.reads) << c.text;
  }
}

// ---- derivatives

const char* const kSmooth[] = {
    "score",
    "2.5*score-3.0",
    "score*score*score",
    "score/(score*score+1.0)",
    "1.0/score",
    "-score+r0[1]*score",
    "exp(score*0.5)",
    "log(score*score+0.5)",
    "sqrt(score+1.0)",
    "tanh(score)*r0[2]",
    "sigmoid(score-r0[0])",
    "abs(score)*abs(r0[1])",
    "min(score,5.0)+max(score,5.0)",
    "min(r0[2],score*score)",
    "where(score<1.0,score*3.0,score*score)",
    "where(q_idx<kv_idx,r0[1]*r0[1],score)",
    "score+r0[h]*r0[h]/r0[0]+exp(r0[1])*tanh(r0[2])",
    "int(score)*score",
    "20.0*tanh(score/20.0)",
    "exp(-abs(r0[1]-score))*sqrt(r0[3])*log(r0[3])",
};

/// The derivative by a real of the test, by a step up and down.
template <class Evaluate>
long double central(double* x, Evaluate evaluate) {
  const double step = 0x1p-20, before = *x;
  *x = before + step;
  const long double up = evaluate();
  *x = before - step;
  const long double down = evaluate();
  *x = before;
  return (up - down) / (2.0L * step);
}

TEST(OracleExpression, DerivativesAreCentralDifferences) {
  for (const char* text : kSmooth) {
    Captured captured;
    const Function f = parsed(text);
    Evaluator<long double> evaluator(f, captured.views());
    double score = 1.7;
    const auto value = [&] { return evaluator.value(kPlace, score).value; };
    value();
    const FunctionResult<long double> result = evaluator.differentiate();
    const auto expect = [&](long double analytic, long double expected) {
      EXPECT_NEAR(static_cast<double>(analytic), static_cast<double>(expected),
                  1e-8 * (1.0 + std::fabs(static_cast<double>(expected))))
          << text;
    };
    expect(result.slope, central(&score, value));
    long double slopes[4] = {};
    for (const ElementSlope<long double>& e : result.elements) {
      ASSERT_EQ(e.slot, 0);
      slopes[e.index[0]] += e.slope;
    }
    for (int n = 0; n < 4; ++n) expect(slopes[n], central(&captured.real_[n], value));
  }
}

double slope_of(const std::string& text, double score) {
  const Captured captured;
  const Function f = parsed(text);
  Evaluator<double> evaluator(f, captured.views());
  evaluator.value(kPlace, score);
  return evaluator.differentiate().slope;
}

TEST(OracleExpression, DerivativesWhereThereIsNone) {
  EXPECT_EQ(slope_of("abs(score)", 0.0), 0.0);
  EXPECT_EQ(slope_of("abs(score)", -2.0), -1.0);
  EXPECT_EQ(slope_of("min(score,1.0)", 1.0), 0.5);
  EXPECT_EQ(slope_of("max(1.0,score)", 1.0), 0.5);
  EXPECT_EQ(slope_of("max(score,score)", 1.0), 1.0);
  EXPECT_EQ(slope_of("min(score,1.0)", 2.0), 0.0);
  EXPECT_EQ(slope_of("where(score<1.0,score,2.0*score)", 1.0), 2.0);
  EXPECT_EQ(slope_of("int(score)+0.0", 1.5), 0.0);
  // The branch that is not chosen has no part, not even a NaN.
  EXPECT_EQ(slope_of("where(score>0.0,score,sqrt(score))", 2.0), 1.0);
  EXPECT_EQ(slope_of("where(score>0.0,sqrt(score),score)", 0.0), 1.0);
}

// ---- errors

FunctionResult<double> analysed(const std::string& text, double score, double error,
                                bool differentiates = false) {
  const Captured captured;
  const Function f = parsed(text);
  Evaluator<double> evaluator(f, captured.views());
  FunctionResult<double> result = evaluator.analyse(kPlace, score, {error, 4.0, false});
  return differentiates ? evaluator.differentiate() : result;
}

TEST(OracleExpression, ErrorsOfExactArithmeticAreNone) {
  EXPECT_EQ(analysed("q_idx*0.5+r1[1,2]", 0.0, 0.0).error, 0.0);
  EXPECT_EQ(analysed("where(q_idx*0.25<1.25,1.0,2.0)", 0.0, 0.0).error, 0.0);
  EXPECT_EQ(analysed("score", 3.0, 7.0).error, 7.0);
  EXPECT_EQ(analysed("-abs(score)", 3.0, 7.0).error, 7.0);
  EXPECT_EQ(analysed("min(score,100.0)", 3.0, 7.0).error, 7.0);
  EXPECT_EQ(analysed("min(score,1.0)", 3.0, 7.0).error, 0.0);
}

TEST(OracleExpression, ErrorsGrowByDerivatives) {
  EXPECT_NEAR(analysed("score*1000.0", 3.0, 7.0).error, 7000.0 + 3000.0, 1.0);
  EXPECT_NEAR(analysed("score*score", 3.0, 7.0).error, 42.0 + 9.0, 0.1);
  EXPECT_NEAR(analysed("score/100.0", 3.0, 7.0).error, 0.07 + 0.06, 1e-3);
  EXPECT_NEAR(analysed("score-0.1", 3.0, 7.0).error, 7.0 + 0.1 + 2.9, 1e-3);
  EXPECT_NEAR(analysed("score+1e30-1e30", 3.0, 0.0).error, 3e30, 1.0e20);
  EXPECT_NEAR(analysed("0.1+0.0", 3.0, 0.0).error, 0.2, 1e-6);  // f32 has no 0.1
}

TEST(OracleExpression, WhereRoundingDecidesItSaysHowMuch) {
  const double near = 1.0 + 0x1p-26;
  EXPECT_NEAR(analysed("where(score<1.0,2.0,5.0)", near, 1.0).error, 3.0 * 0x1p24, 1.0);
  EXPECT_EQ(analysed("where(score<1.0,2.0,2.0)", near, 1.0).error, 0.0);
  EXPECT_EQ(analysed("where(score<1.0,2.0,-inf)", near, 1.0).error, kInf);
  EXPECT_EQ(analysed("where(score<1.0,2.0,-inf)", 1.5, 1.0).error, 0.0);
  EXPECT_EQ(analysed("where(score<1.0,2.0,-inf)", near, 0.0).error, 0.0);
  EXPECT_EQ(analysed("score-inf", near, 1.0).error, 0.0);
  EXPECT_EQ(analysed("where(score<1.0,2.0,-inf)+score", near, 1.0).error, kInf);
  EXPECT_EQ(analysed("r0[int(score)]", near, 1.0).error, kInf);
  EXPECT_EQ(analysed("r0[int(score)]", 1.5, 1.0).error, 0.0);
  EXPECT_EQ(analysed("where(false&score<1.0,2.0,-inf)", near, 1.0).error, 0.0);
  EXPECT_EQ(analysed("where(true|score<1.0,2.0,-inf)", near, 1.0).error, 0.0);
  EXPECT_EQ(analysed("where(score!=score,-inf,2.0)", near, 1.0).error, 0.0);
  EXPECT_LE(analysed("max(score,score)", near, 1.0, true).slope_size, 4.0);
  // A kink moves the derivative alone.
  const FunctionResult<double> kink = analysed("max(score,1.0)", near, 1.0, true);
  EXPECT_EQ(kink.error, 1.0);
  EXPECT_GE(kink.slope_size, 0x1p24);
  EXPECT_EQ(analysed("max(score,1.0)", 1.5, 1.0, true).slope_size, 1.0);
}

// A derivative, or a value, that is 0 twice over and whose factors rounding makes 1 and 3.
TEST(OracleExpression, ErrorsOfFactorsThatAreZeroMultiply) {
  EXPECT_EQ(analysed("abs(abs(score))", 0.0, 1.0, true).slope_size, 0x1p24);
  EXPECT_EQ(analysed("abs(score)", 0.0, 1.0, true).slope_size, 0x1p24);
  EXPECT_EQ(analysed("abs(score)", 0x1p-24, 1.0, true).slope_size, 2.0 + 2.0 * 0x1p24);
  const double below = 1.0 - 0x1p-26;
  EXPECT_NEAR(analysed("where(score<1.0,0.0,1.0)*where(score<1.0,0.0,3.0)", below, 1.0).error,
              3.0 * 0x1p24, 1.0);
}

}  // namespace
}  // namespace regard
