// A backend of your own: its record, its plan, its kernel, and the suite that it must pass before
// it can be selected. docs/adding_a_backend.md walks through this file.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#include "conformance/suite.h"
#include "regard/attention.h"

namespace {

// ---- The record ------------------------------------------------------------------------------

// What the backend can do. The selector reads this and nothing else: a feature that is not listed
// here never reaches execute().
regard::BackendInfo make_info() {
  using regard::Feature;
  regard::BackendInfo info;
  info.summary = "one row at a time, sums in double";
  info.determinism = regard::Determinism::kBatchInvariant;
  info.forward.offered = true;
  info.forward.dtypes = {{regard::Dtype::kF32, regard::Dtype::kF32, regard::Dtype::kF32, 1e-6}};
  info.forward.features = {Feature::kCausal,
                           Feature::kDiagonalBottomRight,
                           Feature::kAttnMask,
                           Feature::kLse,
                           Feature::kGqa,
                           Feature::kHeadDimsDiffer,
                           Feature::kSeqlenQGreaterKv,
                           Feature::kNonFiniteBehindMask};
  info.forward.head_dim_qk = info.forward.head_dim_v = {1, 256, 1};
  return info;
}

// ---- The kernel ------------------------------------------------------------------------------

// Mistakes that are easy to make, for the suite to find.
enum class Mistake { kNone, kDiagonalOffByOne, kMaskIgnored };

const float* row(const regard::TensorView& x, std::int64_t b, std::int64_t h, std::int64_t s) {
  return static_cast<const float*>(x.data) + b * x.strides[0] + h * x.strides[1] + s * x.strides[2];
}

bool mask_allows(const regard::TensorView& mask, const std::int64_t (&at)[4]) {
  if (!mask.present()) return true;
  std::int64_t offset = 0;
  for (int i = 0; i < 4; ++i) offset += mask.shape[i] == 1 ? 0 : at[i] * mask.strides[i];
  return static_cast<const std::uint8_t*>(mask.data)[offset] != 0;
}

struct Rows {
  const regard::AttentionParams& params;
  const regard::Buffers& buffers;
  Mistake mistake;
  std::int32_t workers;
  double* scratch;  // [workers][seqlen_kv]

  bool visible(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (params.window_right == 0) {  // causal
      const bool bottom_right = params.diagonal == regard::Diagonal::kBottomRight;
      const std::int64_t shift = bottom_right ? params.seqlen_kv - params.seqlen_q : 0;
      if (j > i + shift + (mistake == Mistake::kDiagonalOffByOne ? 1 : 0)) return false;
    }
    return mistake == Mistake::kMaskIgnored || mask_allows(buffers.attn_mask, {b, h, i, j});
  }

  static constexpr double kHidden = -1.0;  // no probability

  // Scores of visible keys go to `probs`, -inf for the others; returns the maximum.
  double score_row(std::int64_t b, std::int64_t h, std::int64_t i, double* probs) const {
    const std::int64_t h_kv = h / (params.num_heads_q / params.num_heads_kv);
    const float* q = row(buffers.q, b, h, i);
    double row_max = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < params.seqlen_kv; ++j) {
      probs[j] = -std::numeric_limits<double>::infinity();
      if (!visible(b, h, i, j)) continue;  // not read at all: it may hold NaN
      const float* k = row(buffers.k, b, h_kv, j);
      double dot = 0.0;
      for (std::int64_t d = 0; d < params.head_dim_qk; ++d) dot += double{q[d]} * double{k[d]};
      probs[j] = dot * params.softmax_scale;
      row_max = std::max(row_max, probs[j]);
    }
    return row_max;
  }

  void compute(std::int64_t b, std::int64_t h, std::int64_t i, double* probs) const {
    const double row_max = score_row(b, h, i, probs);
    const bool dead = std::isinf(row_max) && row_max < 0.0;
    double row_sum = 0.0;
    for (std::int64_t j = 0; j < params.seqlen_kv; ++j) {
      const bool hidden = std::isinf(probs[j]) && probs[j] < 0.0;
      probs[j] = hidden ? kHidden : std::exp(probs[j] - row_max);
      row_sum += hidden ? 0.0 : probs[j];
    }
    float* out = const_cast<float*>(row(buffers.out, b, h, i));
    const std::int64_t h_kv = h / (params.num_heads_q / params.num_heads_kv);
    for (std::int64_t d = 0; d < params.head_dim_v; ++d) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < params.seqlen_kv; ++j) {
        if (probs[j] == kHidden) continue;  // V may hold NaN there
        sum += probs[j] * double{row(buffers.v, b, h_kv, j)[d]};
      }
      out[d] = dead ? 0.0f : static_cast<float>(sum / row_sum);
    }
    if (buffers.lse.present()) {
      *const_cast<float*>(row(buffers.lse, b, h, i)) =
          static_cast<float>(dead ? row_max : row_max + std::log(row_sum));
    }
  }

  // Worker n takes rows n, n + workers, ...: which worker computes a row changes no bit of it.
  static void run(void* state, int worker) {
    const Rows& self = *static_cast<const Rows*>(state);
    const regard::AttentionParams& p = self.params;
    double* probs = self.scratch + worker * p.seqlen_kv;
    const std::int64_t rows = p.batch * p.num_heads_q * p.seqlen_q;
    for (std::int64_t r = worker; r < rows; r += self.workers) {
      const std::int64_t bh = r / p.seqlen_q;
      self.compute(bh / p.num_heads_q, bh % p.num_heads_q, r % p.seqlen_q, probs);
    }
  }
};

