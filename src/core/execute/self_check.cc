#include "core/execute/self_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/float_environment.h"
#include "base/hash.h"
#include "base/message.h"
#include "core/execute/write_call.h"
#include "core/text/thrown_by.h"
#include "problem/element.h"
#include "problem/problem.h"

namespace regard {
namespace {

constexpr int kSamples = 4;     // blocks of rows of one check
constexpr double kMargin = 4;   // stated errors are those of whole tensors, and measured
constexpr double kScores = 16;  // for which they are stated

/// Blocks of a check, drawn from the number of checks before it: over sequences, heads and rows.
class Draw {
 public:
  Draw(const RowReference& reference, const AttentionParams& params, const Buffers& buffers,
       Isa isa, std::uint64_t seed)
      : reference_(reference), params_(params), buffers_(buffers), isa_(isa), seed_(seed) {}

  /// False where the sequence that was drawn has no rows.
  bool sample(int n, RowSample* drawn) const {
    if (params_.batch <= 0 || params_.num_heads_kv <= 0) return false;
    Hasher hasher;
    hasher.add(seed_);
    hasher.add(static_cast<std::uint64_t>(n));
    const auto below = [&](std::int64_t limit) {
      hasher.add(1);
      return static_cast<std::int64_t>(hasher.value() % static_cast<std::uint64_t>(limit));
    };
    drawn->b = below(params_.batch);
    drawn->head_kv = below(params_.num_heads_kv);
    const std::int64_t rows = reference_.rows_of(params_, buffers_, drawn->b);
    if (rows <= 0) return false;
    const std::int64_t size = reference_.max_rows(params_, isa_);
    drawn->block = below((rows + size - 1) / size);
    return true;
  }

 private:
  const RowReference& reference_;
  const AttentionParams& params_;
  const Buffers& buffers_;
  Isa isa_;
  std::uint64_t seed_;
};

/// One number against its reference; the largest share of the tolerance decides.
struct Worst {
  double share = 0.0, error = 0.0, tolerance = 0.0;
  const char* output = "";
  std::int64_t row = 0;  // of the (b, kv head)

  void add(const char* name, std::int64_t at, double actual, double expected, double allowed) {
    // Not finite where the reference is not: inputs were not, and nothing is stated.
    if (std::isnan(expected) || actual == expected) return;
    if (std::isinf(expected) && expected > 0) return;
    const double difference = std::abs(actual - expected);
    const double part = std::isfinite(difference) ? (difference == 0 ? 0 : difference / allowed)
                                                  : std::numeric_limits<double>::infinity();
    if (!(part > share)) return;
    *this = {part, difference, allowed, name, at};
  }
};

/// Reads outputs of one (b, kv head).
class OutputRows {
 public:
  OutputRows(const AttentionParams& params, const Buffers& buffers, const RowSample& sample)
      : params_(params),
        buffers_(buffers),
        sample_(sample),
        group_(params.num_heads_q / params.num_heads_kv) {
    const problem::RowStarts starts{static_cast<const char*>(buffers.cu_seqlens_q.data),
                                    buffers.cu_seqlens_q.dtype == Dtype::kI64};
    if (starts.data == nullptr) return;
    packed_ = true;
    first_row_ = problem::row_start(starts, sample.b);
  }

  /// `row` of out as numbers.
  void out(std::int64_t row, double* to) const {
    const TensorView& t = buffers_.out;
    const std::int64_t b = packed_ ? 0 : sample_.b;
    const std::int64_t at = b * t.strides[0] + head(row) * t.strides[1] + query(row) * t.strides[2];
    problem::load_row(element(t), address(t, at), t.strides[3], params_.head_dim_v, to);
  }
  double lse(std::int64_t row) const { return number(buffers_.lse, row, 0); }
  /// max + log(sum) of saved_stats.
  double stats(std::int64_t row) const {
    const double sum = number(buffers_.saved_stats, row, 1);
    return sum > 0 ? number(buffers_.saved_stats, row, 0) + std::log(sum)
                   : -std::numeric_limits<double>::infinity();
  }
  std::int64_t head(std::int64_t row) const { return sample_.head_kv * group_ + row % group_; }

