#include "tests/support/expected_refusals.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace regard::test {
namespace {

constexpr BackendId kAll = BackendId::kError;  // every backend
constexpr BackendId kFlash = BackendId::kFlash, kEfficient = BackendId::kEfficient;
constexpr const char* kForward = "";
constexpr const char* kBackward = "in a backward";

constexpr ExpectedRefusal kTable[] = {
    {kFlash, "dtype: f64", kForward, true, "its sums are f32"},
    {kEfficient, "dtype: f64", kForward, true, "its sums are f32"},
    {kFlash, "feature: scores_out", kForward, true, "scores are not written beside the products"},
    {kEfficient, "feature: scores_out", kForward, true,
     "scores are not written beside the products"},
    {kFlash, "head_dim_qk: ", kForward, false, "at most 576"},
    {kFlash, "head_dim_v: ", kForward, false, "at most 576"},
    {kAll, "dtype: q=f32 kv=i8 ", kForward, true, "K and V have the type of q"},
    {kAll, "dtype: q=bf16 kv=i8 ", kForward, true, "K and V have the type of q"},
    {kAll, "dtype: q=f16 kv=i8 ", kForward, true, "K and V have the type of q"},
    {kAll, "dtype: q=f64 kv=f32 ", kForward, true, "K and V have the type of q"},
    {kAll, "dtype: q=f32 kv=f32 out=bf16", kForward, true, "no output is narrower than q"},
    {kAll, "dtype: q=f64 kv=f64 out=f32", kForward, true, "no output is narrower than q"},
    {kAll, "dtype: f8", kBackward, true, "8 bits have no gradients"},
    {kAll, "dtype: q=f8", kBackward, true, "8 bits have no gradients"},
    {kAll, "feature: descales", kBackward, true, "8 bits have no gradients"},
};

}  // namespace

std::string ExpectedRefusals::check(const Verdict& verdict) {
  if (verdict.refusals.empty()) return to_string(verdict.backend) + " refuses without a reason";
  for (const Refusal& refusal : verdict.refusals) {
    const std::string text = to_string(refusal);
    const auto row = std::ranges::find_if(kTable, [&](const ExpectedRefusal& expected) {
      return (expected.backend == kAll || expected.backend == verdict.backend.id) &&
             text.starts_with(expected.what) && text.find(expected.direction) != std::string::npos;
    });
    if (row == std::end(kTable)) {
      return to_string(verdict.backend) +
             " refuses what tests/support/expected_refusals.cc does not list: " + text;
    }
    met_.insert(row);
  }
  return "";
}

std::string ExpectedRefusals::check_all_met() const {
  for (const ExpectedRefusal& expected : kTable) {
    if (met_.contains(&expected) || !expected.is_drawn) continue;
    return std::string("never refused: ") + expected.what + " " + expected.direction + " (" +
           expected.reason + ")";
  }
  return "";
}

}  // namespace regard::test