// ---- The backend -----------------------------------------------------------------------------

class RowBackend final : public regard::Backend {
 public:
  explicit RowBackend(Mistake mistake) : mistake_(mistake) {}

  const regard::BackendInfo& info() const override { return info_; }

  // Known before any plan, and equal to the plan's: selection compares it with policy limits.
  std::int64_t workspace_bytes(const regard::AttentionKey& key,
                               const regard::Env& env) const override {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    const std::int64_t count = workers(env);
    const std::int64_t keys = key.params().seqlen_kv;
    if (keys > (kMax / 8 - 64) / count) return kMax;  // saturates: "not representable"
    return (count * keys * 8 + 63) / 64 * 64;
  }

  // Rules from the key and the machine alone: no tensor, no environment, no policy.
  regard::Expected<regard::KernelPlan> plan(const regard::AttentionKey& key,
                                            const regard::Env& env) const override {
    regard::KernelPlan plan;
    plan.kernel = "rows_f32";
    plan.workers = workers(env);
    plan.tile_q = 1;
    plan.tile_kv = key.params().seqlen_kv;
    plan.workspace_bytes = workspace_bytes(key, env);
    return plan;
  }

  // Buffers and workspace were checked by the caller. Allocates nothing.
  regard::Status execute(const regard::KernelPlan& plan, const regard::AttentionParams& params,
                         const regard::Buffers& buffers,
                         const regard::Launch& launch) const override {
    Rows rows{params, buffers, mistake_, plan.workers, static_cast<double*>(launch.workspace.data)};
    launch.executor->run(plan.workers, Rows::run, &rows);
    return {};
  }

 private:
  static std::int32_t workers(const regard::Env& env) { return std::max(1, env.concurrency); }

  regard::BackendInfo info_ = make_info();
  Mistake mistake_;
};

// ---- Registering it --------------------------------------------------------------------------

int failures = 0;

void expect(bool condition, const char* what) {
  std::printf("%s  %s\n", condition ? "ok  " : "FAIL", what);
  failures += condition ? 0 : 1;
}

void expect_refused(regard::Context& context, Mistake mistake, const char* what) {
  const auto wrong = regard::register_backend(
      context, "mine", std::make_shared<RowBackend>(mistake), regard::conformance::small_suite());
  expect(!wrong.ok() && wrong.status().code() == regard::StatusCode::kConformanceFailed, what);
  std::printf("      %s\n", wrong.status().message().c_str());
}

}  // namespace

int main() {
  regard::Context context;

  // A wrong backend is refused with the case that shows it, and the context has not changed.
  const std::size_t before = context.backends().size();
  expect_refused(context, Mistake::kDiagonalOffByOne, "a diagonal off by one is refused");
  expect_refused(context, Mistake::kMaskIgnored, "an ignored mask is refused");
  expect(context.backends().size() == before, "a refused backend is not in the list");

  const auto mine =
      regard::register_backend(context, "mine", std::make_shared<RowBackend>(Mistake::kNone),
                               regard::conformance::small_suite());
  if (!mine) std::printf("      %s\n", mine.status().message().c_str());
  expect(mine.ok(), "the right one is registered");
  if (!mine) return 1;

  // It stands last in the order, so nothing changes until a policy names it.
  const auto problem = regard::parse_case("b1 hq4 hkv2 sq16 skv48 d64 f32 causal diag=br");
  expect(problem.ok(), "the case is understood");
  if (!problem) return 1;
  const regard::Selection ambient = regard::explain(context, problem->params);
  expect(ambient.ok() && ambient.chosen != *mine, "without a policy the built-in order decides");

  regard::Policy policy;
  policy.prefer = {{*mine}};
  const regard::Selection chosen = regard::explain(context, problem->params, policy);
  expect(chosen.chosen == *mine, "a policy that prefers custom:mine selects it");
  std::printf("\n%s\n", to_string(chosen).c_str());

  // A feature that it does not claim refuses it, with the change that would help.
  const auto softcapped = regard::parse_case("b1 hq4 hkv2 sq16 skv48 d64 f32 softcap=30");
  expect(softcapped.ok(), "the second case is understood");
  if (!softcapped) return 1;
  const regard::Selection other = regard::explain(context, softcapped->params, policy);
  const regard::Verdict* verdict = other.find(*mine);
  expect(verdict != nullptr && !verdict->usable && verdict->refusals.size() == 1,
         "softcap is not claimed");
  for (const regard::Refusal& refusal : verdict->refusals) {
    std::printf("      custom:mine %s\n", to_string(refusal).c_str());
  }
  return failures == 0 ? 0 : 1;
}