 private:
  static problem::Element element(const TensorView& t) {
    return static_cast<problem::Element>(t.dtype);
  }
  static const char* address(const TensorView& t, std::int64_t at) {
    return static_cast<const char*>(t.data) + at * size_of(t.dtype);
  }
  std::int64_t query(std::int64_t row) const { return first_row_ + row / group_; }
  // [B,Hq,Sq], [B,Hq,Sq,2], packed [Hq,total_q] and [1,Hq,total_q,2].
  double number(const TensorView& t, std::int64_t row, std::int64_t index) const {
    const int first = t.rank == 2 ? 0 : 1;
    std::int64_t at = head(row) * t.strides[first] + query(row) * t.strides[first + 1];
    if (!packed_) at += sample_.b * t.strides[0];
    if (t.rank == 4) at += index * t.strides[3];
    double value = 0.0;
    problem::load_row(element(t), address(t, at), 1, 1, &value);
    return value;
  }

  const AttentionParams& params_;
  const Buffers& buffers_;
  const RowSample& sample_;
  std::int64_t group_;
  bool packed_ = false;
  std::int64_t first_row_ = 0;
};

/// From here on numbers may become infinite, or the largest, in the type of an output.
double overflow_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16: return 65000.0;
    case Dtype::kF8E4M3: return 432.0;
    case Dtype::kF8E5M2: return 53000.0;
    case Dtype::kF64: return std::numeric_limits<double>::infinity();
    default: return 3.38e38;
  }
}

/// The smallest number above 0 of an output's type.
double smallest_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return std::numeric_limits<double>::denorm_min();
    case Dtype::kBf16: return 0x1p-133;
    case Dtype::kF16: return 0x1p-24;
    case Dtype::kF8E4M3: return 0x1p-9;
    case Dtype::kF8E5M2: return 0x1p-16;
    default: return std::numeric_limits<float>::denorm_min();
  }
}

/// The end of a check's workspace: a row of an output as numbers.
double* row_of(const Workspace& workspace, std::int64_t bytes, std::int64_t dim) {
  return reinterpret_cast<double*>(static_cast<char*>(workspace.data) + bytes -
                                   self_check_row_bytes(dim));
}

/// One check of one call.
class Check {
 public:
  Check(const PlanImpl& plan, const AttentionParams& params, const Buffers& buffers,
        const SelfChecks::Turn& turn)
      : plan_(plan), params_(params), buffers_(buffers), turn_(turn) {}

  /// The worst number of all samples; counts the check.
  Worst run(RowSample* at) {
    const RowReference& reference = *plan_.check.checks->reference();
    const Draw draw(reference, params_, buffers_, plan_.check.isa, turn_.index());
    Worst worst;
    std::int64_t rows = 0;
    for (int n = 0; n < kSamples; ++n) {
      RowSample sample;
      if (!draw.sample(n, &sample)) continue;
      const Worst found = compare(reference, sample, &rows);
      if (!(found.share > worst.share)) continue;
      worst = found;
      *at = sample;
    }
    plan_.check.checks->count_checked(rows, worst.share);
    return worst;
  }

 private:
  Worst compare(const RowReference& reference, const RowSample& sample, std::int64_t* rows) {
    const ReferenceRows expected =
        reference.compute(params_, buffers_, plan_.check.isa, sample, turn_.workspace());
    *rows += expected.count;
    const Worst quick = compare_with(expected, sample, {});
    if (quick.share <= 1.0) return quick;
    // Large scores, values that cancel, and inputs that are not finite excuse more; looking at all
    // keys costs more, too.
    const RowMagnitudes sizes =
        reference.magnitudes(params_, buffers_, plan_.check.isa, sample, turn_.workspace());
    return compare_with(expected, sample, sizes);
  }

