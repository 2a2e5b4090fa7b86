#include "backends/math/row_reference.h"

#include <algorithm>
#include <cmath>

#include "backends/math/forward_layout.h"
#include "base/checked.h"
#include "base/scratch.h"
#include "cpu/append.h"
#include "cpu/functions/functions.h"
#include "cpu/kv_operand.h"
#include "cpu/simd/kernel_isa.h"
#include "cpu/threads/run_tasks.h"
#include "problem/make_problem.h"

namespace regard::math {
namespace {

using problem::Element;
using problem::Problem;
using problem::View;

constexpr std::int64_t kDouble = sizeof(double);

std::int64_t group_of(const AttentionParams& p) noexcept {
  return p.num_heads_kv > 0 ? p.num_heads_q / p.num_heads_kv : 1;
}

/// Where a check works in its workspace. The arithmetic of a kernel is f32 or f64.
struct CheckLayout {
  ForwardArgs args;
  std::int64_t region_rows = 0;                     // of the first query's first head on
  std::int64_t at_rows = 0, at_stats = 0;           // as the kernel writes them
  std::int64_t at_out = 0, at_max = 0, at_sum = 0;  // f64
  std::int64_t at_queries = 0, at_row = 0, at_scratch = 0;
  std::int64_t bytes = 0;

  CheckLayout(const AttentionParams& p, Isa isa) {
    const Kernel& kernel = kernel_of(p, isa);
    const std::int64_t scalar = kernel.scalar_bytes;
    region_rows = saturating_add(kernel.width, group_of(p));
    const std::int64_t outputs = saturating_mul(region_rows, p.head_dim_v);
    ScratchLayout layout;
    at_rows = layout.take(outputs, scalar);
    at_stats = layout.take(saturating_mul(region_rows, 2), scalar);
    at_out = layout.take(outputs, kDouble);
    at_max = layout.take(region_rows, kDouble);
    at_sum = layout.take(region_rows, kDouble);
    at_queries = layout.take(query_elements(p, kernel), size_of(p.dtype_q));
    at_row = layout.take(2 * std::max(p.head_dim_qk, p.head_dim_v), kDouble);
    at_scratch = layout.total();
    bytes = saturating_add(at_scratch, lay_out_forward(p, kernel, 1, &args));
  }

 private:
  /// Rotated or mixed copies of the block's queries, of all heads.
  static std::int64_t query_elements(const AttentionParams& p, const Kernel& kernel) noexcept {
    if (problem::rotated_queries_bytes(p) == 0) return 0;
    const std::int64_t queries = kernel.width / std::max<std::int64_t>(group_of(p), 1) + 2;
    return saturating_mul(queries, saturating_mul(p.num_heads_q, p.head_dim_qk));
  }
};

/// A view of the block's rows at `data`: row query * group + head, each of `size` numbers, from the
/// block's first query on.
View view_of_rows(void* data, Element type, std::int64_t size, std::int64_t first_row,
                  const Problem& p, std::int64_t head_kv) noexcept {
  View view;
  view.present = true;
  view.type = type;
  view.stride[1] = size;
  view.stride[2] = p.group_size * size;
  view.stride[3] = 1;
  const std::int64_t before = (head_kv * p.group_size + first_row) * size;
  view.data = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(data) -
                                      static_cast<std::uintptr_t>(before * element_bytes(type)));
  return view;
}

/// The problem of the call without outputs, its queries as the scores take them.
struct CheckedProblem {
  ForwardArgs& args;
  problem::Functions functions;
  std::int64_t rows = 0;  // of the (b, kv head)
  std::int64_t begin = 0, end = 0;

  CheckedProblem(const AttentionParams& params, const Buffers& buffers, const Kernel& kernel,
                 const RowSample& sample, CheckLayout& layout, char* memory)
      : args(layout.args) {
    Buffers inputs = buffers;
    inputs.lse = inputs.saved_stats = inputs.scores_out = inputs.out_amax = {};
    make_problem(params, inputs, &args.problem, &functions);
    Problem& p = args.problem;
    rows = sequence_rows(p.q.starts, p.seqlen_q, sample.b) * p.group_size;
    begin = std::min(sample.block * kernel.width, rows);
    end = std::min(begin + kernel.width, rows);
    if (begin == end) return;
    const cpu::QueryRange queries{sample.b, begin / p.group_size, (end - 1) / p.group_size + 1};
    cpu::rotate_queries(&p, queries, memory + layout.at_queries, memory + layout.at_row);
  }
};

/// Row j of K or V as numbers, without the operand's descale.
void load_key(const cpu::KvOperand& x, std::int64_t j, double* to) {
  load_row(x.type, row_of(x, j), 1, x.dim, to);
  if (x.scales.first == nullptr) return;
  const float* const scales = scale_at(x, j);
  for (std::int64_t d = 0; d < x.dim; ++d) {
    if (x.type == Element::kU4) {
      const float* const group = scales + 2 * (d / problem::kGroup);
      to[d] = to[d] * group[0] + group[1];
    } else if (x.scales.columns != 0) {
      to[d] *= scales[d / x.scales.columns];
    } else {
      to[d] *= *scales;
    }
  }
}

double norm_of(const double* row, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < n; ++d) sum += row[d] * row[d];
  return std::sqrt(sum);
}

class MathRows final : public RowReference {
 public:
  std::int64_t max_rows(const AttentionParams& params, Isa isa) const override {
    return kernel_of(params, isa).width;
  }

  std::int64_t workspace_bytes(const AttentionParams& params, Isa isa) const override {
    return CheckLayout(params, isa).bytes;
  }

