#pragma once

#include <cstdint>
#include <span>

#include "regard/cost.h"

namespace regard {

/// What a call's time depends on, before any term of a model is applied: the seconds that each term
/// counts.
struct CallCounts {
  double tasks = 0.0;       // per thread at work
  double arithmetic = 0.0;  // seconds at the peak
  double scores = 0.0;      // seconds of one operation of each score at the peak of f32
  double rows = 0.0;        // and of each element of q, out, k and v
  double tails = 0.0;       // seconds of last vectors that are not full, which no term scales
  double memory = 0.0;      // seconds of the bytes at the rates of the levels that hold them
};

/// Rates of all threads of the model, those that are 0 replaced by default_rates().
MachineRates rates_of(const CostModel& model) noexcept;

CostKind kind_of(const AttentionParams& params, bool backward) noexcept;
CostTypes types_of(const AttentionParams& params) noexcept;

CallCounts count_call(const CostModel& model, BackendId backend, const AttentionParams& params,
                      bool backward) noexcept;

/// Null: there is none.
const CostEntry* find_entry(std::span<const CostEntry> entries, BackendId backend, CostKind kind,
                            CostTypes types) noexcept;

/// The same, where types of caches without an entry have that of kConverted.
const CostEntry* entry_of(std::span<const CostEntry> entries, BackendId backend, CostKind kind,
                          CostTypes types) noexcept;

/// The entries of default_costs().
std::span<const CostEntry> default_entries() noexcept;

double seconds_of(const CostTerms& terms, const CallCounts& counts) noexcept;

}  // namespace regard
