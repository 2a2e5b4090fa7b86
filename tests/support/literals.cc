#include "tests/support/literals.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "conformance/problem.h"
#include "oracle/number.h"

namespace regard::test {

LiteralProblem::LiteralProblem(const Literal& literal, Dtype dtype) {
  AttentionRequest& r = request;
  r.q = add(literal.q, dtype);
  r.k = add(literal.k, dtype);
  r.v = add(literal.v, dtype);
  const std::int64_t *q = r.q.shape, *v = r.v.shape;
  const Dtype wide = dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  const auto output = [&](std::vector<std::int64_t> shape, Dtype type) {
    return add({{}, std::move(shape)}, type);
  };
  r.out = output({q[0], q[1], q[2], v[3]}, dtype);
  r.cu_seqlens_q = add(literal.starts_q, Dtype::kI32);
  r.cu_seqlens_kv = add(literal.starts_kv, Dtype::kI64);
  const bool packed = r.cu_seqlens_q.present();
  if (!literal.lse.empty()) {
    r.lse = packed ? output({q[1], q[2]}, wide) : output({q[0], q[1], q[2]}, wide);
  }
  r.options = literal.options;
  if (r.options.scores_kind != ScoresKind::kNone) {
    r.scores_out = output({q[0], q[1], q[2], r.k.shape[2]}, wide);
  }
  r.page_table = add(literal.pages, Dtype::kI32);
  r.cache_batch_idx = add(literal.entries, Dtype::kI32);
  r.k_new = add(literal.k_new, dtype);
  r.v_new = add(literal.v_new, dtype);
  r.cache_leftpad = add(literal.leftpad, Dtype::kI32);
  r.tree_mask = add(literal.tree, Dtype::kBool);
  r.attn_mask = add(literal.mask, Dtype::kBool);
  r.attn_bias = add(literal.bias, Dtype::kF32);
  r.alibi_slopes = add(literal.alibi, Dtype::kF32);
  r.sinks = add(literal.sinks, Dtype::kF32);
  r.segment_ids_q = add(literal.segments_q, Dtype::kI32);
  r.segment_ids_kv = add(literal.segments_kv, Dtype::kI32);
  r.seqlens_q = add(literal.lens_q, Dtype::kI32);
  r.seqlens_kv = add(literal.lens_kv, Dtype::kI32);
  r.diagonal_offsets = add(literal.offsets, Dtype::kI64);
  r.captured0 = add(literal.reals, Dtype::kF64);
  r.captured1 = add(literal.ints, Dtype::kI32);
  r.block_mask = add(literal.blocks, Dtype::kU8);
  r.descale_q = add(literal.descale_q, Dtype::kF32);
  r.descale_k = add(literal.descale_k, Dtype::kF32);
  r.descale_v = add(literal.descale_v, Dtype::kF32);
  r.diagonal_offset = literal.diagonal_offset;
  r.rng_seed = literal.seed;
  r.rng_offset = literal.rng_offset;
}

TensorView LiteralProblem::add(const Values& values, Dtype dtype) {
  TensorView view;
  view.dtype = dtype;
  if (values.shape.empty()) return view;
  std::int64_t stride = 1;
  view.rank = static_cast<std::int32_t>(values.shape.size());
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    view.shape[dim] = values.shape[static_cast<std::size_t>(dim)];
    view.strides[dim] = stride;
    stride *= std::max<std::int64_t>(view.shape[dim], 1);
  }
  memory_.push_back(std::make_unique<unsigned char[]>(static_cast<std::size_t>(stride) *
                                                      static_cast<std::size_t>(size_of(dtype))));
  view.data = memory_.back().get();
  std::size_t n = 0;
  conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
    // Outputs start as a number that no literal expects.
    oracle::encode(values.numbers.empty() ? -77.0 : values.numbers.at(n++), element, dtype);
  });
  return view;
}

std::string difference(const TensorView& actual, const std::vector<double>& expected,
                       double tolerance) {
  std::string text;
  std::size_t n = 0;
  conformance::for_each_element(actual, [&](const auto&, unsigned char* element) {
    const std::size_t at = n++;
    if (!text.empty()) return;
    const double value = oracle::decode(element, actual.dtype);
    const double wanted = at < expected.size() ? expected[at] : -88.0;
    const bool same = std::isnan(wanted)   ? std::isnan(value)
                      : std::isinf(wanted) ? value == wanted
                                           : std::fabs(value - wanted) <=
                                                 tolerance * std::max(1.0, std::fabs(wanted));
    if (!same) {
      text = "element " + std::to_string(at) + ": expected " + std::to_string(wanted) +
             ", actual " + std::to_string(value);
    }
  });
  if (text.empty() && n != expected.size()) {
    return std::to_string(n) + " elements, expected " + std::to_string(expected.size());
  }
  return text;
}

}  // namespace regard::test
