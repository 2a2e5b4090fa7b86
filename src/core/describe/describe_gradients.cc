#include "core/describe/describe_gradients.h"

#include <algorithm>
#include <iterator>

#include "base/message.h"
#include "core/describe/describe.h"
#include "core/describe/overlap.h"
#include "core/describe/view_checks.h"

namespace regard {
namespace {

// A backward's tensors on their way to a kernel. Each step returns what is wrong, and later steps
// rely on the ones before.
class GradChecker {
 public:
  GradChecker(const Buffers& buffers, const GradBuffers& gradients, const AttentionParams& params,
              const char* where)
      : b_(buffers), g_(gradients), p_(params), where_(where) {}

  Status run() {
    using Step = Status (GradChecker::*)();
    static constexpr Step kSteps[] = {&GradChecker::check_views,   &GradChecker::check_saved,
                                      &GradChecker::check_inputs,  &GradChecker::check_outputs,
                                      &GradChecker::check_dropout, &GradChecker::check_overlaps};
    for (const Step step : kSteps) {
      if (Status status = (this->*step)(); !status.ok()) return status;
    }
    return {};
  }

 private:
  // The forward's inputs first (describe_buffers judged them), then the backward's own tensors.
  Status check_views() {
    for (const BufferTensor& tensor : kBufferTensors) {
      const TensorView& view = b_.*tensor.view;
      if (!view.present()) continue;
      Present& present = present_[count_++];
      present = {tensor.name, &view, {}, false};
      byte_span(view, &present.span);
    }
    for (const GradTensor& tensor : kGradTensors) {
      const TensorView& view = tensor.view(g_);
      if (!view.present()) continue;
      Present& present = present_[count_++];
      present = {tensor.name, &view, {}, tensor.output};
      Status status = check_view(where_, {tensor.name, view}, p_.device, &present.span);
      if (!status.ok()) return status;
    }
    return {};
  }

  bool is_packed() const noexcept { return p_.features.has(Feature::kPacked); }
  Dtype wide() const noexcept { return p_.dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32; }

  // A tensor with one number for each row.
  Status expect_rows(const NamedView& rows) {
    if (Status s = expect_dtype(where_, rows, {wide()}); !s.ok()) return s;
    return is_packed()
               ? expect_shape(where_, rows, {p_.num_heads_q, p_.total_q}, "[Hq,total_q]")
               : expect_shape(where_, rows, {p_.batch, p_.num_heads_q, p_.seqlen_q}, "[B,Hq,Sq]");
  }

  Status check_saved() {
    const NamedView stats{"saved.stats", g_.saved.stats};
    switch (g_.saved.kind) {
      case SavedContext::Kind::kLse: return expect_rows(stats);
      case SavedContext::Kind::kStats:
        if (Status s = expect_dtype(where_, stats, {wide()}); !s.ok()) return s;
        return expect_shape(
            where_, stats,
            {is_packed() ? 1 : p_.batch, p_.num_heads_q, is_packed() ? p_.total_q : p_.seqlen_q, 2},
            "[B,Hq,Sq,2]");
      case SavedContext::Kind::kNone: break;
    }
    return invalid(where_, "saved.kind (", static_cast<int>(g_.saved.kind),
                   ") must say what saved.stats holds: 1 (saved_stats) or 2 (lse)");
  }

  // The type and shape of the tensor that `gradient` belongs to.
  Status expect_like(const NamedView& gradient, const NamedView& of) {
    if (gradient.view.present() && gradient.view.dtype != of.view.dtype) {
      return invalid(where_, "dtype of ", gradient.name, " (", to_string(gradient.view.dtype),
                     ") must be ", of.name, "'s, ", to_string(of.view.dtype));
    }
    const bool same = gradient.view.rank == of.view.rank &&
                      std::equal(of.view.shape, of.view.shape + of.view.rank, gradient.view.shape);
    if (same) return {};
    return invalid(where_, gradient.name, " ", to_string(gradient.view), " must have the shape of ",
                   of.name, " ", to_string(of.view));
  }

