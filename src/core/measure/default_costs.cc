#include <cstddef>
#include <iterator>

#include "base/json_writer.h"
#include "core/measure/call_counts.h"
#include "regard/cost.h"

namespace regard {
namespace {

constexpr BackendId kMathId = BackendId::kMath, kFlashId = BackendId::kFlash,
                    kEfficientId = BackendId::kEfficient;

// Fitted to the times of 1,339 random problems that regard_bench_costs saved (seeds 21, 22, 301 and
// 401 to 423; a Zen 4, AVX-512, two threads, with its measured rates), all terms of an entry at
// once by Gauss-Newton steps on their logarithms, outside of this repository; fit_costs() takes one
// term after the other from here. docs/dev/tuning.md has how well they predict other problems.
// clang-format off
constexpr CostEntry kEntries[] = {
    {kFlashId, CostKind::kDecode, CostTypes::kFloats, {9.65e-07, 5.28e-07, 1.28, 113, 7.08, 0.391, 1.35}},
    {kFlashId, CostKind::kDecode, CostTypes::kPairs, {9.49e-07, 5.75e-07, 1.29, 115, 2.73, 0.594, 1.34}},
    {kFlashId, CostKind::kDecode, CostTypes::kConverted, {1.22e-06, 4.52e-07, 1.28, 87.6, 3.86, 0.417, 1.33}},
    {kFlashId, CostKind::kDecode, CostTypes::kI8, {8.85e-07, 9.52e-07, 1.14, 170, 2.37, 0.801, 1.36}},
    {kFlashId, CostKind::kDecode, CostTypes::kF8, {1.26e-06, 8.95e-07, 1.17, 232, 4.14, 2.03, 1.29}},
    {kFlashId, CostKind::kDecode, CostTypes::kU4, {1.43e-06, 7.34e-07, 1.7, 109, 6.45, 1.79, 1.49}},
    {kFlashId, CostKind::kShort, CostTypes::kFloats, {1.03e-06, 1.87e-07, 0.962, 48.7, 5.57, 1.73, 1.2}},
    {kFlashId, CostKind::kShort, CostTypes::kPairs, {1.9e-06, 3.27e-07, 0.799, 47.8, 8.35, 0.574, 1.22}},
    {kFlashId, CostKind::kShort, CostTypes::kConverted, {1.48e-06, 9.28e-07, 0.984, 34.9, 7.11, 1.05, 1.2}},
    {kFlashId, CostKind::kPrefill, CostTypes::kFloats, {4.06e-06, 1.77e-07, 1.15, 12.8, 5.97, 1.85, 1.28}},
    {kFlashId, CostKind::kPrefill, CostTypes::kPairs, {2.85e-06, 6.22e-07, 1.2, 17.7, 3.46, 1.38, 1.21}},
    {kFlashId, CostKind::kPrefill, CostTypes::kConverted, {6.84e-06, 3.59e-07, 1.14, 21.7, 4.36, 2.72, 1.22}},
    {kFlashId, CostKind::kBackward, CostTypes::kFloats, {5.94e-06, 3.65e-07, 1.23, 62.8, 26.4, 2.51, 1.24}},
    {kFlashId, CostKind::kBackward, CostTypes::kPairs, {9.92e-06, 3.19e-06, 1.4, 22.7, 14.4, 1.36, 1.24}},
    {kFlashId, CostKind::kBackward, CostTypes::kConverted, {2.65e-06, 3.23e-06, 1.22, 21.3, 27.5, 1.16, 1.2}},
    {kEfficientId, CostKind::kDecode, CostTypes::kFloats, {8.45e-07, 4.77e-07, 1.15, 151, 7.27, 0.408, 1.34}},
    {kEfficientId, CostKind::kDecode, CostTypes::kPairs, {1.06e-06, 5.49e-07, 1.44, 117, 1.65, 0.861, 1.49}},
    {kEfficientId, CostKind::kDecode, CostTypes::kConverted, {9.65e-07, 4.64e-07, 1.28, 107, 2.69, 0.767, 1.35}},
    {kEfficientId, CostKind::kDecode, CostTypes::kI8, {7.47e-07, 1.02e-06, 1.11, 176, 1.74, 1.15, 1.44}},
    {kEfficientId, CostKind::kDecode, CostTypes::kF8, {2.41e-06, 8.6e-07, 1.08, 171, 4.72, 1.73, 1.47}},
    {kEfficientId, CostKind::kDecode, CostTypes::kU4, {1.09e-06, 6.63e-07, 1.7, 124, 5.88, 2.31, 1.52}},
    {kEfficientId, CostKind::kShort, CostTypes::kFloats, {2.19e-06, 1.41e-07, 1.01, 44.4, 5.3, 1.65, 1.2}},
    {kEfficientId, CostKind::kShort, CostTypes::kPairs, {1.69e-06, 2.91e-07, 0.866, 49, 7.62, 0.641, 1.15}},
    {kEfficientId, CostKind::kShort, CostTypes::kConverted, {1.38e-06, 8.76e-07, 1.02, 54.3, 5.88, 0.972, 1.2}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kFloats, {3.18e-06, 2.91e-07, 1.16, 14.4, 7.58, 1.78, 1.28}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kPairs, {2.43e-06, 8.32e-07, 1.25, 17.2, 3.56, 1.06, 1.22}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kConverted, {5.51e-06, 4.41e-07, 1.18, 22.2, 5.25, 2.38, 1.22}},
    {kEfficientId, CostKind::kBackward, CostTypes::kFloats, {3.42e-06, 2.91e-07, 1.73, 146, 34, 4.18, 1.19}},
    {kEfficientId, CostKind::kBackward, CostTypes::kPairs, {1.05e-05, 3.49e-07, 3.37, 145, 64.6, 1.22, 1.12}},
    {kEfficientId, CostKind::kBackward, CostTypes::kConverted, {1.88e-06, 3.15e-07, 1.62, 215, 61.5, 1.18, 1.17}},
    {kMathId, CostKind::kDecode, CostTypes::kFloats, {2e-06, 4.44e-07, 0.141, 14.1, 35.7, 0.843, 1.58}},
    {kMathId, CostKind::kDecode, CostTypes::kPairs, {1.08e-06, 7.32e-07, 0.492, 43.2, 44.7, 1.55, 1.36}},
    {kMathId, CostKind::kDecode, CostTypes::kConverted, {1.73e-06, 4e-07, 0.178, 17.2, 43.3, 1.94, 1.35}},
    {kMathId, CostKind::kDecode, CostTypes::kI8, {2.09e-06, 6.79e-07, 0.142, 28.1, 49.5, 2, 1.4}},
    {kMathId, CostKind::kDecode, CostTypes::kF8, {2.1e-06, 7.75e-07, 0.149, 15.5, 47.3, 3.2, 1.3}},
    {kMathId, CostKind::kDecode, CostTypes::kU4, {7.3e-07, 4.55e-07, 0.33, 49.3, 59.1, 2.46, 1.41}},
    {kMathId, CostKind::kShort, CostTypes::kFloats, {1.25e-06, 3.91e-07, 1.07, 12.7, 15, 2.36, 1.31}},
    {kMathId, CostKind::kShort, CostTypes::kPairs, {5.03e-07, 9.93e-07, 2.42, 57.8, 10.9, 2.58, 1.24}},
    {kMathId, CostKind::kShort, CostTypes::kConverted, {8.63e-07, 1.07e-06, 1.29, 35.3, 12.5, 1.1, 1.2}},
    {kMathId, CostKind::kPrefill, CostTypes::kFloats, {3.52e-06, 3.7e-07, 1.22, 13.7, 13.2, 1.82, 1.24}},
    {kMathId, CostKind::kPrefill, CostTypes::kPairs, {2.88e-06, 7.66e-07, 2.62, 18.6, 21.7, 1.52, 1.2}},
    {kMathId, CostKind::kPrefill, CostTypes::kConverted, {5.25e-06, 4.9e-07, 1.28, 25.7, 20.4, 1.78, 1.24}},
    {kMathId, CostKind::kBackward, CostTypes::kFloats, {3.35e-06, 2.76e-07, 1.75, 137, 29.6, 3.31, 1.21}},
    {kMathId, CostKind::kBackward, CostTypes::kPairs, {1.36e-05, 4.29e-07, 3.5, 122, 55.7, 3.09, 1.13}},
    {kMathId, CostKind::kBackward, CostTypes::kConverted, {2.41e-06, 3.19e-07, 1.59, 226, 65.7, 0.909, 1.17}},
};
// clang-format on

/// How far another machine's rates may be from default_rates(): added to the fit's own spread.
constexpr double kRatesSpread = 1.8;

}  // namespace

const char* to_string(CostKind kind) noexcept {
  constexpr const char* kNames[] = {"decode", "short", "prefill", "backward"};
  const auto i = static_cast<std::size_t>(kind);
  return i < std::size(kNames) ? kNames[i] : "?";
}

const char* to_string(CostTypes types) noexcept {
  constexpr const char* kNames[] = {"floats", "pairs", "converted", "i8", "f8", "u4"};
  const auto i = static_cast<std::size_t>(types);
  return i < std::size(kNames) ? kNames[i] : "?";
}

const CostEntry* CostModel::find(BackendId backend, CostKind kind, CostTypes types) const noexcept {
  for (const CostEntry& entry : entries) {
    if (entry.backend == backend && entry.kind == kind && entry.types == types) return &entry;
  }
  return nullptr;
}

std::span<const CostEntry> default_entries() noexcept { return kEntries; }

CostModel default_costs(const Env& env) {
  CostModel model;
  model.source = "default rates";
  model.rates = default_rates(env.isa, env.concurrency);
  if (env.l2_bytes > 0) model.l2_bytes = env.l2_bytes;
  if (env.l3_bytes > 0) model.l3_bytes = env.l3_bytes;
  model.entries.assign(std::begin(kEntries), std::end(kEntries));
  for (CostEntry& entry : model.entries) entry.terms.spread *= kRatesSpread;
  return model;
}

std::string to_json(const CostModel& model) {
  JsonWriter w;
  w.begin_object();
  w.key("source").value(model.source);
  w.key("rates").raw(to_json(model.rates));
  w.key("l2_bytes").value(model.l2_bytes).key("l3_bytes").value(model.l3_bytes);
  w.key("entries").begin_array();
  for (const CostEntry& entry : model.entries) {
    w.begin_object();
    w.key("backend").value(to_string(BackendRef(entry.backend)));
    w.key("kind").value(to_string(entry.kind)).key("types").value(to_string(entry.types));
    for_each_cost_term(entry.terms,
                       [&](const char* name, double term) { w.key(name).value(term); });
    w.end_object();
  }
  w.end_array().end_object();
  return w.str();
}

}  // namespace regard
