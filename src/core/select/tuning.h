#pragma once

#include <string>

#include "regard/context.h"

namespace regard {

/// parse_tuning_table of a file's text.
Expected<TuningTable> read_tuning_table(const std::string& path);

/// "" when the table was measured on this build and on this device of the machine, else what
/// differs.
std::string tuning_mismatch(const TuningTable& table, const Env& env, DeviceType device);

/// The order of the first rule whose condition holds for `params`; null when none does.
const std::vector<BackendRef>* tuned_order(const TuningTable& table,
                                           const AttentionParams& params) noexcept;

}  // namespace regard
