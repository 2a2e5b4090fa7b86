#pragma once

#include <cstdint>

#include "core/describe/view_checks.h"
#include "regard/status.h"
#include "regard/tensors.h"

// What the rows of a table of tensors demand, held against the views of a call.

namespace regard {

/// Extents by name, of extents_of(); -1 where nothing has defined one yet.
class Extents {
 public:
  std::int64_t& operator[](Extent extent) noexcept { return values_[static_cast<int>(extent)]; }

 private:
  std::int64_t values_[kExtentCount];
};

/// All extents that q, k, v, out and the tables of a packed or paged call define.
Extents extents_of(const AttentionParams& params) noexcept;

/// What a view was found to be by the row of its tensor.
struct ShapeMatch {
  bool is_second = false;  // of two shapes
  BroadcastDims full_dims = 0;
};

class TensorRules {
 public:
  /// `extents` are completed by the tensors that define one.
  /// `params`: of a backward, whose gradients have types of their own; null otherwise.
  TensorRules(const char* where, const Buffers& buffers, TensorSpecs specs, bool packed,
              Extents* extents, const AttentionParams* params = nullptr) noexcept
      : where_(where),
        buffers_(buffers),
        specs_(specs),
        is_packed_(packed),
        extents_(*extents),
        params_(params) {}

  /// The row's rules of the tensors beside the view, of dtype, shape and last stride. Needs a view
  /// that check_view accepts, or an absent one of a tensor that is required.
  Status check(const TensorSpec& spec, const TensorView& view, ShapeMatch* match);
  Status check_dtype(const TensorSpec& spec, const TensorView& view);
  /// The rank alone, of a tensor that has one shape.
  Status check_rank(const TensorSpec& spec, const NamedView& tensor);

 private:
  using Alternative = ShapeRule::Alternative;

  Status check_beside(const TensorSpec& spec);
  Status check_f8_gradient(const TensorSpec& spec, const TensorView& view);
  Status check_like(const TensorSpec& spec, const TensorView& view);
  Status check_shape(const TensorSpec& spec, const TensorView& view, ShapeMatch* match);
  Status refuse_shape(const TensorSpec& spec, const TensorView& view, const ShapeRule& rule,
                      const Alternative& shape);
  const ShapeRule& rule_of(const TensorSpec& spec) const noexcept;
  std::int64_t full(const ShapeRule::Dim& dim) noexcept;

  const char* where_;
  const Buffers& buffers_;
  TensorSpecs specs_;
  bool is_packed_;
  Extents& extents_;
  const AttentionParams* params_;
};

/// An error where the row demands a last stride of 1 and the view, of rank 4, has another.
/// Whether k, or v, has scales: rows of q's type are then quantised as they are appended.
bool has_scales(const Buffers& buffers, TensorView Buffers::*cache) noexcept;

Status check_last_stride(const char* where, const TensorSpec& spec, const TensorView& view);

}  // namespace regard