  std::int64_t rows_of(const AttentionParams& params, const Buffers& buffers,
                       std::int64_t b) const override {
    const problem::RowStarts starts{static_cast<const char*>(buffers.cu_seqlens_q.data),
                                    buffers.cu_seqlens_q.dtype == Dtype::kI64};
    return problem::sequence_rows(starts, params.seqlen_q, b) * group_of(params);
  }

  ReferenceRows compute(const AttentionParams& params, const Buffers& buffers, Isa isa,
                        const RowSample& sample, const Workspace& workspace) const override {
    const Kernel& kernel = kernel_of(params, isa);
    CheckLayout layout(params, isa);
    char* const memory = static_cast<char*>(workspace.data);
    CheckedProblem checked(params, buffers, kernel, sample, layout, memory);
    if (checked.begin == checked.end) return {};
    ForwardArgs& args = layout.args;
    Problem& p = args.problem;
    const std::int64_t first = checked.begin / p.group_size * p.group_size;
    const Element type = kernel.scalar_bytes == kDouble ? Element::kF64 : Element::kF32;
    const auto rows_at = [&](std::int64_t at, std::int64_t size) {
      return view_of_rows(memory + at, type, size, first, p, sample.head_kv);
    };
    p.out = rows_at(layout.at_rows, p.head_dim_v);
    p.stats = rows_at(layout.at_stats, 2);
    args.functions = &cpu::function_kernel(cpu::kernel_isa(isa), kernel.scalar_bytes);
    // As sequences of equal lengths are divided: of a shorter one the blocks past its end are
    // empty.
    args.grid.rows_per_task = kernel.width;
    args.grid.blocks = ceil_div(checked.rows, kernel.width);
    args.grid.all_blocks = args.grid.blocks * p.batch;
    args.grid.whole = args.grid.all_blocks * p.num_heads_kv;
    const std::int64_t head = sample.b * p.num_heads_kv + sample.head_kv;
    const std::int64_t task = head * args.grid.blocks + args.grid.blocks - 1 - sample.block;
    kernel.forward(&args, task, memory + layout.at_scratch);
    return as_doubles(layout, type, checked, first, memory);
  }

  RowMagnitudes magnitudes(const AttentionParams& params, const Buffers& buffers, Isa isa,
                           const RowSample& sample, const Workspace& workspace) const override {
    const Kernel& kernel = kernel_of(params, isa);
    CheckLayout layout(params, isa);
    char* const memory = static_cast<char*>(workspace.data);
    CheckedProblem checked(params, buffers, kernel, sample, layout, memory);
    if (checked.begin == checked.end) return {};
    const Problem& p = layout.args.problem;
    const problem::Sequence s = problem::sequence_of(p, sample.b);
    const auto k = cpu::k_operand(p, sample.b, sample.head_kv);
    const auto v = cpu::v_operand(p, sample.b, sample.head_kv);
    double* const key = reinterpret_cast<double*>(memory + layout.at_row);
    double largest_k = 0.0, largest_q = 0.0;
    RowMagnitudes found;
    for (std::int64_t j = 0; j < s.band.len_kv; ++j) {
      load_key(k, j, key);
      for (std::int64_t d = 0; d < k.dim; ++d) key[d] *= cpu::channel_scale(p, sample.head_kv, d);
      const double norm = norm_of(key, k.dim);
      found.finite = found.finite && std::isfinite(norm);
      if (std::isfinite(norm)) largest_k = std::max(largest_k, norm);
      load_key(v, j, key);
      for (std::int64_t d = 0; d < v.dim; ++d) {
        found.finite = found.finite && std::isfinite(key[d]);
        if (std::isfinite(key[d])) found.value = std::max(found.value, std::abs(key[d]));
      }
    }
    for (std::int64_t r = checked.begin; r < checked.end; ++r) {
      const std::int64_t h = sample.head_kv * p.group_size + r % p.group_size;
      load_row(p.q.type, row_address(p.q, sample.b, h, r / p.group_size), 1, p.head_dim_qk, key);
      for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
        key[d] *= cpu::row_scale(p, p.scales_q, {sample.b, h, r / p.group_size}, d);
      }
      const double norm = norm_of(key, p.head_dim_qk);
      found.finite = found.finite && std::isfinite(norm);
      if (std::isfinite(norm)) largest_q = std::max(largest_q, norm);
    }
    const double descale = descale_of(p.descale_q, sample.b, sample.head_kv) * k.descale;
    found.score = largest_q * largest_k * std::abs(p.softmax_scale * descale);
    found.finite = found.finite && largest_q * largest_k < 1e38;
    if (p.softcap > 0.0) found.score = std::min(found.score, p.softcap);
    found.value *= std::abs(v.descale);
    return found;
  }

 private:
  static ReferenceRows as_doubles(const CheckLayout& layout, Element type,
                                  const CheckedProblem& checked, std::int64_t first, char* memory) {
    const Problem& p = checked.args.problem;
    double* const out = reinterpret_cast<double*>(memory + layout.at_out);
    double* const max = reinterpret_cast<double*>(memory + layout.at_max);
    double* const sum = reinterpret_cast<double*>(memory + layout.at_sum);
    const std::int64_t count = checked.end - checked.begin, skipped = checked.begin - first;
    const auto number = [&](std::int64_t at, std::int64_t index) {
      return memory + at + index * element_bytes(type);
    };
    load_row(type, number(layout.at_rows, skipped * p.head_dim_v), 1, count * p.head_dim_v, out);
    load_row(type, number(layout.at_stats, 2 * skipped), 2, count, max);
    load_row(type, number(layout.at_stats, 2 * skipped + 1), 2, count, sum);
    return {checked.begin, count, out, max, sum};
  }
};

}  // namespace

const RowReference& row_reference() {
  static const MathRows instance;
  return instance;
}

}  // namespace regard::math
