#include <cstddef>
#include <iterator>

#include "base/json_writer.h"
#include "regard/cost.h"

namespace regard {
namespace {

constexpr BackendId kMathId = BackendId::kMath, kFlashId = BackendId::kFlash,
                    kEfficientId = BackendId::kEfficient;

// Fitted to the times of 570 random problems (regard_bench_costs --fit) on a Zen 4 (AVX-512, two
// threads) with its measured rates. Of 120 others 76 % are within 1.3 times.
// clang-format off
constexpr CostEntry kEntries[] = {
    {kFlashId, CostKind::kDecode, CostTypes::kFloats, {1.42e-06, 4.69e-07, 1.04, 156, 9.36, 0.501, 1.67}},
    {kFlashId, CostKind::kDecode, CostTypes::kPairs, {1.31e-06, 5.4e-07, 0.918, 104, 4.69, 0.877, 1.57}},
    {kFlashId, CostKind::kDecode, CostTypes::kConverted, {1.36e-06, 3.43e-07, 1.25, 131, 5.13, 0.408, 1.5}},
    {kFlashId, CostKind::kDecode, CostTypes::kI8, {1.36e-06, 1.18e-06, 0.392, 366, 4.23, 0.643, 1.36}},
    {kFlashId, CostKind::kDecode, CostTypes::kF8, {1.38e-06, 1.15e-06, 0.177, 651, 12.3, 0.642, 1.69}},
    {kFlashId, CostKind::kDecode, CostTypes::kU4, {4.48e-06, 5.88e-07, 1.25, 30, 12.9, 0.693, 1.55}},
    {kFlashId, CostKind::kShort, CostTypes::kFloats, {1.6e-06, 3e-07, 1.12, 21.1, 5.31, 1.2, 1.68}},
    {kFlashId, CostKind::kShort, CostTypes::kPairs, {2e-06, 3.7e-07, 1.09, 18.1, 4.71, 1.24, 1.21}},
    {kFlashId, CostKind::kShort, CostTypes::kConverted, {1.84e-06, 9.24e-07, 1.04, 30, 5.95, 1.2, 1.19}},
    {kFlashId, CostKind::kPrefill, CostTypes::kFloats, {3.83e-06, 1.34e-07, 1.1, 15.8, 9.8, 1.75, 1.62}},
    {kFlashId, CostKind::kPrefill, CostTypes::kPairs, {5.15e-06, 2.85e-07, 1.15, 23.7, 7.57, 1.2, 1.4}},
    {kFlashId, CostKind::kPrefill, CostTypes::kConverted, {3e-06, 2.51e-07, 1.1, 31.5, 5.54, 7.06, 1.58}},
    {kFlashId, CostKind::kBackward, CostTypes::kFloats, {3e-06, 3e-07, 1.26, 19.8, 34.4, 1.2, 1.36}},
    {kFlashId, CostKind::kBackward, CostTypes::kPairs, {1.3e-05, 3.7e-06, 1.44, 27.7, 5.92, 1.2, 1.24}},
    {kFlashId, CostKind::kBackward, CostTypes::kConverted, {3e-06, 2.83e-06, 1.29, 20.2, 17.6, 1.2, 1.43}},
    {kEfficientId, CostKind::kDecode, CostTypes::kFloats, {1.19e-06, 5.17e-07, 0.908, 227, 8.25, 0.779, 1.74}},
    {kEfficientId, CostKind::kDecode, CostTypes::kPairs, {9.71e-07, 6.43e-07, 0.687, 206, 3.78, 1.17, 1.65}},
    {kEfficientId, CostKind::kDecode, CostTypes::kConverted, {1.17e-06, 3.64e-07, 1.1, 191, 3.72, 1.28, 1.6}},
    {kEfficientId, CostKind::kDecode, CostTypes::kI8, {1.17e-06, 1.39e-06, 0.333, 440, 3.83, 1.49, 1.39}},
    {kEfficientId, CostKind::kDecode, CostTypes::kF8, {2.14e-06, 1.03e-06, 0.404, 518, 12.4, 1.2, 1.73}},
    {kEfficientId, CostKind::kDecode, CostTypes::kU4, {2.91e-06, 3e-07, 1.29, 30, 14.1, 1.2, 1.77}},
    {kEfficientId, CostKind::kShort, CostTypes::kFloats, {2e-06, 2.73e-07, 1.2, 14.3, 4.62, 1.2, 1.19}},
    {kEfficientId, CostKind::kShort, CostTypes::kPairs, {2e-06, 3.4e-07, 1.14, 29.8, 4.2, 1.2, 1.16}},
    {kEfficientId, CostKind::kShort, CostTypes::kConverted, {1.78e-06, 9.06e-07, 1.09, 30, 5.99, 1.2, 1.21}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kFloats, {3e-06, 2.13e-07, 1.08, 20.9, 10, 1.45, 1.44}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kPairs, {5.42e-06, 2.8e-07, 1.15, 30.5, 9.2, 1.2, 1.36}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kConverted, {3e-06, 4.12e-07, 1.07, 36.9, 14.5, 1.2, 1.45}},
    {kEfficientId, CostKind::kBackward, CostTypes::kFloats, {3e-06, 3e-07, 1.67, 164, 45.6, 1.2, 1.28}},
    {kEfficientId, CostKind::kBackward, CostTypes::kPairs, {1.13e-05, 3e-07, 3.2, 196, 60.2, 1.2, 1.17}},
    {kEfficientId, CostKind::kBackward, CostTypes::kConverted, {2e-06, 3e-07, 1.75, 162, 40.1, 1.2, 1.33}},
    {kMathId, CostKind::kDecode, CostTypes::kFloats, {1.23e-06, 5.4e-07, 0.437, 20, 30.1, 1.6, 1.61}},
    {kMathId, CostKind::kDecode, CostTypes::kPairs, {3.01e-06, 1.09e-06, 0.85, 20, 26.1, 6.01, 1.44}},
    {kMathId, CostKind::kDecode, CostTypes::kConverted, {3.48e-06, 3.67e-07, 0.412, 20, 27.6, 5.51, 1.55}},
    {kMathId, CostKind::kDecode, CostTypes::kI8, {2.87e-06, 3e-07, 0.534, 30, 56.5, 2.57, 1.42}},
    {kMathId, CostKind::kDecode, CostTypes::kF8, {2.24e-06, 3.67e-07, 0.412, 20, 47.7, 5.89, 2.09}},
    {kMathId, CostKind::kDecode, CostTypes::kU4, {4.31e-06, 3.72e-06, 0.412, 20, 32, 18.9, 1.91}},
    {kMathId, CostKind::kShort, CostTypes::kFloats, {2.11e-06, 2.45e-07, 0.958, 13.4, 24.8, 2.27, 1.52}},
    {kMathId, CostKind::kShort, CostTypes::kPairs, {5.48e-07, 1.23e-06, 1.91, 90.6, 14, 2.78, 1.26}},
    {kMathId, CostKind::kShort, CostTypes::kConverted, {2e-06, 7.8e-07, 1.2, 90.6, 12.3, 1.2, 1.24}},
    {kMathId, CostKind::kPrefill, CostTypes::kFloats, {2e-06, 3.01e-07, 1.2, 26.7, 15, 1.7, 1.43}},
    {kMathId, CostKind::kPrefill, CostTypes::kPairs, {2e-06, 3e-07, 2.57, 34.6, 29.4, 1.22, 1.23}},
    {kMathId, CostKind::kPrefill, CostTypes::kConverted, {4.9e-06, 2.97e-07, 1.21, 45.7, 26.9, 1.66, 1.33}},
    {kMathId, CostKind::kBackward, CostTypes::kFloats, {3e-06, 3e-07, 1.62, 168, 47.6, 1.18, 1.27}},
    {kMathId, CostKind::kBackward, CostTypes::kPairs, {1.99e-05, 4.04e-07, 3.28, 157, 58.8, 2.24, 1.17}},
    {kMathId, CostKind::kBackward, CostTypes::kConverted, {2.98e-06, 2.98e-07, 1.57, 283, 45.3, 1.15, 1.32}},
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
