#include "conformance/layout.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace regard::conformance {
namespace {

constexpr std::uint64_t kLayoutStream = 0x6c61796f7574;
constexpr std::uint64_t kGradLayoutStream = 0x677261646c61;

std::int64_t rounded_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// The strides of one of q, k, v and out while they are being chosen.
class RowStrides {
 public:
  RowStrides(TensorView* view, std::int32_t align_log2, bool dense, Rng* rng)
      : view_(view),
        unit_(view->dtype == Dtype::kU4
                  ? std::int64_t{2} << align_log2
                  : std::max<std::int64_t>(1, (1 << align_log2) / size_of(view->dtype))),
        dense_(dense),
        rng_(rng) {}

  void choose(Layout layout, bool may_expand) {
    switch (layout) {
      case Layout::kBhsd: choose_bhsd(view_->shape[3]); break;
      case Layout::kBshd: choose_bshd(view_->shape[3]); break;
      case Layout::kStrided: choose_strided(); break;
    }
    view_->strides[3] = 1;
    if (may_expand && !dense_) expand(layout);
  }

 private:
  std::int64_t extent(int dim) const { return std::max<std::int64_t>(view_->shape[dim], 1); }
  std::int64_t padding() {
    const bool padded = rng_->chance(0.4);
    const std::int64_t units = rng_->between(1, 3);
    return padded && !dense_ ? units * unit_ : 0;
  }
  /// Strides of two outer dimensions over blocks of `inner` elements, either one outermost.
  void stack(int dim_a, int dim_b, std::int64_t inner) {
    if (rng_->chance(0.25) && !dense_) std::swap(dim_a, dim_b);
    view_->strides[dim_b] = rounded_up(inner, unit_) + padding();
    view_->strides[dim_a] = extent(dim_b) * view_->strides[dim_b] + padding();
  }
  void choose_bhsd(std::int64_t row) {
    view_->strides[2] = row;
    stack(0, 1, extent(2) * row);
  }
  void choose_bshd(std::int64_t row) {
    view_->strides[1] = row;
    std::int64_t inner = extent(1) * row;
    if (extent(1) == 1) inner += unit_;  // one head: only the padding tells it from BHSD
    stack(0, 2, inner);
  }
  void choose_strided() {
    const std::int64_t row = rounded_up(view_->shape[3] + 1, unit_) + padding();
    rng_->chance(0.5) ? choose_bhsd(row) : choose_bshd(row);
  }
  void expand(Layout layout) {
    if (rng_->chance(0.25) && layout != Layout::kBshd) view_->strides[1] = 0;
    if (rng_->chance(0.1)) view_->strides[0] = 0;
  }

  TensorView* view_;
  std::int64_t unit_;
  bool dense_;
  Rng* rng_;
};

TensorView shaped(Dtype dtype, std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
  TensorView view;
  view.dtype = dtype;
  view.rank = 4;
  const std::int64_t shape[] = {b, h, s, d};
  std::copy(shape, shape + 4, view.shape);
  return view;
}

bool can_pack(const AttentionParams& p) {
  const bool bshd =
      p.layout_q == Layout::kBshd && p.layout_k == Layout::kBshd && p.layout_v == Layout::kBshd;
  const MemoryExtents of = memory_extents(p);
  return bshd && p.dtype_q == p.dtype_k && p.dtype_q == p.dtype_v && of.rows_q == of.rows_kv &&
         of.rows_q > 1 && p.num_heads_kv > 0 && of.batch > 0 && of.batch == of.batch_kv &&
         !p.features.has(Feature::kAppendKv);
}

/// q, k and v as slices of one [B,S,Hq*Dqk + Hkv*Dqk + Hkv*Dv] block.
void pack_qkv(const AttentionParams& p, Arrangement* a) {
  a->packed_qkv = true;
  a->offset_k = p.num_heads_q * p.head_dim_qk;
  a->offset_v = a->offset_k + p.num_heads_kv * p.head_dim_qk;
  const std::int64_t width = a->offset_v + p.num_heads_kv * p.head_dim_v;
  for (TensorView* view : {&a->q, &a->k, &a->v}) {
    const std::int64_t strides[] = {memory_extents(p).rows_q * width, view->shape[3], width, 1};
    std::copy(strides, strides + 4, view->strides);
  }
}

}  // namespace

MemoryExtents memory_extents(const AttentionParams& p) {
  const bool packed = p.features.has(Feature::kPacked);
  MemoryExtents of{packed ? 1 : p.batch, packed ? p.total_q : p.seqlen_q, packed ? 1 : p.batch,
                   packed ? p.total_kv : p.seqlen_kv};
  if (p.features.has(Feature::kPaged)) {
    of.batch_kv = p.num_pages;
    of.rows_kv = p.page_size;
  }
  // A cache has entries that no sequence of the call has.
  if (p.features.has(Feature::kCacheBatchIdx)) of.batch_kv += 2;
  return of;
}

