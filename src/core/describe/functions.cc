#include "core/describe/functions.h"

#include <cstdint>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/checked_call.h"
#include "core/describe/view_checks.h"
#include "function/program.h"
#include "problem/function_intervals.h"
#include "problem/make_problem.h"
#include "regard/tensors.h"

namespace regard {
namespace {

using problem::Interval;
using semantics::FunctionOp;
using semantics::FunctionProgram;
using semantics::FunctionStep;

/// One of the functions, and what messages call it.
struct Named {
  const char* name;
  const Expression& function;
};

Status check_function(const Named& f, bool is_mask, const char* where) {
  if (f.function.empty()) return {};
  if (Status s = f.function.status(); !s.ok()) {
    return invalid(where, f.name, ": ", s.message());
  }
  const std::string& text = f.function.text();
  const bool is_bool = f.function.type() == ValueType::kBool;
  if (is_bool != is_mask) {
    return invalid(where, f.name, " (", text, ") must be a ", is_mask ? "bool" : "number", ", not ",
                   to_string(f.function.type()));
  }
  if (is_mask && function::uses_of(f.function).score) {
    return invalid(where, f.name, " (", text, ") must not read score: a mask is of places alone");
  }
  if (function::is_too_large(f.function)) {
    return invalid(where, f.name, " (", text, ") must need at most ", semantics::kMaxFunctionSteps,
                   " steps, its derivatives included");
  }
  return {};
}

TensorView Buffers::*const kCaptured[kMaxCaptured] = {
    &Buffers::captured0, &Buffers::captured1, &Buffers::captured2, &Buffers::captured3,
    &Buffers::captured4, &Buffers::captured5, &Buffers::captured6, &Buffers::captured7};

bool is_real(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF64 || dtype == Dtype::kBf16 ||
         dtype == Dtype::kF16;
}
bool is_integer(Dtype dtype) {
  return dtype == Dtype::kI32 || dtype == Dtype::kI64 || dtype == Dtype::kBool ||
         dtype == Dtype::kU8;
}

/// What of a call its functions' values depend on, one sequence at a time.
problem::FunctionBox box_of(const problem::Problem& p, std::int64_t b) {
  const problem::Sequence s = problem::sequence_of(p, b);
  const auto range = [](std::int64_t lo, std::int64_t hi) {
    return Interval{static_cast<double>(lo), static_cast<double>(hi)};
  };
  const std::int64_t shift = s.band.shift;
  problem::FunctionBox box;
  box.b = range(b, b);
  box.h = range(0, p.num_heads_q - 1);
  box.q = range(0, s.len_q - 1);
  box.kv = range(0, s.band.len_kv - 1);
  box.position = range(shift, saturating_add(shift, s.len_q - 1));
  box.len_q = range(s.len_q, s.len_q);
  box.len_kv = range(s.band.len_kv, s.band.len_kv);
  return box;
}

/// A gather whose index may lie outside its tensor.
struct BadIndex {
  int slot = -1;  // none
  int dimension = 0;
  Interval index{};
};

BadIndex first_bad_index(const FunctionProgram& program, const problem::Problem& p,
                         std::int64_t b) {
  constexpr std::int64_t kAllElements = std::int64_t{1} << 40;
  Interval bounds[semantics::kMaxFunctionSteps];
  const problem::CapturedView* const captured = p.functions->captured;
  problem::bound_steps(program, captured, box_of(p, b), kAllElements, bounds);
  for (std::int32_t i = 0; i < program.count; ++i) {
    const FunctionStep& step = program.steps[i];
    if (step.op != FunctionOp::kGather) continue;
    for (int a = 0; a < step.count; ++a) {
      const Interval& index = bounds[step.args[a]];
      const auto extent = static_cast<double>(captured[step.slot].extent[a]);
      if (!(index.lo >= 0.0 && index.hi < extent)) return {step.slot, a, index};
    }
  }
  return {};
}

bool has_gathers(const FunctionProgram& program) {
  for (std::int32_t i = 0; i < program.count; ++i) {
    if (program.steps[i].op == FunctionOp::kGather) return true;
  }
  return false;
}

Status check_indices(const Named& f, const problem::Problem& p, const char* where) {
  const FunctionProgram& program = function::programs_of(f.function).value.view;
  if (!has_gathers(program) || p.num_heads_q == 0) return {};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    if (s.len_q == 0 || s.band.len_kv == 0) continue;
    const BadIndex bad = first_bad_index(program, p, b);
    if (bad.slot < 0) continue;
    return invalid(where, f.name, " (", f.function.text(), "): index ", bad.dimension,
                   " of captured", bad.slot, " may be ", bad.index.lo, " to ", bad.index.hi,
                   " in sequence ", b, ", expected 0 to ",
                   p.functions->captured[bad.slot].extent[bad.dimension] - 1,
                   "; min(max(index,0),n-1) holds it there");
  }
  return {};
}

/// Kernels hold integers in 32 bits.
Status check_integers(const TensorView& view, int slot, const char* where) {
  std::int64_t extent[4] = {1, 1, 1, 1}, stride[4] = {};
  for (int i = 0; i < view.rank; ++i) {
    extent[4 - view.rank + i] = view.shape[i];
    stride[4 - view.rank + i] = view.strides[i];
  }
  for (std::int64_t row = 0; row < extent[0] * extent[1] * extent[2]; ++row) {
    const std::int64_t a = row / (extent[1] * extent[2]), b = row / extent[2] % extent[1],
                       c = row % extent[2];
    const std::int64_t at = a * stride[0] + b * stride[1] + c * stride[2];
    for (std::int64_t d = 0; d < extent[3]; ++d) {
      const std::int64_t value = read_integer(view, at + d * stride[3]);
      if (value == static_cast<std::int32_t>(value)) continue;
      return invalid(where, "captured", slot, " holds ", value, ", expected within 32 bits");
    }
  }
  return {};
}

}  // namespace

