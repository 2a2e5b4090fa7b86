#include "core/describe/describe_gradients.h"

#include <cstddef>

#include "base/message.h"
#include "core/describe/overlap.h"
#include "core/describe/scale_shapes.h"
#include "core/describe/tensor_rules.h"
#include "core/describe/view_checks.h"

namespace regard {
namespace {

// A backward's tensors on their way to a kernel. Each step returns what is wrong, and later steps
// rely on the ones before.
class GradChecker {
 public:
  GradChecker(const Buffers& buffers, const GradBuffers& gradients, const AttentionParams& params,
              const char* where, TensorSpecs specs)
      : b_(buffers), g_(gradients), p_(params), where_(where), specs_(specs) {}

  Status run() {
    using Step = Status (GradChecker::*)();
    static constexpr Step kSteps[] = {&GradChecker::check_views,   &GradChecker::check_saved,
                                      &GradChecker::check_rows,    &GradChecker::check_scales,
                                      &GradChecker::check_dropout, &GradChecker::check_callback};
    for (const Step step : kSteps) {
      if (Status status = (this->*step)(); !status.ok()) return status;
    }
    return check_overlaps(where_, {present_, static_cast<std::size_t>(count_)});
  }

 private:
  // The forward's inputs, which describe_buffers judged, and the backward's own tensors.
  Status check_views() {
    for (const TensorSpec& spec : specs_) {
      const bool is_own = spec.buffer == nullptr;
      const TensorView& view = is_own ? *spec.in(g_) : b_.*spec.buffer;
      if (!view.present()) continue;
      UsedTensor& used = present_[count_++];
      used = {spec.name, &view, {}, is_written(spec.backward)};
      if (used.is_written) {
        if (Status s = check_writable(where_, {spec.name, view}); !s.ok()) return s;
      }
      if (!is_own) {
        byte_span(view, &used.span);
      } else if (Status s = check_view(where_, {spec.name, view}, p_.device, &used.span); !s.ok()) {
        return s;
      }
    }
    return {};
  }

  // The kind states which of its two shapes saved.stats has.
  Status check_saved() {
    const SavedContext& saved = g_.saved;
    if (saved.kind != SavedContext::Kind::kStats && saved.kind != SavedContext::Kind::kLse) {
      return invalid(where_, "saved.kind (", static_cast<int>(saved.kind),
                     ") must be 1 (saved.stats are saved_stats) or 2 (they are lse)");
    }
    const bool is_lse = saved.kind == SavedContext::Kind::kLse;
    return rules_.check_rank(tensor_at(is_lse ? &Buffers::lse : &Buffers::saved_stats),
                             {"saved.stats", saved.stats});
  }

  Status check_rows() {
    const ScaleLayout layout = scale_layout_of(p_.features);
    set_scale_extents(b_.q, layout, Extent::kScaleRowsQ, Extent::kScaleColumnsQ, &extents_);
    set_scale_extents(b_.v, layout, Extent::kScaleRowsV, Extent::kScaleColumnsV, &extents_);
    for (const TensorSpec& spec : specs_) {
      if (spec.buffer != nullptr) continue;
      const TensorView& view = *spec.in(g_);
      if (!view.present() && !spec.required) continue;
      ShapeMatch match;
      if (Status s = rules_.check(spec, view, &match); !s.ok()) return s;
    }
    return {};
  }

  Status check_scales() {
    if (g_.scales_d_out.present() && !is_f8(g_.d_out.dtype)) {
      return invalid(where_, "scales_d_out (given) must be left out where d_out is ",
                     to_string(g_.d_out.dtype), ", not f8e4m3 or f8e5m2");
    }
    return check_scale_shape(where_, scale_layout_of(p_.features), {"d_out", g_.d_out},
                             {"scales_d_out", g_.scales_d_out});
  }

  Status check_callback() {
    if (b_.score_callback.edit == nullptr || b_.score_callback.gradient != nullptr) return {};
    return invalid(where_, "gradient of score_callback (null) must be given for a backward");
  }

  // A mask drawn from another seed than the forward's would give a wrong gradient without an error.
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

  const Buffers& b_;
  const GradBuffers& g_;
  const AttentionParams& p_;
  const char* where_;
  const TensorSpecs specs_;
  Extents extents_ = extents_of(p_);
  TensorRules rules_{where_, b_, specs_, p_.features.has(Feature::kPacked), &extents_, &p_};
  UsedTensor present_[kMaxTensors];  // the first count_
  int count_ = 0;
};

}  // namespace

Status check_gradients(const Buffers& buffers, const GradBuffers& gradients,
                       const AttentionParams& params, const char* where, TensorSpecs specs) {
  return GradChecker(buffers, gradients, params, where, specs).run();
}

void set_gradient_dtypes(const Buffers& buffers, const GradBuffers& gradients,
                         AttentionOptions* options) noexcept {
  if (!is_f8(buffers.q.dtype)) return;
  if (!options->dtype_d_out && gradients.d_out.present()) {
    options->dtype_d_out = gradients.d_out.dtype;
  }
  for (const TensorView* view : {&gradients.d_q, &gradients.d_k, &gradients.d_v}) {
    if (!options->dtype_gradients && view->present()) options->dtype_gradients = view->dtype;
  }
}

Buffers backward_inputs(const Buffers& buffers) noexcept {
  Buffers inputs = buffers;
  for (const TensorSpec& spec : kTensors) {
    if (spec.buffer != nullptr && spec.backward == TensorRole::kNone) inputs.*spec.buffer = {};
  }
  return inputs;
}

}  // namespace regard
