#include <cstddef>
#include <iterator>

#include "base/json_writer.h"
#include "regard/cost.h"

namespace regard {
namespace {

constexpr BackendId kMathId = BackendId::kMath, kFlashId = BackendId::kFlash,
                    kEfficientId = BackendId::kEfficient;

// Fitted by `regard_bench_costs --fit` to 978 times on a Zen 4 (AVX-512, two threads) with that
// machine's measured rates: 84 % of them are within 1.3 times.
constexpr CostEntry kEntries[] = {
    {kFlashId,
     CostKind::kDecode,
     CostTypes::kFloats,
     {1.49e-06, 3.73e-07, 0.969, 250, 3.65, 1.08, 1.73}},
    {kFlashId,
     CostKind::kDecode,
     CostTypes::kPairs,
     {2.11e-06, 7.14e-07, 1.21, 426, 1.65, 1.09, 2.55}},
    {kFlashId,
     CostKind::kDecode,
     CostTypes::kConverted,
     {1.38e-06, 1.39e-07, 0.179, 640, 22.4, 1.68, 1.62}},
    {kFlashId,
     CostKind::kShort,
     CostTypes::kFloats,
     {1.61e-06, 2.5e-07, 1.08, 8.46, 28.8, 0.952, 1.34}},
    {kFlashId,
     CostKind::kShort,
     CostTypes::kPairs,
     {2.91e-07, 5.88e-07, 1.27, 3.99, 20.4, 1.14, 1.75}},
    {kFlashId,
     CostKind::kShort,
     CostTypes::kConverted,
     {1.11e-05, 3.27e-07, 1.24, 3.72, 12.5, 1.19, 1.1}},
    {kFlashId,
     CostKind::kPrefill,
     CostTypes::kFloats,
     {3.83e-06, 1.34e-07, 1.21, 6.21, 10, 1.75, 1.2}},
    {kFlashId,
     CostKind::kPrefill,
     CostTypes::kPairs,
     {6.18e-06, 2.85e-07, 1.14, 21.9, 16.5, 1.2, 1.43}},
    {kFlashId,
     CostKind::kPrefill,
     CostTypes::kConverted,
     {3e-06, 2.51e-07, 1.1, 31.7, 5.54, 7.06, 1.31}},
    {kFlashId,
     CostKind::kBackward,
     CostTypes::kFloats,
     {3e-06, 3e-07, 1.18, 19.8, 25.4, 1.2, 1.17}},
    {kFlashId,
     CostKind::kBackward,
     CostTypes::kPairs,
     {1.02e-05, 2.88e-06, 1.3, 28, 5.95, 1.2, 1.43}},
    {kFlashId,
     CostKind::kBackward,
     CostTypes::kConverted,
     {3e-06, 2.83e-06, 1.13, 20.2, 12.4, 1.2, 1.24}},
    {kEfficientId,
     CostKind::kDecode,
     CostTypes::kFloats,
     {1.65e-06, 3e-07, 1, 235, 2.27, 1.2, 1.91}},
    {kEfficientId,
     CostKind::kDecode,
     CostTypes::kPairs,
     {1.36e-06, 7.43e-07, 0.93, 557, 1.72, 1.03, 2.43}},
    {kEfficientId,
     CostKind::kDecode,
     CostTypes::kConverted,
     {1.17e-06, 1.3e-07, 0.488, 640, 22.6, 2.06, 1.68}},
    {kEfficientId,
     CostKind::kShort,
     CostTypes::kFloats,
     {1.75e-06, 2.73e-07, 1.07, 11.3, 26.3, 1.21, 1.32}},
    {kEfficientId,
     CostKind::kShort,
     CostTypes::kPairs,
     {3.22e-07, 6.49e-07, 1.27, 4.82, 19.2, 0.643, 1.8}},
    {kEfficientId,
     CostKind::kShort,
     CostTypes::kConverted,
     {1.03e-05, 3.01e-07, 1.21, 3.75, 16.1, 1.98, 1.1}},
    {kEfficientId,
     CostKind::kPrefill,
     CostTypes::kFloats,
     {3e-06, 2.13e-07, 1.19, 15.6, 11.2, 1.45, 1.23}},
    {kEfficientId,
     CostKind::kPrefill,
     CostTypes::kPairs,
     {6.41e-06, 2.8e-07, 1.16, 25.6, 16.1, 1.2, 1.46}},
    {kEfficientId,
     CostKind::kPrefill,
     CostTypes::kConverted,
     {3e-06, 4.12e-07, 1.09, 39.1, 14.5, 1.2, 1.34}},
    {kEfficientId,
     CostKind::kBackward,
     CostTypes::kFloats,
     {3e-06, 3e-07, 1.52, 195, 50.2, 1.2, 1.3}},
    {kEfficientId,
     CostKind::kBackward,
     CostTypes::kPairs,
     {1.13e-05, 3e-07, 3.04, 162, 67.4, 1.2, 1.15}},
    {kEfficientId,
     CostKind::kBackward,
     CostTypes::kConverted,
     {3.03e-06, 2.98e-07, 1.42, 402, 22.7, 1.2, 1.17}},
    {kMathId, CostKind::kDecode, CostTypes::kFloats, {1.8e-06, 3.37e-07, 0.483, 20, 15.5, 4, 2.26}},
    {kMathId,
     CostKind::kDecode,
     CostTypes::kPairs,
     {3.01e-06, 2.31e-06, 0.85, 20, 5.37, 7.39, 1.85}},
    {kMathId,
     CostKind::kDecode,
     CostTypes::kConverted,
     {5.25e-06, 3.6e-07, 0.412, 20, 32.2, 9.41, 2.04}},
    {kMathId,
     CostKind::kShort,
     CostTypes::kFloats,
     {4.05e-06, 3e-07, 1.18, 13.4, 24.2, 1.16, 1.23}},
    {kMathId,
     CostKind::kShort,
     CostTypes::kPairs,
     {5.48e-07, 1.98e-06, 1.8, 237, 11.8, 2.78, 1.41}},
    {kMathId,
     CostKind::kShort,
     CostTypes::kConverted,
     {1.04e-05, 9.72e-07, 1.3, 15.9, 20, 1.2, 1.11}},
    {kMathId,
     CostKind::kPrefill,
     CostTypes::kFloats,
     {6.49e-06, 2.96e-07, 1.27, 14.1, 24, 0.234, 1.14}},
    {kMathId,
     CostKind::kPrefill,
     CostTypes::kPairs,
     {9.06e-06, 2.24e-07, 2.29, 64.9, 36, 0.317, 1.48}},
    {kMathId,
     CostKind::kPrefill,
     CostTypes::kConverted,
     {4.9e-06, 2.97e-07, 1.27, 33.1, 20.2, 0.306, 1.37}},
    {kMathId, CostKind::kBackward, CostTypes::kFloats, {3e-06, 3e-07, 1.54, 180, 51.6, 1.18, 1.4}},
    {kMathId,
     CostKind::kBackward,
     CostTypes::kPairs,
     {2.2e-05, 4.04e-07, 3.18, 103, 54.5, 2.24, 1.21}},
    {kMathId,
     CostKind::kBackward,
     CostTypes::kConverted,
     {2.98e-06, 2.98e-07, 1.45, 340, 24, 1.15, 1.21}},
};

/// How far another machine's rates may be from default_rates(): added to the fit's own spread.
constexpr double kRatesSpread = 1.8;

}  // namespace

const char* to_string(CostKind kind) noexcept {
  constexpr const char* kNames[] = {"decode", "short", "prefill", "backward"};
  const auto i = static_cast<std::size_t>(kind);
  return i < std::size(kNames) ? kNames[i] : "?";
}

const char* to_string(CostTypes types) noexcept {
  constexpr const char* kNames[] = {"floats", "pairs", "converted"};
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
