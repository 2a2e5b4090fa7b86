#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/checked.h"
#include "cuda/append_args.h"
#include "cuda/forward_args.h"
#include "cuda/splits_layout.h"
#include "problem/make_problem.h"
#include "regard/backend.h"

// What backends share whose keys may lie in caches.

namespace regard::cuda {

/// Whether kernels have the call's pages and rows: they count a sequence's rows in pages in 32
/// bits, and multiply rows by the Hadamard matrix in shared memory.
inline bool takes_cache(const AttentionParams& p, std::vector<Refusal>* refusals) {
  constexpr std::int64_t kMaxRows = 0xffffffff;
  bool takes = true;
  const auto check_max = [&](Feature feature, std::int64_t value, std::int64_t max,
                             const char* what) {
    if (!p.features.has(feature) || value <= max) return;
    takes = false;
    if (refusals == nullptr) return;
    refusals->push_back({RefusalCode::kCustom,
                         "needs at most " + std::to_string(max) + what,
                         "got " + std::to_string(value),
                         {}});
  };
  check_max(Feature::kPaged, p.seqlen_kv, kMaxRows, " rows in pages");
  check_max(Feature::kHadamard, p.head_dim_qk, kMaxHadamardColumns,
            " columns of q and k with hadamard");
  return takes;
}

/// The workspace of a forward: its rotated queries, then its splits.
inline std::int64_t forward_bytes(const AttentionParams& p) {
  return saturating_add(problem::rotated_queries_bytes(p), splits_layout(p).bytes);
}

/// Before a forward's kernels: `append` writes new rows to the cache, and queries that are rotated
/// or mixed to the start of the workspace, which become the problem's q. Does nothing where a call
/// has neither.
inline Status append_before(Status (*append)(const AppendArgs&, void*), const Buffers& buffers,
                            const Launch& launch, problem::Problem* problem) {
  problem::Problem& p = *problem;
  const bool has_angles = p.rotary_cos.present, rotates = has_angles || p.hadamard;
  if (p.seqlen_new == 0 && !rotates) return {};
  AppendArgs before{p, buffers.k.shape[0]};
  if (rotates) {
    before.rotated = problem::rotated_view(p, launch.workspace.data);
    if (has_angles) before.angles = buffers.rotary_cos.shape[0];
    before.mix_unit = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim_qk)));
    p.q = before.rotated;
  }
  return append(before, launch.stream);
}

/// Whether a plan's forward divides the keys of its few rows: its tiles then have so many rows.
inline bool is_split_plan(const KernelPlan& plan) { return plan.tile_q == kSplitRows; }

/// The splits of a call, after its rotated queries. A plan that splits no keys has no workspace
/// for them, however few rows a call under it has.
inline Splits splits_after_queries(const AttentionParams& p, const KernelPlan& plan,
                                   const Launch& launch) {
  if (!is_split_plan(plan)) return {};
  return splits_of(p,
                   static_cast<char*>(launch.workspace.data) + problem::rotated_queries_bytes(p));
}

}  // namespace regard::cuda
