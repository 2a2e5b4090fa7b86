#include "core/execute/check_workspace.h"

#include <cstdint>

#include "base/message.h"
#include "core/describe/overlap.h"
#include "core/plan/workspace_pool.h"

namespace regard {
namespace {

/// An error when an element of the tensor may lie in the workspace.
Status check_apart(const Workspace& workspace, const char* name, const TensorView& view,
                   const char* where) {
  ByteSpan span;
  if (!byte_span(view, &span)) return {};
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data);
  if (!intersects(span, {begin, begin + workspace.bytes})) return {};
  TensorView block;
  block.data = workspace.data;
  block.dtype = Dtype::kU8;
  block.rank = 1;
  block.shape[0] = static_cast<std::int64_t>(workspace.bytes);
  block.strides[0] = 1;
  block.device = view.device;
  if (proves_disjoint(view, block)) return {};
  return failure(StatusCode::kWorkspace, where, "workspace of ", workspace.bytes,
                 " bytes must not overlap ", name, " ", to_string(view));
}

}  // namespace

Status check_workspace(const Workspace& workspace, std::int64_t needed, const Buffers& buffers,
                       const GradBuffers* gradients, const char* where, TensorSpecs specs) {
  if (needed == 0) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  if (workspace.data == nullptr || workspace.bytes < static_cast<std::size_t>(needed)) {
    return failure(StatusCode::kWorkspace, where, "workspace of ", workspace.bytes,
                   " bytes, expected at least ", needed);
  }
  if (address % kWorkspaceAlign != 0) {
    return failure(StatusCode::kWorkspace, where, "workspace aligned to ", address & (~address + 1),
                   " bytes, expected 64");
  }
  if (workspace.bytes > static_cast<std::size_t>(INT64_MAX) || workspace.bytes > ~address) {
    return failure(StatusCode::kWorkspace, where, "workspace of ", workspace.bytes,
                   " bytes ends beyond the address space");
  }
  for (const TensorSpec& spec : specs) {
    if (spec.buffer == nullptr && gradients == nullptr) break;  // the rows of a backward
    const TensorView& view = spec.buffer != nullptr ? buffers.*spec.buffer : *spec.in(*gradients);
    if (!view.present()) continue;
    if (Status s = check_apart(workspace, spec.name, view, where); !s.ok()) return s;
  }
  return {};
}

}  // namespace regard
