#pragma once

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

/// Kernels count a sequence's rows in pages in 32 bits.
inline bool can_count_pages(const AttentionParams& p, std::vector<Refusal>* refusals) {
  constexpr std::int64_t kMaxRows = 0xffffffff;
  if (!p.features.has(Feature::kPaged) || p.seqlen_kv <= kMaxRows) return true;
  if (refusals != nullptr) {
    refusals->push_back({RefusalCode::kCustom,
                         "needs at most " + std::to_string(kMaxRows) + " rows in pages",
                         "got " + std::to_string(p.seqlen_kv),
                         {}});
  }
  return false;
}

/// The workspace of a forward: its rotated queries, then its splits.
inline std::int64_t forward_bytes(const AttentionParams& p) {
  return saturating_add(problem::rotated_queries_bytes(p), splits_layout(p).bytes);
}

/// Before a forward's kernels: `append` writes new rows to the cache, and rotated queries to the
/// start of the workspace, which become the problem's q. Does nothing where a call has neither.
inline Status append_before(Status (*append)(const AppendArgs&, void*), const Buffers& buffers,
                            const Launch& launch, ForwardArgs* args) {
  problem::Problem& p = args->problem;
  const bool rotates = p.rotary_cos.present;
  if (p.seqlen_new == 0 && !rotates) return {};
  AppendArgs before{p, args->kv_entries};
  if (rotates) {
    before.rotated = problem::rotated_view(p, launch.workspace.data);
    before.angles = buffers.rotary_cos.shape[0];
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