function::Uses uses_of_functions(const AttentionParams& params) noexcept {
  return function::uses_of(params.score_function) | function::uses_of(params.mask_function);
}

Status check_functions(const AttentionParams& params, const char* where) {
  const Named score{"score_function", params.score_function};
  const Named mask{"mask_function", params.mask_function};
  if (Status s = check_function(score, false, where); !s.ok()) return s;
  if (Status s = check_function(mask, true, where); !s.ok()) return s;
  if (params.features.has(Feature::kScoreCallback) && params.dtype_q == Dtype::kF64) {
    return invalid(where,
                   "score_callback (given) must be left out where q is f64: it is given f32");
  }
  const function::Uses uses = uses_of_functions(params);
  for (int i = 0; i < kMaxCaptured; ++i) {
    if (!uses.of_slot[i].conflicts) continue;
    return invalid(where, "captured", i, " must be read with one number of indices, and as r", i,
                   " or i", i, " alone, in ", params.score_function.text(),
                   params.mask_function.empty() ? "" : " and ", params.mask_function.text());
  }
  return {};
}

Status check_captured(const Buffers& buffers, const AttentionParams& params, const char* where) {
  const function::Uses uses = uses_of_functions(params);
  for (int i = 0; i < kMaxCaptured; ++i) {
    const function::CapturedUse& use = uses.of_slot[i];
    const TensorView& view = buffers.*kCaptured[i];
    if (view.present() != (use.rank != 0)) {
      return invalid(
          where, "captured", i, " (", view.present() ? "given" : "absent", ") must be ",
          view.present() ? "left out: no function reads it" : "given: a function reads it");
    }
    if (use.rank == 0) continue;
    if (view.rank != use.rank) {
      return invalid(where, "rank of captured", i, " (", view.rank, ") must be ", use.rank,
                     ", the indices that a function gives");
    }
    if (use.is_int ? is_integer(view.dtype) : is_real(view.dtype)) continue;
    return invalid(where, "dtype of captured", i, " (", to_string(view.dtype), ") must be ",
                   use.is_int ? "i32, i64, bool or u8" : "f32, f64, bf16 or f16", " where ",
                   use.is_int ? "i" : "r", i, " is read");
  }
  return {};
}

Status check_block_mask(const Buffers& buffers, const AttentionParams& params, const char* where) {
  const TensorView& mask = buffers.block_mask;
  struct Side {
    const char* name;
    std::int64_t size, extent, blocks;
  };
  const Side sides[] = {{"block_size_q", params.block_size_q, params.seqlen_q, mask.shape[2]},
                        {"block_size_kv", params.block_size_kv, params.seqlen_kv, mask.shape[3]}};
  for (const Side& side : sides) {
    if (!mask.present()) {
      if (side.size == 0) continue;
      return invalid(where, side.name, " (", side.size, ") must be 0 without block_mask");
    }
    if (params.mask_function.empty()) {
      return invalid(where, "mask_function (absent) must be given with block_mask, which says ",
                     "where it is known");
    }
    if (side.size >= 1 && side.blocks == ceil_div(side.extent, side.size)) continue;
    return invalid(where, side.name, " (", side.size, ") must be at least 1 and divide ",
                   side.extent, " into the ", side.blocks, " blocks of block_mask, rounded up");
  }
  return {};
}

Status check_captured_data(const Buffers& buffers, const AttentionParams& params,
                           const char* where) {
  if (!params.features.has(Feature::kCaptured)) return {};
  for (int i = 0; i < kMaxCaptured; ++i) {
    const TensorView& view = buffers.*kCaptured[i];
    if (!view.present()) continue;
    if (!is_readable(view)) return {};
    if (view.dtype != Dtype::kI64) continue;
    if (Status s = check_integers(view, i, where); !s.ok()) return s;
  }
  problem::Problem p;
  problem::Functions functions;
  problem::make_problem(params, buffers, &p, &functions);
  if (Status s = check_indices({"score_function", params.score_function}, p, where); !s.ok()) {
    return s;
  }
  return check_indices({"mask_function", params.mask_function}, p, where);
}

Status check_blocks(const TensorView& blocks, const char* where) {
  if (!is_readable(blocks)) return {};
  const std::int64_t* const n = blocks.shape;
  for (std::int64_t x = 0; x < n[0] * n[1] * n[2] * n[3]; ++x) {
    const std::int64_t j = x % n[3], i = x / n[3] % n[2], h = x / n[3] / n[2] % n[1],
                       b = x / n[3] / n[2] / n[1];
    const std::int64_t* const stride = blocks.strides;
    const std::int64_t at = b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3];
    const std::int64_t value = read_integer(blocks, at);
    if (value <= 2) continue;
    return invalid(where, "block_mask[", b, ",", h, ",", i, ",", j, "] (", value,
                   "), expected 0, 1 or 2");
  }
  return {};
}

}  // namespace regard
