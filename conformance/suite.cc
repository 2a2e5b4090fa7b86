#include "conformance/suite.h"

#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "conformance/layout.h"
#include "conformance/run.h"

namespace regard::conformance {
namespace {

// Every feature alone and in company, every dtype, odd sizes, dead rows, empty sizes.
constexpr const char* kCases[] = {
    "b1 hq1 sq1 skv1 d1 f32 seed=1",
    "b2 hq3 sq65 skv65 d64 f32 seed=2",
    "b1 hq2 sq3 skv257 d16 f32 lse seed=3",
    "b2 hq2 sq63 skv127 d63 dv65 f32 lse seed=4",
    "b2 hq8 hkv2 sq17 skv65 d32 f32 lse layout=bshd seed=5",
    "b2 hq4 hkv1 sq65 skv65 d8 bf16 lse layout=strided seed=6",
    "b2 hq2 sq65 skv63 d128 f16 lse layout=bshd seed=7",
    "b1 hq3 sq33 skv31 d5 f64 lse seed=8",
    "b2 hq2 sq65 skv65 d32 f32 causal lse seed=9",
    "b2 hq2 sq65 skv127 d32 bf16 causal diag=br lse seed=10",
    "b2 hq2 sq127 skv63 d16 f32 causal diag=br lse poison seed=11",
    "b1 hq2 sq65 skv65 d32 f16 causal diag=tl window=7,0 lse poison seed=12",
    "b2 hq2 sq63 skv65 d32 f32 diag=-5 window=3,9 lse seed=13",
    "b3 hq2 sq33 skv65 d32 f32 causal diag=seq lse poison seed=14",
    "b1 hq2 sq65 skv127 d8 f32 diag=br window=-1,4 seed=15",
    "b2 hq2 sq65 skv127 d32 f32 mask lse poison seed=16",
    "b2 hq3 sq33 skv65 d16 bf16 mask=B,1,1,Skv lse poison seed=17",
    "b2 hq2 sq65 skv65 d16 f32 mask=1,1,Sq,Skv bias=1,H,Sq,Skv causal lse seed=18",
    "b2 hq2 sq65 skv127 d32 f32 bias lse poison seed=19",
    "b2 hq2 sq33 skv65 d16 f16 bias=1,H,1,Skv bias_dtype=f16 lse seed=20",
    "b2 hq2 sq17 skv65 d16 f32 bias=B,1,Sq,1 data=finfo_min lse seed=21",
    "b2 hq4 sq33 skv65 d32 f32 alibi diag=br lse seed=22",
    "b2 hq8 hkv4 sq65 skv65 d16 bf16 alibi causal diag=tl lse seed=23",
    "b2 hq2 sq33 skv65 d32 f32 softcap=5 lse seed=24",
    "b2 hq2 sq33 skv65 d32 f16 softcap=30 bias alibi diag=tl lse data=large seed=25",
    "b2 hq4 hkv2 sq33 skv65 d32 f32 sinks lse seed=26",
    "b2 hq4 sq33 skv31 d32 bf16 sinks causal diag=br mask lse seed=27",
    "b6 hq2 sq33 skv65 d16 f32 lens lse poison seed=28",
    "b6 hq2 sq65 skv65 d16 bf16 lens causal diag=br lse poison seed=29",
    "b3 hq2 sq65 skv127 d32 f32 lens_kv=127,1,0 lse poison seed=30",
    "b3 hq2 sq65 skv127 d32 f16 lens_q=65,1,0 sinks lse seed=31",
    "b2 hq2 sq65 skv65 d16 f32 segments lse poison seed=32",
    "b2 hq4 hkv2 sq65 skv33 d16 bf16 segments causal diag=tl lse seed=33",
    "b2 hq2 sq33 skv65 d16 f32 dropout=0.25 lse seed=34",
    "b2 hq4 hkv2 sq65 skv65 d32 f16 dropout=0.5 causal lse seed=35",
    "b2 hq2 sq33 skv65 d16 f32 scale=-0.25 lse seed=36",
    "b1 hq2 sq33 skv65 d16 f32 scale=0 lse seed=37",
    "b1 hq2 sq33 skv65 d16 f32 data=large lse seed=38",
    "b1 hq6 hkv3 sq33 skv65 d64 bf16 data=outlier lse seed=39",
    "b1 hq2 sq33 skv65 d64 f16 data=constant lse seed=40",
    "b0 hq2 sq3 skv3 d16 f32 lse seed=41",
    "b2 hq2 sq0 skv3 d16 f32 lse seed=42",
    "b2 hq2 sq3 skv0 d16 f32 lse seed=43",
    "b1 hq2 sq17 skv33 d16 f32 scores=scaled lse seed=44",
    "b1 hq2 sq17 skv33 d16 f32 scores=probs causal diag=br softcap=5 seed=45",
    "b2 hq2 sq127 skv257 d32 f32 causal diag=br window=64,0 lse layout=bshd poison seed=46",
    "b1 hq2 sq65 skv65 d16 bf16 out=f32 causal lse seed=47",
    "b1 hq2 sq33 skv513 d16 f32 lse seed=48",
    "b2 hq4 hkv2 sq33 skv65 d32 f8e4m3 causal diag=br descales=head lse poison seed=49",
    "b2 hq2 sq33 skv65 d33 f8e5m2 out=f32 mask lens descales lse poison seed=50",
    "b2 hq2 sq33 skv65 d16 f32 score=2.0*tanh(score)+0.1*((q_idx-kv_idx)%5) lse seed=51",
    "b2 hq4 hkv2 sq33 skv65 d16 f32 score=score*r0[h]+r1[b,kv_idx] bias softcap=5 lse seed=52",
    "b2 hq4 hkv2 sq33 skv65 d16 bf16 score=where(score<0.5,score*0.5,score-r0[h]) lse seed=53",
    ("b3 hq2 sq33 skv65 d16 f32 diag=br mask=kv_idx<=q_pos&i0[b,q_idx]==i0[b,kv_idx] lens lse "
     "poison seed=54"),
    "b2 hq2 sq65 skv127 d16 f32 mask=kv_idx<17|q_idx>=kv_idx block_mask=16,32 lse poison seed=55",
    "b2 hq4 hkv2 sq1 skv300 d64 f16 score=score-r0[h]*(kv_len-kv_idx)*0.01 lse seed=56",
    "b2 hq2 sq33 skv65 d16 f32 callback mask=kv_idx%7!=3 lse seed=57",
    "b1 hq2 sq17 skv33 d8 f64 score=exp(min(score,1.0))*r0[i1[kv_idx]] lse seed=58",
};
static_assert(std::size(kCases) <= 60);

// The same for backends that offer a backward: every edit, both kinds of statistics, sums over
// groups and broadcasts, rows and keys that nothing reaches.
constexpr const char* kGradCases[] = {
    "b2 hq2 sq33 skv65 d16 f32 saved grad seed=1",
    "b2 hq4 hkv2 sq65 skv65 d32 dv24 f32 causal layout=bshd saved grad d_lse seed=2",
    "b1 hq2 sq65 skv127 d64 bf16 causal diag=br saved grad poison seed=3",
    "b1 hq2 sq33 skv65 d32 f16 lse grad seed=4",
    "b1 hq3 sq17 skv33 d8 f64 saved grad delta seed=5",
    "b2 hq2 sq65 skv65 d16 f32 window=7,3 diag=2 saved grad poison seed=6",
    "b3 hq2 sq33 skv65 d16 f32 causal diag=seq saved grad poison seed=7",
    "b2 hq2 sq33 skv65 d16 f32 mask bias saved grad poison seed=8",
    "b2 hq2 sq33 skv65 d16 f32 bias=1,H,1,Skv saved grad seed=9",
    "b2 hq2 sq33 skv65 d16 bf16 bias=B,1,Sq,1 saved grad d_lse seed=10",
    "b2 hq4 hkv2 sq33 skv65 d16 f32 sinks lse grad d_lse delta seed=11",
    "b2 hq4 sq33 skv65 d32 f32 alibi diag=br saved grad seed=12",
    "b2 hq2 sq33 skv65 d16 f32 softcap=5 saved grad seed=13",
    "b6 hq2 sq33 skv65 d16 f32 lens saved grad d_lse poison seed=14",
    "b6 hq4 hkv2 sq33 skv65 d16 bf16 lens causal diag=br sinks saved grad poison seed=15",
    "b2 hq2 sq65 skv65 d16 f32 segments saved grad poison seed=16",
    "b2 hq4 hkv2 sq33 skv65 d16 f32 dropout=0.25 saved grad seed=17",
    "b2 hq2 sq33 skv65 d16 f16 dropout=0.5 causal diag=br lse grad delta seed=18",
    "b1 hq2 sq17 skv33 d256 f32 causal diag=tl saved grad seed=19",
    "b1 hq2 sq17 skv33 d16 f32 bias data=finfo_min saved grad seed=20",
    "b2 hq2 sq33 skv65 d16 f32 scale=-0.25 saved grad seed=21",
    "b2 hq2 sq3 skv0 d16 f32 saved grad seed=22",
    "b0 hq2 sq3 skv3 d16 f32 saved grad seed=23",
    "b1 hq2 sq257 skv300 d32 f32 causal diag=br saved grad d_lse seed=24",
    "b1 hq2 sq33 skv65 d64 f32 scale=1e8 saved grad seed=25",
    "b2 hq2 sq33 skv65 d16 f32 score=score*score*0.3-score saved grad seed=26",
    "b2 hq4 hkv2 sq33 skv65 d16 f32 score=score*r0[h]+r1[b,kv_idx] softcap=5 saved grad seed=27",
    ("b2 hq2 sq33 skv65 d16 bf16 score=score+r0[max(min(q_idx-kv_idx,9),-9)+9] sinks saved grad "
     "seed=28"),
    "b2 hq2 sq65 skv65 d16 f32 mask=i0[b,q_idx]==i0[b,kv_idx] saved grad poison seed=29",
    "b2 hq2 sq33 skv65 d16 f32 score=tanh(score)*2.0 callback dropout=0.25 saved grad seed=30",
    "b2 hq4 hkv2 sq33 skv65 d32 f8e4m3 d_out=f8e5m2 gradients=f8e5m2 causal diag=br descales=head "
    "saved grad poison seed=31",
    "b2 hq2 sq33 skv65 d33 f8e5m2 out=f8e5m2 descales lse grad d_lse seed=32",
    "b2 hq4 hkv2 sq65 skv65 d16 f8e4m3 out=f32 d_out=f16 gradients=f32 dropout=0.25 descales=head "
    "saved grad delta seed=33",
    "b2 hq2 sq33 skv65 d16 bf16 descales=head sinks saved grad seed=34",
};
static_assert(std::size(kGradCases) <= 34);

constexpr int kMaxFixes = 14;  // a case has no more things that a backend may refuse

/// What the candidate claims that is nearest to `c`, by its own refusals' fixes; false when there
/// is nothing.
bool relax_until_supported(Context& context, const BackendRef& candidate, Case* c) {
  for (int round = 0; round <= kMaxFixes; ++round) {
    Policy policy = policy_for(*c, candidate);
    const Selection selection = explain(context, c->params, policy);
    const Verdict* verdict = selection.find(candidate);
    if (verdict == nullptr) return false;
    if (verdict->usable) return true;
    if (verdict->refusals.empty()) return false;
    if (!apply_fix(verdict->refusals.front().fix, &c->params, &policy).ok()) return false;
    if (policy.assume_finite.value_or(false)) c->data.poison = false;
    canonicalize(*c);
    normalize_layout(c);
    canonicalize(*c);
  }
  return false;
}

// The candidate of a suite, and where its cases run.
struct Candidate {
  Context& context;
  const BackendRef& ref;
  Device device;
  DeviceRunner* device_runner;  // null: on the host
};

/// MATH on the host computes the reference, wherever the candidate runs.
Status run_one(const Candidate& candidate, const Case& c) {
  Expected<PreparedCase> prepared = prepare(c);
  if (!prepared) return prepared.status();
  const BackendRef math{BackendId::kMath};
  RunOptions options;
  options.check_fixes = false;
  prepared->params.device = {};
  const Report reference = run_prepared(candidate.context, &*prepared, math, options);
  if (!reference.ok()) return Status(StatusCode::kInternal, reference.text);
  prepared->params.device = candidate.device;
  options.device_runner = candidate.device_runner;
  const Report report = run_prepared(candidate.context, &*prepared, candidate.ref, options);
  if (report.outcome == Outcome::kPassed) return {};
  const std::string text =
      report.ok() ? "claimed, then refused: " + report.text + "\n  " + repro_line(c, candidate.ref)
                  : report.text;
  return Status(StatusCode::kConformanceFailed, text);
}

/// Runs what the candidate claims of the cases, or of what its fixes lead to; an error where that
/// is nothing. `grad`: a case that lost its gradients on the way is not one of these.
Status run_all(const Candidate& candidate, std::span<const char* const> cases, bool grad) {
  std::set<std::string> done;
  for (const char* text : cases) {
    Expected<Case> c = parse_case(text);
    if (!c) return c.status();
    c->params.device = candidate.device;
    if (!relax_until_supported(candidate.context, candidate.ref, &*c)) continue;
    const FeatureSet f = c->params.features;
    const bool has_backward =
        f.has(Feature::kNeedsGrad) && (f.has(Feature::kSavedStats) || f.has(Feature::kLse));
    if (has_backward != grad) continue;
    if (!done.insert(to_string(*c)).second) continue;
    if (Status status = run_one(candidate, *c); !status.ok()) return status;
  }
  if (!done.empty()) return {};
  return Status(StatusCode::kConformanceFailed,
                to_string(candidate.ref) + " claims none of the suite's " +
                    std::to_string(cases.size()) + (grad ? " gradient" : "") +
                    " cases, nor any that its fixes lead to");
}

Expected<BackendInfo> find_info(const Context& context, const BackendRef& ref) {
  for (BackendInfo& info : context.backends()) {
    if (info.ref == ref) return std::move(info);
  }
  return Status(StatusCode::kNotFound, to_string(ref) + " is not registered");
}

class SmallSuite final : public ConformanceSuite {
 public:
  explicit SmallSuite(DeviceRunner* device_runner) : device_runner_(device_runner) {}

  Status run(Context& context, const BackendRef& ref) const override {
    const Expected<BackendInfo> info = find_info(context, ref);
    if (!info) return info.status();
    const bool host = info->device == DeviceType::kCpu;
    if (!host && device_runner_ == nullptr) {
      return Status(StatusCode::kConformanceFailed,
                    to_string(ref) + " serves " + to_string(info->device) +
                        " devices, and this suite runs on the cpu alone; expected "
                        "small_suite(carrier), which runs the cases on a device");
    }
    const Candidate candidate{context, ref, {info->device, 0}, host ? nullptr : device_runner_};
    Status status = run_all(candidate, kCases, false);
    if (!status.ok() || !info->backward.offered) return status;
    return run_all(candidate, kGradCases, true);
  }

 private:
  DeviceRunner* const device_runner_;
};

}  // namespace

const ConformanceSuite& small_suite() {
  static const SmallSuite suite(nullptr);
  return suite;
}

std::unique_ptr<ConformanceSuite> small_suite(DeviceRunner& device_runner) {
  return std::make_unique<SmallSuite>(&device_runner);
}

}  // namespace regard::conformance
