#include <cstddef>
#include <iterator>

#include "base/json_writer.h"
#include "core/measure/call_counts.h"
#include "regard/cost.h"

namespace regard {
namespace {

constexpr BackendId kMathId = BackendId::kMath, kFlashId = BackendId::kFlash,
                    kEfficientId = BackendId::kEfficient;

// regard_bench_costs --fit of the times of random problems. Prefill, and the backward of EFFICIENT
// and MATH: 1,339 problems (seeds 21, 22, 301 and 401 to 423) on a Zen 4 (AVX-512, two threads)
// with its measured rates. Decode, short and FLASH's backward: some 1,000 on a Zen 5 with its own
// (seeds 1, 31, 51 to 53, 61, 62, 71, 72 and 81), of u4 104 (seed 111). docs/dev/tuning.md has how
// well they predict others.
// clang-format off
constexpr CostEntry kEntries[] = {
    {kFlashId, CostKind::kDecode, CostTypes::kFloats, {1.09e-06, 3.04e-07, 1.09, 171, 11.7, 0.21, 1.19}},
    {kFlashId, CostKind::kDecode, CostTypes::kPairs, {1.62e-06, 2.82e-07, 1.28, 178, 4.12, 0.418, 1.17}},
    {kFlashId, CostKind::kDecode, CostTypes::kConverted, {1.43e-06, 3.1e-07, 1.25, 126, 4.81, 0.428, 1.18}},
    {kFlashId, CostKind::kDecode, CostTypes::kI8, {1.51e-06, 3.8e-07, 0.982, 278, 2.9, 0.609, 1.16}},
    {kFlashId, CostKind::kDecode, CostTypes::kF8, {1.95e-06, 3.94e-07, 0.965, 295, 6.78, 1.16, 1.21}},
    {kFlashId, CostKind::kDecode, CostTypes::kU4, {1.86e-06, 4.62e-07, 1.49, 153, 2.26, 2.82, 1.32}},
    {kFlashId, CostKind::kShort, CostTypes::kFloats, {9.55e-07, 2.21e-07, 0.841, 34.6, 15.5, 0.605, 1.15}},
    {kFlashId, CostKind::kShort, CostTypes::kPairs, {1.64e-06, 2.66e-07, 0.931, 21.4, 11, 0.374, 1.21}},
    {kFlashId, CostKind::kShort, CostTypes::kConverted, {1.44e-06, 1.96e-07, 0.834, 77.6, 17.8, 0.635, 1.37}},
    {kFlashId, CostKind::kShort, CostTypes::kI8, {2.57e-06, 5.38e-08, 0.788, 81.8, 27.2, 0.493, 1.15}},
    {kFlashId, CostKind::kShort, CostTypes::kF8, {9.67e-07, 2.54e-07, 0.645, 88.7, 34.2, 0.389, 1.15}},
    {kFlashId, CostKind::kShort, CostTypes::kU4, {5.71e-07, 3.97e-08, 0.762, 89.4, 44.4, 0.193, 1.25}},
    {kFlashId, CostKind::kPrefill, CostTypes::kFloats, {4.06e-06, 1.92e-07, 1.17, 11.8, 3.71, 2.54, 1.53}},
    {kFlashId, CostKind::kPrefill, CostTypes::kPairs, {2.88e-06, 7.1e-07, 1.23, 16.4, 2.19, 1.25, 1.3}},
    {kFlashId, CostKind::kPrefill, CostTypes::kConverted, {8.41e-06, 4.18e-07, 1.14, 22.9, 3.5, 2.24, 1.29}},
    {kFlashId, CostKind::kBackward, CostTypes::kFloats, {7.01e-06, 3.9e-07, 1.15, 70, 26.7, 1.36, 1.29}},
    {kFlashId, CostKind::kBackward, CostTypes::kPairs, {4.31e-06, 1.19e-06, 1.23, 38.7, 31, 2.41, 1.42}},
    {kFlashId, CostKind::kBackward, CostTypes::kConverted, {1.84e-06, 2.82e-06, 1.1, 55, 29.2, 0.892, 1.29}},
    {kEfficientId, CostKind::kDecode, CostTypes::kFloats, {4.89e-07, 3.6e-07, 1.23, 145, 10.4, 0.314, 1.22}},
    {kEfficientId, CostKind::kDecode, CostTypes::kPairs, {1.67e-06, 3.4e-07, 1.43, 192, 2.11, 0.626, 1.17}},
    {kEfficientId, CostKind::kDecode, CostTypes::kConverted, {1.31e-06, 3.68e-07, 1.2, 125, 5.61, 0.292, 1.19}},
    {kEfficientId, CostKind::kDecode, CostTypes::kI8, {1.16e-06, 4.61e-07, 1.04, 322, 1.48, 1.02, 1.15}},
    {kEfficientId, CostKind::kDecode, CostTypes::kF8, {1.3e-06, 4.77e-07, 0.976, 366, 4.17, 1.61, 1.22}},
    {kEfficientId, CostKind::kDecode, CostTypes::kU4, {1.78e-06, 4.64e-07, 1.41, 189, 3.26, 2.48, 1.3}},
    {kEfficientId, CostKind::kShort, CostTypes::kFloats, {1.03e-06, 2.01e-07, 0.867, 40.9, 12.6, 0.926, 1.17}},
    {kEfficientId, CostKind::kShort, CostTypes::kPairs, {1.44e-06, 3.01e-07, 0.981, 30.7, 9.08, 0.356, 1.21}},
    {kEfficientId, CostKind::kShort, CostTypes::kConverted, {1.54e-06, 1.87e-07, 0.809, 105, 16.2, 0.732, 1.37}},
    {kEfficientId, CostKind::kShort, CostTypes::kI8, {2.55e-06, 6.14e-08, 0.84, 78.5, 24.7, 0.396, 1.12}},
    {kEfficientId, CostKind::kShort, CostTypes::kF8, {1.65e-07, 2.97e-07, 0.5, 266, 26.5, 0.375, 1.14}},
    {kEfficientId, CostKind::kShort, CostTypes::kU4, {6.13e-07, 6.2e-08, 0.813, 97.6, 40.6, 0.746, 1.33}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kFloats, {3.4e-06, 3.03e-07, 1.18, 13, 5.06, 2.04, 1.63}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kPairs, {2.41e-06, 9.38e-07, 1.28, 15.8, 2.2, 0.878, 1.34}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kConverted, {7.37e-06, 5.09e-07, 1.18, 24.3, 3.64, 2.16, 1.3}},
    {kEfficientId, CostKind::kBackward, CostTypes::kFloats, {4.27e-06, 2.91e-07, 1.77, 148, 25.1, 4.53, 1.18}},
    {kEfficientId, CostKind::kBackward, CostTypes::kPairs, {9.19e-06, 4.14e-07, 3.37, 154, 65.1, 1.25, 1.15}},
    {kEfficientId, CostKind::kBackward, CostTypes::kConverted, {1.73e-06, 3.17e-07, 1.63, 209, 65.3, 1.15, 1.24}},
    {kMathId, CostKind::kDecode, CostTypes::kFloats, {1.88e-06, 2.36e-07, 0.071, 12.2, 42.1, 0.344, 1.27}},
    {kMathId, CostKind::kDecode, CostTypes::kPairs, {1.31e-06, 5.62e-07, 0.193, 158, 52.1, 0.509, 1.39}},
    {kMathId, CostKind::kDecode, CostTypes::kConverted, {1.91e-06, 3.29e-07, 0.0821, 16.9, 51.5, 0.543, 1.31}},
    {kMathId, CostKind::kDecode, CostTypes::kI8, {1.5e-06, 2.28e-07, 0.0609, 174, 59.3, 1.04, 1.43}},
    {kMathId, CostKind::kDecode, CostTypes::kF8, {2.29e-06, 4.29e-07, 0.0758, 13.9, 53.5, 2.55, 1.9}},
    {kMathId, CostKind::kDecode, CostTypes::kU4, {8.86e-07, 4.77e-07, 0.0837, 48.6, 71.3, 1.25, 1.25}},
    {kMathId, CostKind::kShort, CostTypes::kFloats, {6.09e-07, 4.01e-07, 0.889, 14, 29.8, 0.508, 1.28}},
    {kMathId, CostKind::kShort, CostTypes::kPairs, {6.76e-07, 5.55e-07, 2.24, 21.1, 24.4, 0.588, 1.19}},
    {kMathId, CostKind::kShort, CostTypes::kConverted, {9.8e-07, 3.1e-07, 1.05, 32, 22.7, 1.94, 1.35}},
    {kMathId, CostKind::kShort, CostTypes::kI8, {2.53e-06, 2.79e-07, 0.924, 46.3, 24.2, 2.23, 1.1}},
    {kMathId, CostKind::kShort, CostTypes::kF8, {4.36e-07, 4.47e-07, 0.525, 311, 30.1, 0.651, 1.1}},
    {kMathId, CostKind::kShort, CostTypes::kU4, {1.28e-06, 1.81e-07, 0.947, 66.4, 40.6, 1.47, 1.27}},
    {kMathId, CostKind::kPrefill, CostTypes::kFloats, {4.2e-06, 3.82e-07, 1.25, 11.6, 11.1, 1.91, 1.32}},
    {kMathId, CostKind::kPrefill, CostTypes::kPairs, {3.05e-06, 1.08e-06, 2.71, 15.7, 16.4, 1.39, 1.25}},
    {kMathId, CostKind::kPrefill, CostTypes::kConverted, {6.03e-06, 5.72e-07, 1.29, 26.1, 17.8, 1.78, 1.32}},
    {kMathId, CostKind::kBackward, CostTypes::kFloats, {4.01e-06, 2.63e-07, 1.79, 133, 20.6, 3.69, 1.21}},
    {kMathId, CostKind::kBackward, CostTypes::kPairs, {1.09e-05, 4.38e-07, 3.51, 128, 55.2, 3.23, 1.16}},
    {kMathId, CostKind::kBackward, CostTypes::kConverted, {2.05e-06, 3.29e-07, 1.61, 216, 68.1, 0.756, 1.32}},
};
// clang-format on

/// How far a machine's rates may be from default_rates(), that of a CPU on record and of another
/// one: multiplies the fit's own spread.
constexpr double kRecordedSpread = 1.1, kRatesSpread = 1.8;

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

const CostEntry* find_entry(std::span<const CostEntry> entries, BackendId backend, CostKind kind,
                            CostTypes types) noexcept {
  for (const CostEntry& entry : entries) {
    if (entry.backend == backend && entry.kind == kind && entry.types == types) return &entry;
  }
  return nullptr;
}

const CostEntry* CostModel::find(BackendId backend, CostKind kind, CostTypes types) const noexcept {
  return find_entry(entries, backend, kind, types);
}

std::span<const CostEntry> default_entries() noexcept { return kEntries; }

CostModel default_costs(const Env& env) {
  CostModel model;
  model.source = "default rates";
  model.rates = default_rates(env.isa, env.concurrency, env.cpu_model);
  if (env.l2_bytes > 0) model.l2_bytes = env.l2_bytes;
  if (env.l3_bytes > 0) model.l3_bytes = env.l3_bytes;
  model.entries.assign(std::begin(kEntries), std::end(kEntries));
  const double spread = has_recorded_rates(env.cpu_model) ? kRecordedSpread : kRatesSpread;
  for (CostEntry& entry : model.entries) entry.terms.spread *= spread;
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