  /// The tolerance of a row: the stated errors times a margin, times the largest element. Scores
  /// beyond 16 have errors in their proportion; of values that cancel, those of independent errors
  /// of each probability p remain, |v| * sqrt(sum of p^2), which the largest p bounds.
  Worst compare_with(const ReferenceRows& expected, const RowSample& sample,
                     const RowMagnitudes& sizes) const {
    const std::int64_t dim = params_.head_dim_v;
    double* const row = row_of(turn_.workspace(), plan_.check.bytes, dim);
    const OutputRows actual(params_, buffers_, sample);
    const double limit = overflow_of(params_.dtype_out), smallest = smallest_of(params_.dtype_out);
    Worst worst;
    const auto add = [&](const char* name, std::int64_t at, double found, double stated,
                         double allowed) {
      if (sizes.finite || std::isfinite(found)) worst.add(name, at, found, stated, allowed);
    };
    for (std::int64_t x = 0; x < expected.count; ++x) {
      const std::int64_t r = expected.begin + x;
      const double* const out = expected.out + x * dim;
      double largest = 0.0;
      for (std::int64_t d = 0; d < dim; ++d) {
        if (std::isfinite(out[d])) largest = std::max(largest, std::abs(out[d]));
      }
      const double sum = expected.sum[x];
      const double p = sum > 0 ? std::min(1.0, 1.0 / sum) : 0.0;
      const double score =
          std::max(sizes.score, sizes.score > 0 && sum > 0 ? std::abs(expected.max[x]) : 0.0);
      const double bound = kMargin * plan_.check.bound * std::max(1.0, score / kScores);
      const double allowed = bound * std::max(largest, sizes.value * std::sqrt(p)) + smallest;
      actual.out(r, row);
      for (std::int64_t d = 0; d < dim; ++d) {
        if (std::abs(out[d]) < limit) add("out", r, row[d], out[d], allowed);
      }
      const double lse =
          sum > 0 ? expected.max[x] + std::log(sum) : -std::numeric_limits<double>::infinity();
      const double allowed_lse = bound * std::max(1.0, std::isfinite(lse) ? std::abs(lse) : 0.0);
      if (buffers_.lse.present()) add("lse", r, actual.lse(r), lse, allowed_lse);
      if (buffers_.saved_stats.present()) {
        add("saved_stats", r, actual.stats(r), lse, allowed_lse);
      }
    }
    return worst;
  }

  const PlanImpl& plan_;
  const AttentionParams& params_;
  const Buffers& buffers_;
  const SelfChecks::Turn& turn_;
};

Status denied_status(const PlanImpl& plan, const char* where, const std::string& text) {
  return failure(StatusCode::kRefusedAtPlan, where, to_string(plan.entry.ref),
                 " failed a self-check and may not run any more: ", text,
                 "; outputs hold no result, make a new plan");
}

Status report(const PlanImpl& plan, const AttentionParams& params, const Buffers& buffers,
              const RowSample& sample, const Worst& worst) {
  const Policy& policy = plan.policy->policy;
  SelfCheckViolation found;
  found.params = params;
  found.backend = plan.entry.ref;
  found.kernel = plan.kernel.kernel;
  found.output = worst.output;
  const std::int64_t group = params.num_heads_q / params.num_heads_kv;
  found.batch = sample.b;
  found.head = sample.head_kv * group + worst.row % group;
  found.row = worst.row / group;
  found.error = worst.error;
  found.tolerance = worst.tolerance;
  found.denied = policy.self_check_deny.value_or(false);
  SelfChecks& checks = *plan.check.checks;
  const std::string brief =
      concat("an error of ", number_text(worst.error), " in ", worst.output, ", the tolerance is ",
             number_text(worst.tolerance), ", case ", to_string(params));
  if (checks.violations().size() < SelfChecks::kMaxViolations) {
    const WrittenCall written =
        write_call(plan, params, buffers, policy.self_check_dir.value_or(""));
    found.file = written.file;
    found.not_written = written.not_written;
    found.command = written.command;
  } else {
    found.not_written = concat(SelfChecks::kMaxViolations, " files were written before it");
  }
  checks.add(found);
  if (found.denied) checks.deny(plan.entry.ref, brief);
  plan.tracer->warn(found.to_string());
  return found.denied ? denied_status(plan, "self_check", brief) : Status();
}

}  // namespace

Status self_check(const PlanImpl& plan, const AttentionParams& params, const Buffers& buffers) {
  const PlannedCheck& check = plan.check;
  if (check.every == 0 || check.checks == nullptr) return {};
  if (!check.checks->count_call(check.every)) return {};
  if (!check.refusal.empty()) {
    if (check.checks->count_not_checked(check.refusal)) {
      plan.tracer->warn("self-check: calls of " + to_string(plan.entry.ref) +
                        " are not checked: " + check.refusal);
    }
    return {};
  }
  const SelfChecks::Turn turn(*check.checks, check.bytes);
  if (!turn.taken()) return {};
  const DefaultFloatEnvironment environment;
  RowSample sample;
  const Worst worst = Check(plan, params, buffers, turn).run(&sample);
  if (!(worst.share > 1.0)) return {};
  return report(plan, params, buffers, sample, worst);
}

Status check_not_denied(const PlanImpl& plan, const char* where) {
  const PlannedCheck& check = plan.check;
  if (check.checks == nullptr || check.checks->denials() == 0) return {};
  if (!plan.policy->policy.self_check_deny.value_or(false)) return {};
  const std::string text = check.checks->denial_of(plan.entry.ref);
  return text.empty() ? Status() : denied_status(plan, where, text);
}

}  // namespace regard
