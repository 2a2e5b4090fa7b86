#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/context_impl.h"
#include "regard/lengths.h"
#include "regard/padding.h"
#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// Packed copies of padded tensors, in memory from the Context's pool.
class PackedCopies {
 public:
  enum class Role {
    kInput,
    kOutput,
    kShape  // of which nothing is read or written
  };

  explicit PackedCopies(ContextImpl& context) : context_(context) {}
  ~PackedCopies();
  PackedCopies(const PackedCopies&) = delete;
  PackedCopies& operator=(const PackedCopies&) = delete;

  /// The view, of [B,H,S,D] or [B,H,S], will become packed; an absent one stays absent.
  void add(TensorView* view, const Lengths& lengths, Role role);
  /// Makes every view that was added one of its packed copy, [1,H,total,D] or [H,total], and copies
  /// the inputs.
  Status pack();
  /// Copies the outputs to the padded tensors, with zeros between the rows.
  Status unpack() const;

 private:
  struct Copy {
    TensorView* view;
    TensorView padded;
    const Lengths* lengths;
    Role role;
    TensorView rows;  // [total,H,D] or [total,H]
  };

  ContextImpl& context_;
  std::vector<Copy> copies_;
  Workspace block_{};
};

/// [B,H,S,D] as the [B,S,H,D] of unpad and pad; [B,H,S] likewise.
TensorView by_position(const TensorView& view);

/// Makes the problem that of the packed copies: their sequences, and masks of their longest ones.
/// `d_bias` may be null.
void set_packed(const PaddedSequences& sequences, AttentionRequest* request, TensorView* d_bias);

}  // namespace regard
