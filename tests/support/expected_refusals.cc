#include "tests/support/expected_refusals.h"

#include <algorithm>
#include <iterator>

namespace regard::test {
namespace {

constexpr BackendId kAll = BackendId::kError;  // every backend
constexpr BackendId kFlash = BackendId::kFlash, kEfficient = BackendId::kEfficient;
constexpr RefusalCode kDtype = RefusalCode::kDtype, kFeature = RefusalCode::kFeature;

constexpr ExpectedRefusal kTable[] = {
    {kFlash, kDtype, "f64", false, true, "its sums are f32"},
    {kEfficient, kDtype, "f64", false, true, "its sums are f32"},
    {kFlash, kFeature, "scores_out", false, true, "scores are not written beside the products"},
    {kEfficient, kFeature, "scores_out", false, true, "scores are not written beside the products"},
    {kFlash, RefusalCode::kHeadDimQk, "", false, false, "at most 576"},
    {kFlash, RefusalCode::kHeadDimV, "", false, false, "at most 576"},
    {kAll, kDtype, "q=f32 kv=i32 ", false, true, "K and V have the type of q"},
    {kAll, kDtype, "q=bf16 kv=i32 ", false, true, "K and V have the type of q"},
    {kAll, kDtype, "q=f16 kv=i32 ", false, true, "K and V have the type of q"},
    {kAll, kDtype, "q=f64 kv=f32 ", false, true, "K and V have the type of q"},
    {kAll, kDtype, "q=f32 kv=f32 out=bf16", false, true, "no output is narrower than q"},
    {kAll, kDtype, "q=f64 kv=f64 out=f32", false, true, "no output is narrower than q"},
    {kAll, kDtype, "q=f32 kv=bf16 ", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=f32 kv=f16 ", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=f32 kv=f8", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=bf16 kv=f16 ", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=bf16 kv=f8", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=f16 kv=bf16 ", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=f16 kv=f8", true, true, "gradients have the type of q"},
    {kAll, kFeature, "channel_scales", true, true, "8 bits have no gradients"},
    {kAll, kFeature, "kv_dtypes_differ", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=f32 kv=i8 ", true, true, "8 bits have no gradients"},
    {kAll, kDtype, "q=bf16 kv=i8 ", true, true, "8 bits have no gradients"},
    {kAll, kDtype, "q=f16 kv=i8 ", true, true, "8 bits have no gradients"},
    {kAll, kDtype, "q=f32 kv=u4 ", true, true, "codes have no gradients"},
    {kAll, kDtype, "q=bf16 kv=u4 ", true, true, "codes have no gradients"},
    {kAll, kDtype, "q=f16 kv=u4 ", true, true, "codes have no gradients"},
    {kAll, kFeature, "hadamard", true, true, "caches have no gradients"},
    {kAll, kDtype, "q=f32 k=", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=bf16 k=", true, true, "gradients have the type of q"},
    {kAll, kDtype, "q=f16 k=", true, true, "gradients have the type of q"},
    {kAll, kFeature, "paged", true, true, "caches have no gradients"},
    {kAll, kFeature, "cache_batch_idx", true, true, "caches have no gradients"},
    {kAll, kFeature, "cache_leftpad", true, true, "caches have no gradients"},
    {kAll, kFeature, "tree_mask", true, true, "caches have no gradients"},
    {kAll, kFeature, "rotary", true, true, "caches have no gradients"},
    {kAll, kFeature, "positions", true, true, "caches have no gradients"},
    {kAll, kFeature, "append_kv", true, true, "caches have no gradients"},
};

}  // namespace

std::string ExpectedRefusals::check(const Verdict& verdict) {
  if (verdict.refusals.empty()) return to_string(verdict.backend) + " refuses without a reason";
  for (const Refusal& refusal : verdict.refusals) {
    const auto row = std::ranges::find_if(kTable, [&](const ExpectedRefusal& expected) {
      return (expected.backend == kAll || expected.backend == verdict.backend.id) &&
             refusal.code == expected.code && refusal.actual.starts_with(expected.actual) &&
             (refusal.in_backward || !expected.in_backward);
    });
    if (row == std::end(kTable)) {
      return to_string(verdict.backend) +
             " refuses what tests/support/expected_refusals.cc does not list: " +
             to_string(refusal);
    }
    met_.insert(row);
  }
  return "";
}

std::string ExpectedRefusals::check_all_met() const {
  for (const ExpectedRefusal& expected : kTable) {
    if (met_.contains(&expected) || !expected.is_drawn) continue;
    return std::string("never refused: ") + to_string(expected.code) + " " + expected.actual +
           " (" + expected.reason + ")";
  }
  return "";
}

}  // namespace regard::test
