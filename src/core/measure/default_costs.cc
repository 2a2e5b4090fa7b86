#include <cstddef>
#include <iterator>

#include "base/json_writer.h"
#include "regard/cost.h"

namespace regard {
namespace {

constexpr BackendId kMathId = BackendId::kMath, kFlashId = BackendId::kFlash,
                    kEfficientId = BackendId::kEfficient;

// Fitted to 1,392 times of random problems (regard_bench_costs
// --fit) on a Zen 4 (AVX-512, two threads) with its measured rates: 87 % are within 1.3 times.
// Decode of bf16, int8, 8-bit floats and u4, which explain compares: 366 times of one thread of an
// Emerald Rapids, which other programs used, too (nine of ten FLASH times are within 1.6 times).
// clang-format off
constexpr CostEntry kEntries[] = {
    {kFlashId, CostKind::kDecode, CostTypes::kFloats, {1.42e-06, 7.88e-07, 0.72, 250, 3.93, 0.501, 1.39}},
    {kFlashId, CostKind::kDecode, CostTypes::kPairs, {2.09e-06, 5.14e-07, 1.06, 341, 13.8, 1.17, 1.59}},
    {kFlashId, CostKind::kDecode, CostTypes::kConverted, {1.36e-06, 1.87e-07, 0.177, 570, 5.13, 0.642, 1.57}},
    {kFlashId, CostKind::kDecode, CostTypes::kI8, {1.36e-06, 1.87e-07, 0.176, 610, 14.1, 0.642, 1.49}},
    {kFlashId, CostKind::kDecode, CostTypes::kF8, {1.36e-06, 1.87e-07, 0.177, 663, 30.8, 0.642, 1.46}},
    {kFlashId, CostKind::kDecode, CostTypes::kU4, {2.91e-06, 2.02e-07, 0.178, 1.34e+03, 6.16, 4.8, 1.39}},
    {kFlashId, CostKind::kShort, CostTypes::kFloats, {6.25e-06, 2.5e-07, 0.963, 8.46, 14.8, 0.952, 1.21}},
    {kFlashId, CostKind::kShort, CostTypes::kPairs, {2.91e-07, 5.88e-07, 0.832, 3.99, 20, 1.13, 1.15}},
    {kFlashId, CostKind::kShort, CostTypes::kConverted, {9.07e-06, 3.27e-07, 1.07, 3.72, 12.5, 1.19, 1.1}},
    {kFlashId, CostKind::kPrefill, CostTypes::kFloats, {3.83e-06, 1.34e-07, 1.1, 15.8, 10, 1.75, 1.16}},
    {kFlashId, CostKind::kPrefill, CostTypes::kPairs, {6.18e-06, 2.85e-07, 1.04, 23.5, 13.8, 1.2, 1.27}},
    {kFlashId, CostKind::kPrefill, CostTypes::kConverted, {3e-06, 2.51e-07, 1.1, 25.2, 5.54, 7.06, 1.26}},
    {kFlashId, CostKind::kBackward, CostTypes::kFloats, {3e-06, 3e-07, 1.12, 19.8, 42.6, 1.2, 1.22}},
    {kFlashId, CostKind::kBackward, CostTypes::kPairs, {1.3e-05, 2.88e-06, 1.24, 28, 5.95, 1.2, 1.46}},
    {kFlashId, CostKind::kBackward, CostTypes::kConverted, {3e-06, 2.83e-06, 1.11, 20.2, 12.4, 1.2, 1.32}},
    {kEfficientId, CostKind::kDecode, CostTypes::kFloats, {1.65e-06, 5.17e-07, 0.908, 230, 2.27, 0.909, 1.56}},
    {kEfficientId, CostKind::kDecode, CostTypes::kPairs, {1.36e-06, 6.43e-07, 0.682, 418, 9.63, 1.7, 1.6}},
    {kEfficientId, CostKind::kDecode, CostTypes::kConverted, {1.17e-06, 1.77e-07, 0.334, 640, 3.65, 1.28, 1.57}},
    {kEfficientId, CostKind::kDecode, CostTypes::kI8, {1.17e-06, 1.77e-07, 0.334, 640, 10.2, 1.67, 1.58}},
    {kEfficientId, CostKind::kDecode, CostTypes::kF8, {1.17e-06, 1.77e-07, 2.27, 718, 3.65, 7.38, 1.45}},
    {kEfficientId, CostKind::kDecode, CostTypes::kU4, {3.13e-06, 1.88e-07, 0.336, 1.29e+03, 5.11, 5.12, 1.35}},
    {kEfficientId, CostKind::kShort, CostTypes::kFloats, {1.75e-06, 3.3e-07, 0.803, 11.3, 26.3, 1.21, 1.19}},
    {kEfficientId, CostKind::kShort, CostTypes::kPairs, {3.22e-07, 6.5e-07, 0.883, 4.82, 18.1, 0.643, 1.16}},
    {kEfficientId, CostKind::kShort, CostTypes::kConverted, {7.58e-06, 3.01e-07, 1.13, 3.75, 12.2, 1.98, 1.11}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kFloats, {3e-06, 2.13e-07, 1.08, 20.9, 11.5, 1.45, 1.17}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kPairs, {6.41e-06, 2.8e-07, 1.06, 25.3, 14.5, 1.2, 1.29}},
    {kEfficientId, CostKind::kPrefill, CostTypes::kConverted, {3e-06, 4.12e-07, 1.07, 30.2, 14.5, 1.2, 1.26}},
    {kEfficientId, CostKind::kBackward, CostTypes::kFloats, {3e-06, 3e-07, 1.52, 189, 36.9, 1.2, 1.23}},
    {kEfficientId, CostKind::kBackward, CostTypes::kPairs, {1.13e-05, 3e-07, 2.9, 162, 60.2, 1.2, 1.13}},
    {kEfficientId, CostKind::kBackward, CostTypes::kConverted, {3.03e-06, 2.98e-07, 1.42, 341, 28.8, 1.2, 1.35}},
    {kMathId, CostKind::kDecode, CostTypes::kFloats, {1.23e-06, 3.37e-07, 0.437, 20, 30.1, 1.26, 1.34}},
    {kMathId, CostKind::kDecode, CostTypes::kPairs, {3.01e-06, 1.54e-06, 0.85, 20, 12.5, 6.89, 1.51}},
    {kMathId, CostKind::kDecode, CostTypes::kConverted, {5.25e-06, 3.67e-07, 0.412, 20, 28.2, 3.86, 2.06}},
    {kMathId, CostKind::kDecode, CostTypes::kI8, {5.25e-06, 3.67e-07, 0.412, 20, 28.4, 12.1, 1.51}},
    {kMathId, CostKind::kDecode, CostTypes::kF8, {5.25e-06, 3.67e-07, 0.412, 20, 53.1, 4.98, 1.25}},
    {kMathId, CostKind::kDecode, CostTypes::kU4, {5.23e-06, 3.65e-07, 0.412, 20, 25.1, 20.1, 1.48}},
    {kMathId, CostKind::kShort, CostTypes::kFloats, {4.05e-06, 3e-07, 0.939, 13.4, 25.3, 1.16, 1.21}},
    {kMathId, CostKind::kShort, CostTypes::kPairs, {5.48e-07, 1.48e-06, 1.91, 76.9, 14, 2.78, 1.38}},
    {kMathId, CostKind::kShort, CostTypes::kConverted, {7.43e-06, 4.4e-07, 1.27, 13.7, 12.1, 1.2, 1.17}},
    {kMathId, CostKind::kPrefill, CostTypes::kFloats, {6.49e-06, 2.96e-07, 1.15, 14.2, 23.9, 0.234, 1.16}},
    {kMathId, CostKind::kPrefill, CostTypes::kPairs, {9.06e-06, 2.24e-07, 2.25, 31.6, 35.1, 0.317, 1.22}},
    {kMathId, CostKind::kPrefill, CostTypes::kConverted, {4.9e-06, 2.97e-07, 1.21, 31.1, 20.2, 0.306, 1.28}},
    {kMathId, CostKind::kBackward, CostTypes::kFloats, {3e-06, 3e-07, 1.54, 167, 37.8, 1.18, 1.22}},
    {kMathId, CostKind::kBackward, CostTypes::kPairs, {1.99e-05, 4.04e-07, 3.12, 102, 46.3, 2.24, 1.19}},
    {kMathId, CostKind::kBackward, CostTypes::kConverted, {2.98e-06, 2.98e-07, 1.48, 288, 24.5, 1.15, 1.39}},
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