  Status expect_rows_like(const NamedView& gradient, const NamedView& of) {
    if (Status s = expect_like(gradient, of); !s.ok()) return s;
    if (gradient.view.strides[3] == 1 || gradient.view.shape[3] <= 1) return {};
    return invalid(where_, "last stride of ", gradient.name, " (", gradient.view.strides[3],
                   ") must be 1");
  }

  Status check_inputs() {
    if (Status s = expect_rows_like({"d_out", g_.d_out}, {"out", b_.out}); !s.ok()) return s;
    for (const NamedView& rows : {NamedView{"delta", g_.delta}, NamedView{"d_lse", g_.d_lse}}) {
      if (!rows.view.present()) continue;
      if (Status s = expect_rows(rows); !s.ok()) return s;
    }
    return {};
  }

  Status check_outputs() {
    struct Pair {
      NamedView gradient;
      NamedView of;
    };
    for (const Pair& pair : {Pair{{"d_q", g_.d_q}, {"q", b_.q}}, Pair{{"d_k", g_.d_k}, {"k", b_.k}},
                             Pair{{"d_v", g_.d_v}, {"v", b_.v}}}) {
      if (!pair.gradient.view.present()) continue;
      if (Status s = expect_rows_like(pair.gradient, pair.of); !s.ok()) return s;
    }
    for (const Pair& pair : {Pair{{"d_bias", g_.d_bias}, {"attn_bias", b_.attn_bias}},
                             Pair{{"d_sinks", g_.d_sinks}, {"sinks", b_.sinks}}}) {
      if (!pair.gradient.view.present()) continue;
      if (!pair.of.view.present()) {
        return invalid(where_, pair.of.name, " (absent) must be given with ", pair.gradient.name);
      }
      if (Status s = expect_like(pair.gradient, pair.of); !s.ok()) return s;
    }
    return {};
  }

  // A mask drawn from another seed than the forward's would be a wrong gradient that nobody sees.
  Status check_dropout() {
    if (!p_.features.has(Feature::kDropout)) return {};
    if (b_.rng_seed != g_.saved.rng_seed) {
      return invalid(where_, "rng_seed (", b_.rng_seed, ") must be saved.rng_seed, ",
                     g_.saved.rng_seed);
    }
    if (b_.rng_offset != g_.saved.rng_offset) {
      return invalid(where_, "rng_offset (", b_.rng_offset, ") must be saved.rng_offset, ",
                     g_.saved.rng_offset);
    }
    return {};
  }

  // No element of a gradient shares bytes with an input, another gradient or itself.
  Status check_overlaps() {
    for (int i = 0; i < count_; ++i) {
      const Present& output = present_[i];
      if (!output.output) continue;
      if (!proves_injective(*output.view)) {
        return invalid(where_, output.name, " ", to_string(*output.view),
                       " must not overlap itself");
      }
      for (int j = 0; j < i; ++j) {  // inputs stand before outputs
        const Present& other = present_[j];
        if (!intersects(output.span, other.span)) continue;
        if (proves_disjoint(*output.view, *other.view)) continue;
        return invalid(where_, output.name, " ", to_string(*output.view), " must not overlap ",
                       other.name, " ", to_string(*other.view));
      }
    }
    return {};
  }

  const Buffers& b_;
  const GradBuffers& g_;
  const AttentionParams& p_;
  const char* where_;
  struct Present {
    const char* name;
    const TensorView* view;
    ByteSpan span;
    bool output;
  };
  Present present_[std::size(kBufferTensors) + std::size(kGradTensors)];  // the first count_
  int count_ = 0;
};

}  // namespace

Status check_gradients(const Buffers& buffers, const GradBuffers& gradients,
                       const AttentionParams& params, const char* where) {
  return GradChecker(buffers, gradients, params, where).run();
}

Buffers backward_inputs(const Buffers& buffers) noexcept {
  Buffers inputs = buffers;
  inputs.lse = inputs.saved_stats = inputs.scores_out = TensorView{};
  return inputs;
}

}  // namespace regard