Arrangement arrange(const Case& c, bool dense) {
  const AttentionParams& p = c.params;
  const MemoryExtents of = memory_extents(p);
  Rng rng(c.data.seed, kLayoutStream);
  Arrangement a;
  a.q = shaped(p.dtype_q, of.batch, p.num_heads_q, of.rows_q, p.head_dim_qk);
  a.k = shaped(p.dtype_k, of.batch_kv, p.num_heads_kv, of.rows_kv, p.head_dim_qk);
  a.v = shaped(p.dtype_v, of.batch_kv, p.num_heads_kv, of.rows_kv, p.head_dim_v);
  a.out = shaped(p.dtype_out, of.batch, p.num_heads_q, of.rows_q, p.head_dim_v);
  RowStrides(&a.q, p.align_q_log2, dense, &rng).choose(p.layout_q, false);
  const bool appends = p.features.has(Feature::kAppendKv);  // then k and v are written, too
  RowStrides(&a.k, p.align_k_log2, dense, &rng).choose(p.layout_k, !appends);
  RowStrides(&a.v, p.align_v_log2, dense, &rng).choose(p.layout_v, !appends);
  RowStrides(&a.out, p.align_out_log2, dense, &rng).choose(p.layout_out, false);
  if (rng.chance(0.5) && !dense && can_pack(p)) pack_qkv(p, &a);
  return a;
}

GradArrangement arrange_gradients(const Case& c, bool dense) {
  const AttentionParams& p = c.params;
  const Arrangement of = arrange(c, true);
  Rng rng(c.data.seed, kGradLayoutStream);
  const auto like = [&](TensorView view, std::int32_t align_log2) {
    constexpr Layout kLayouts[] = {Layout::kBhsd, Layout::kBshd, Layout::kStrided};
    const Layout layout = rng.pick(kLayouts);
    RowStrides(&view, align_log2, dense, &rng).choose(dense ? Layout::kBhsd : layout, false);
    return view;
  };
  GradArrangement a;
  const auto of_type = [&](TensorView view, Dtype dtype, std::int32_t align_log2) {
    if (!is_f8(p.dtype_q)) return like(view, align_log2);
    view.dtype = dtype;
    return like(view,
                std::max(align_log2, std::countr_zero(static_cast<unsigned>(size_of(dtype)))));
  };
  a.d_out = of_type(of.out, p.dtype_d_out, p.align_out_log2);
  a.d_q = of_type(of.q, p.dtype_gradients, p.align_q_log2);
  a.d_k = of_type(of.k, p.dtype_gradients, p.align_k_log2);
  a.d_v = of_type(of.v, p.dtype_gradients, p.align_v_log2);
  return a;
}

TensorView arrange_loosely(TensorView view, Strides strides, Rng* rng) {
  int order[kMaxRank] = {0, 1, 2, 3};  // outermost first
  if (strides != Strides::kDense && rng->chance(0.3)) {
    for (int n = view.rank - 1; n > 0; --n) std::swap(order[n], order[rng->between(0, n)]);
  }
  std::int64_t stride = 1;
  if (strides != Strides::kDense && rng->chance(0.2)) stride = 2;
  for (int n = view.rank - 1; n >= 0; --n) {
    const int dim = order[n];
    const std::int64_t extent = std::max<std::int64_t>(view.shape[dim], 1);
    if (strides == Strides::kExpanded && rng->chance(0.1)) {
      view.strides[dim] = 0;
      continue;
    }
    view.strides[dim] = stride;
    stride *= extent;
    if (strides != Strides::kDense && rng->chance(0.3)) stride += rng->between(1, 3);
  }
  return view;
}

std::int64_t footprint(const TensorView& view) {
  std::int64_t last = 0;
  for (int dim = 0; dim < view.rank; ++dim) {
    if (view.shape[dim] == 0) return 0;
    last += (view.shape[dim] - 1) * view.strides[dim];
  }
  return last + 1;
}

Layout layout_of(const TensorView& view) {
  if (view.shape[2] <= 1 || view.strides[2] == view.shape[3]) return Layout::kBhsd;
  if (view.shape[1] <= 1 || view.strides[1] == view.shape[3]) return Layout::kBshd;
  return Layout::kStrided;
}

std::int32_t row_align_log2(const TensorView& view, std::int64_t offset_elements) {
  std::uint64_t bits = std::uint64_t{1} << kMaxAlignLog2;
  const auto add = [&](std::int64_t elements) {
    bits |= static_cast<std::uint64_t>(bytes_of(view.dtype, elements));
  };
  add(offset_elements);
  for (int dim = 0; dim < 3; ++dim) {
    if (view.shape[dim] > 1) add(view.strides[dim]);
  }
  return std::countr_zero(bits);
}

void normalize_layout(Case* c) {
  AttentionParams& p = c->params;
  // A class that memory cannot have (strided with one head) first becomes another one, then the
  // strides of that one decide the alignment.
  for (int round = 0; round < 2; ++round) {
    const Arrangement a = arrange(*c);
    p.layout_q = layout_of(a.q);
    p.layout_k = layout_of(a.k);
    p.layout_v = layout_of(a.v);
    p.layout_out = layout_of(a.out);
  }
  const Arrangement a = arrange(*c);
  p.align_q_log2 = std::min(p.align_q_log2, row_align_log2(a.q));
  p.align_k_log2 = std::min(p.align_k_log2, row_align_log2(a.k, a.offset_k));
  p.align_v_log2 = std::min(p.align_v_log2, row_align_log2(a.v, a.offset_v));
  p.align_out_log2 = std::min(p.align_out_log2, row_align_log2(a.out));
}

}  // namespace regard::conformance
