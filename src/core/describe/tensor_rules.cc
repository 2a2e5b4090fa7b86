#include "core/describe/tensor_rules.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/checked.h"
#include "base/message.h"

namespace regard {
namespace {

constexpr std::size_t kMaxDtypes = 3;
struct DtypeList {
  Dtype dtypes[kMaxDtypes] = {};
  std::size_t count = 0;  // 0: any
};

DtypeList accepted(DtypeRule rule, Dtype dtype_q) noexcept {
  switch (rule) {
    case DtypeRule::kAny:
    case DtypeRule::kLike:
    case DtypeRule::kNewRow:
    case DtypeRule::kOutGradient:
    case DtypeRule::kGradient: return {};
    case DtypeRule::kStatistics: return {{dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32}, 1};
    case DtypeRule::kMask: return {{Dtype::kBool, Dtype::kU8}, 2};
    case DtypeRule::kBias: {
      const bool is_third = dtype_q != Dtype::kF32 && dtype_q != Dtype::kF64 && !is_f8(dtype_q);
      return {{Dtype::kF32, Dtype::kF64, dtype_q}, is_third ? std::size_t{3} : std::size_t{2}};
    }
    case DtypeRule::kCaptured: return {};  // check_captured
    case DtypeRule::kU8: return {{Dtype::kU8}, 1};
    case DtypeRule::kF32: return {{Dtype::kF32}, 1};
    case DtypeRule::kI32: return {{Dtype::kI32}, 1};
    case DtypeRule::kI64: return {{Dtype::kI64}, 1};
    case DtypeRule::kAngle: {
      const bool is_second = is_float(dtype_q) && dtype_q != Dtype::kF32 && !is_f8(dtype_q);
      return {{Dtype::kF32, dtype_q}, is_second ? std::size_t{2} : std::size_t{1}};
    }
    case DtypeRule::kIndex: return {{Dtype::kI32, Dtype::kI64}, 2};
  }
  return {};
}

/// The alternative of the view's rank; the first where there is none.
std::size_t alternative_of(const ShapeRule& rule, const TensorView& view) noexcept {
  const auto shapes = rule.alternatives();
  return shapes.size() > 1 && shapes[1].rank == view.rank ? 1 : 0;
}

/// The letters of the shape, then those of the other one: "[Hq] or [B,Hq]". A shape of numbers
/// needs no letters: "or [B,Hkv]".
std::string letters_of(const ShapeRule& rule, const ShapeRule::Alternative& shape) {
  bool has_letters = false;
  for (int i = 0; i < shape.rank; ++i) {
    has_letters = has_letters || shape.dims[i].extent != Extent::kCount;
  }
  std::string text(has_letters ? shape.text : "");
  for (const ShapeRule::Alternative& other : rule.alternatives()) {
    if (&other != &shape) append(text, concat(text.empty() ? "or " : " or ", other.text));
  }
  return text;
}

}  // namespace

Extents extents_of(const AttentionParams& params) noexcept {
  Extents extents;
  for (int i = 0; i < kExtentCount; ++i) extents[static_cast<Extent>(i)] = -1;
  extents[Extent::kB] = params.batch;
  extents[Extent::kHq] = params.num_heads_q;
  extents[Extent::kHkv] = params.num_heads_kv;
  extents[Extent::kSq] = params.seqlen_q;
  extents[Extent::kSkv] = params.seqlen_kv;
  extents[Extent::kDqk] = params.head_dim_qk;
  extents[Extent::kDv] = params.head_dim_v;
  extents[Extent::kTotalQ] = params.total_q;
  extents[Extent::kTotalKv] = params.total_kv;
  return extents;
}

bool has_scales(const Buffers& buffers, TensorView Buffers::*cache) noexcept {
  if (cache == &Buffers::v) return buffers.scales_v.present();
  return buffers.scales_k.present() || buffers.channel_scales_k.present();
}

Status check_last_stride(const char* where, const TensorSpec& spec, const TensorView& view) {
  const int last = view.rank - 1;
  if (!spec.last_stride_is_1 || view.strides[last] == 1 || view.shape[last] <= 1) return {};
  return invalid(where, "last stride of ", spec.name, " (", view.strides[last], ") must be 1");
}

Status TensorRules::check(const TensorSpec& spec, const TensorView& view, ShapeMatch* match) {
  if (Status s = check_beside(spec); !s.ok()) return s;
  if (Status s = check_dtype(spec, view); !s.ok()) return s;
  if (Status s = check_shape(spec, view, match); !s.ok()) return s;
  return check_last_stride(where_, spec, view);
}

Status TensorRules::check_beside(const TensorSpec& spec) {
  TensorView Buffers::*const other = spec.beside != nullptr     ? spec.beside
                                     : spec.gradient != nullptr ? spec.like
                                                                : nullptr;
  if (other == nullptr || (buffers_.*other).present()) return {};
  bool both = false;
  for (const TensorSpec& each : specs_) {
    both = both || (each.buffer == other && each.beside != nullptr && each.beside == spec.buffer);
  }
  return invalid(where_, tensor_at(other, specs_).name, " (absent) must be given with ", spec.name,
                 both ? ": both or neither" : "");
}

Status TensorRules::check_dtype(const TensorSpec& spec, const TensorView& view) {
  if (spec.dtype == DtypeRule::kNewRow && has_scales(buffers_, spec.like)) {
    if (view.dtype == buffers_.q.dtype) return {};
    return invalid(where_, "dtype of ", spec.name, " (", to_string(view.dtype), ") must be q's, ",
                   to_string(buffers_.q.dtype), ", for ", tensor_at(spec.like, specs_).name,
                   " has scales");
  }
  const bool is_gradient =
      spec.dtype == DtypeRule::kOutGradient || spec.dtype == DtypeRule::kGradient;
  if (is_gradient && is_f8(buffers_.q.dtype)) return check_f8_gradient(spec, view);
  if (is_gradient || spec.dtype == DtypeRule::kLike || spec.dtype == DtypeRule::kNewRow) {
    const TensorView& like = buffers_.*spec.like;
    if (!view.present() || view.dtype == like.dtype) return {};
    return invalid(where_, "dtype of ", spec.name, " (", to_string(view.dtype), ") must be ",
                   tensor_at(spec.like, specs_).name, "'s, ", to_string(like.dtype));
  }
  const DtypeList list = accepted(spec.dtype, buffers_.q.dtype);
  if (list.count == 0) return {};
  return expect_dtype(where_, {spec.name, view}, list.dtypes, list.count);
}

Status TensorRules::check_f8_gradient(const TensorSpec& spec, const TensorView& view) {
  if (!view.present() || params_ == nullptr) return {};
  const bool is_d_out = spec.dtype == DtypeRule::kOutGradient;
  const Dtype planned = is_d_out ? params_->dtype_d_out : params_->dtype_gradients;
  if (view.dtype == planned) return {};
  return invalid(where_, "dtype of ", spec.name, " (", to_string(view.dtype), ") must be ",
                 is_d_out ? "dtype_d_out, " : "dtype_gradients, ", to_string(planned));
}

Status TensorRules::check_like(const TensorSpec& spec, const TensorView& view) {
  const TensorView& like = buffers_.*spec.like;
  if (view.rank == like.rank && std::equal(like.shape, like.shape + like.rank, view.shape)) {
    return {};
  }
  return invalid(where_, spec.name, " ", to_string(view), " must have the shape of ",
                 tensor_at(spec.like, specs_).name, " ", to_string(like));
}

namespace {

bool names(const ShapeRule& rule, Extent extent) noexcept {
  for (const ShapeRule::Alternative& shape : rule.alternatives()) {
    for (std::int32_t i = 0; i < shape.rank; ++i) {
      if (shape.dims[i].extent == extent) return true;
    }
  }
  return false;
}

}  // namespace

const ShapeRule& TensorRules::rule_of(const TensorSpec& spec) const noexcept {
  if (!is_packed_ || spec.packed_shape.any()) return spec.shape;
  // Queries may be packed over keys in pages, which are not.
  const bool of_pages = buffers_.page_table.present() && names(spec.packed_shape, Extent::kTotalKv);
  return of_pages ? spec.shape : spec.packed_shape;
}

Status TensorRules::check_rank(const TensorSpec& spec, const NamedView& tensor) {
  const ShapeRule& rule = rule_of(spec);
  return expect_rank(where_, tensor, rule.alternatives()[0].rank, rule.text());
}

std::int64_t TensorRules::full(const ShapeRule::Dim& dim) noexcept {
  return dim.extent == Extent::kCount ? dim.plus : saturating_add(extents_[dim.extent], dim.plus);
}

Status TensorRules::check_shape(const TensorSpec& spec, const TensorView& view, ShapeMatch* match) {
  const ShapeRule& rule = rule_of(spec);
  if (rule.any()) return spec.like == nullptr ? Status() : check_like(spec, view);
  const std::size_t which = alternative_of(rule, view);
  const Alternative& shape = rule.alternatives()[which];
  if (view.rank != shape.rank) {
    return expect_rank(where_, {spec.name, view}, shape.rank, letters_of(rule, shape).c_str());
  }
  unsigned full_dims = 0;
  for (int i = 0; i < shape.rank; ++i) {
    const ShapeRule::Dim& dim = shape.dims[i];
    if (dim.may_be_one && view.shape[i] == 1) continue;
    const bool is_known = dim.extent == Extent::kCount || extents_[dim.extent] >= 0;
    if (!is_known) extents_[dim.extent] = std::max<std::int64_t>(view.shape[i] - dim.plus, 0);
    if (view.shape[i] != full(dim)) return refuse_shape(spec, view, rule, shape);
    full_dims |= 1u << i;
  }
  *match = {which == 1, static_cast<BroadcastDims>(full_dims)};
  return {};
}

Status TensorRules::refuse_shape(const TensorSpec& spec, const TensorView& view,
                                 const ShapeRule& rule, const Alternative& shape) {
  std::int64_t expected[kMaxRank] = {};
  bool broadcasts = false;
  for (int i = 0; i < shape.rank; ++i) {
    const ShapeRule::Dim& dim = shape.dims[i];
    const bool is_known = dim.extent == Extent::kCount || extents_[dim.extent] >= 0;
    expected[i] = is_known ? full(dim) : view.shape[i];
    broadcasts = broadcasts || dim.may_be_one;
  }
  return unexpected_shape(where_, {spec.name, view}, expected, shape.rank,
                          letters_of(rule, shape).c_str(), broadcasts);
}

}  // namespace regard
