#include <cstddef>
#include <iterator>

#include "base/json_writer.h"
#include "core/measure/call_counts.h"
#include "regard/cost.h"

namespace regard {
namespace {

constexpr BackendId kMathId = BackendId::kMath, kFlashId = BackendId::kFlash,
                    kEfficientId = BackendId::kEfficient;

// regard_bench_costs --fit of the times of 1,339 random problems (seeds 21, 22, 301 and 401 to 423)
// on a Zen 4 (AVX-512, two threads) with its measured rates, for decode of 480 (seeds 1, 31 of
// decode, 32 of cache) on a Zen 5 with its own. docs/dev/tuning.md has how well they predict
// others.
// clang-format off
constexpr CostEntry kEntries[] = {
    {kFlashId, CostKind::kDecode, CostTypes::kFloats, {7.1e-07, 2.85e-07, 1.03, 168, 11.8, 0.211, 1.17}},
    {kFlashId, CostKind::kDecode, CostTypes::kPairs, {1.67e-06, 2.48e-07, 1.4, 178, 3.4, 0.517, 1.16}},
    {kFlashId, CostKind::kDecode, CostTypes::kConverted, {1.7e-06, 2.56e-07, 1.19, 120, 5.07, 0.386, 1.21}},
    {kFlashId, CostKind::kDecode, CostTypes::kI8, {1.61e-06, 3.1e-07, 1.04, 278, 2.51, 0.674, 1.18}},
    {kFlashId, CostKind::kDecode, CostTypes::kF8, {1.34e-06, 4.51e-07, 0.974, 288, 6.41, 1.15, 1.21}},
    {kFlashId, CostKind::kDecode, CostTypes::kU4, {3.19e-06, 1.75e-07, 1.61, 237, 6.26, 1.72, 1.28}},
    {kFlashId, CostKind::kShort, CostTypes::kFloats, {8.14e-07, 9.18e-08, 0.888, 75.2, 6.3, 2.03, 1.41}},
    {kFlashId, CostKind::kShort, CostTypes::kPairs, {1.62e-06, 3.31e-07, 0.788, 47.5, 9.19, 0.361, 1.28}},
    {kFlashId, CostKind::kShort, CostTypes::kConverted, {1.25e-06, 9.18e-07, 0.996, 31.2, 8, 1.08, 1.21}},
    {kFlashId, CostKind::kPrefill, CostTypes::kFloats, {4.06e-06, 1.92e-07, 1.17, 11.8, 3.71, 2.54, 1.53}},
    {kFlashId, CostKind::kPrefill, CostTypes::kPairs, {2.88e-06, 7.1e-07, 1.23, 16.4, 2.19, 1.25, 1.3}},
    {kFlashId, CostKind::kPrefill, CostTypes::kConverted, {8.41e-06, 4.18e-07, 1.14, 22.9, 3.5, 2.24, 1.29}},
    {kFlashId, CostKind::kBackward, CostTypes::kFloats, {4.49e-05, 3.57e-07, 1.23, 69.9, 13, 3.28, 1.2}},
    {kFlashId, CostKind::kBackward, CostTypes::kPairs, {8.27e-06, 3.12e-06, 1.39, 27.5, 16.9, 1.53, 1.45}},
    {kFlashId, CostKind::kBackward, CostTypes::kConverted, {2.4e-06, 2.74e-06, 1.22, 23.2, 33.9, 1.1, 1.39}},
    {kEfficientId, CostKind::kDecode, CostTypes::kFloats, {5.97e-07, 3.15e-07, 1.02, 177, 10.7, 0.29, 1.26}},
    {kEfficientId, CostKind::kDecode, CostTypes::kPairs, {1.55e-06, 2.75e-07, 1.4, 194, 2.77, 0.558, 1.16}},
    {kEfficientId, CostKind::kDecode, CostTypes::kConverted, {1.61e-06, 2.25e-07, 1.16, 144, 5.17, 0.378, 1.18}},
    {kEfficientId, CostKind::kDecode, CostTypes::kI8, {1.42e-06, 3.84e-07, 1.07, 315, 1.53, 0.969, 1.11}},
    {kEfficientId, CostKind::kDecode, CostTypes::kF8, {1.3e-06, 4.79e-07, 1, 318, 5.74, 1.2, 1.29}},
    {kEfficientId, CostKind::kDecode, CostTypes::kU4, {1.87e-06, 2.18e-07, 1.43, 298, 5.3, 2.95, 1.28}},
    {kEfficientId, CostKind::kShort, CostTypes::kFloats, {2.28e-06, 7.22e-08, 0.954, 65.4, 4.62, 2.09, 1.23}},
    {kEfficientId, CostKind::kShort, CostTypes::kPairs, {1.35e-06, 2.83e-07, 0.85, 50, 8.51, 0.434, 1.26}},
    {kEfficientId, CostKind::kShort, CostTypes::kConverted, {1.15e-06, 8.67e-07, 1.03, 53.4, 6.51, 0.905, 1.22}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kFloats, {3.4e-06, 3.03e-07, 1.18, 13, 5.06, 2.04, 1.63}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kPairs, {2.41e-06, 9.38e-07, 1.28, 15.8, 2.2, 0.878, 1.34}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kConverted, {7.37e-06, 5.09e-07, 1.18, 24.3, 3.64, 2.16, 1.3}},
    {kEfficientId, CostKind::kBackward, CostTypes::kFloats, {4.27e-06, 2.91e-07, 1.77, 148, 25.1, 4.53, 1.18}},
    {kEfficientId, CostKind::kBackward, CostTypes::kPairs, {9.19e-06, 4.14e-07, 3.37, 154, 65.1, 1.25, 1.15}},
    {kEfficientId, CostKind::kBackward, CostTypes::kConverted, {1.73e-06, 3.17e-07, 1.63, 209, 65.3, 1.15, 1.24}},
    {kMathId, CostKind::kDecode, CostTypes::kFloats, {1.92e-06, 2.58e-07, 0.0808, 12.2, 41.1, 0.402, 1.26}},
    {kMathId, CostKind::kDecode, CostTypes::kPairs, {1.6e-06, 6.12e-07, 0.273, 102, 50.5, 0.66, 1.39}},
    {kMathId, CostKind::kDecode, CostTypes::kConverted, {1.27e-06, 4.79e-07, 0.101, 17.4, 50.3, 0.676, 1.28}},
    {kMathId, CostKind::kDecode, CostTypes::kI8, {1.36e-06, 3.56e-07, 0.0863, 36.9, 49.7, 2.77, 1.17}},
    {kMathId, CostKind::kDecode, CostTypes::kF8, {1.94e-06, 4.46e-07, 0.0797, 13.4, 58.5, 1.62, 1.28}},
    {kMathId, CostKind::kDecode, CostTypes::kU4, {3.71e-07, 9.8e-07, 0.173, 58.5, 68.5, 2.25, 1.11}},
    {kMathId, CostKind::kShort, CostTypes::kFloats, {1.08e-06, 2.91e-07, 1.02, 20, 15.4, 2.81, 1.46}},
    {kMathId, CostKind::kShort, CostTypes::kPairs, {4.48e-07, 1.06e-06, 2.44, 54.1, 11.7, 2.16, 1.36}},
    {kMathId, CostKind::kShort, CostTypes::kConverted, {5.63e-07, 1.09e-06, 1.34, 27.4, 11.8, 1.2, 1.22}},
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
