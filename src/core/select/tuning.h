#pragma once

#include <string>
#include <string_view>

#include "regard/context.h"

namespace regard {

/// REGARD_TUNING's value for no table at all.
inline constexpr std::string_view kNoTuning = "none";

/// parse_tuning_table of a file's text.
Expected<TuningTable> read_tuning_table(const std::string& path);

/// The table that `regard tune` wrote for this environment; empty where there is none. `skipped`
/// says why a file cannot be used.
TuningTable find_tuning(const Env& env, std::string* skipped);

/// "" when the table was measured on this build and on this device of the machine, else what
/// differs.
std::string tuning_mismatch(const TuningTable& table, const Env& env, DeviceType device);

/// The order of the first rule whose condition holds for `params`; null when none does.
const std::vector<BackendRef>* tuned_order(const TuningTable& table,
                                           const AttentionParams& params) noexcept;

/// The variant of the first rule for this backend whose condition holds and whose variant is one of
/// `offered`; "" where there is none.
std::string tuned_variant(const TuningTable& table, const AttentionParams& params,
                          const BackendRef& backend, const std::vector<std::string>& offered);

}  // namespace regard
