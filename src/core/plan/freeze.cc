#include "core/plan/freeze.h"

#include <cstdio>
#include <utility>

#include "base/hash.h"
#include "base/message.h"
#include "core/plan/context_impl.h"
#include "core/text/thrown_by.h"
#include "platform/read_file.h"
#include "regard/case.h"

namespace regard {
namespace {

std::string hex(std::uint64_t x) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(x));
  return text;
}

std::string table_text(const TuningTable& table) {
  if (table.empty()) return "";
  Hasher hasher;
  for (const TuningTable::Rule& rule : table.rules) {
    hasher.add_bytes(rule.condition);
    for (const BackendRef& ref : rule.order) hasher.add_bytes(to_string(ref));
  }
  for (const TuningTable::VariantRule& rule : table.variants) {
    hasher.add_bytes(rule.condition);
    hasher.add_bytes(to_string(rule.backend));
    hasher.add_bytes(rule.variant);
  }
  return concat("hash ", hex(hasher.value()), ", of ", table.isa, " ", table.device_name);
}

std::string cuda_text(const Env& env, bool wanted) {
  if (!env.built_with_cuda) return "not built";
  if (!wanted) return "built";
  std::string text = concat("driver ", env.cuda_driver, " cudnn ", env.cudnn_version);
  for (const CudaDevice& d : env.cuda_devices) text += concat(", ", d.name, " sm", d.sm_version);
  return text;
}

std::string kernel_text(const KernelPlan& k) {
  if (k.kernel.empty()) return "";
  return concat(k.kernel, " ", to_string(k.isa), " workers=", k.workers, " tile_q=", k.tile_q,
                " tile_kv=", k.tile_kv, " workspace=", k.workspace_bytes,
                k.variant.empty() ? "" : " variant=", k.variant);
}

FrozenDecision decision_of(const AttentionParams& params, const Selection& selection) {
  FrozenDecision decision;
  decision.words = to_string(params);
  decision.backend = to_string(selection.chosen);
  decision.decided_by = selection.decided_by;
  for (const Verdict& verdict : selection.candidates) {
    if (verdict.chosen) continue;
    decision.refusals += concat(decision.refusals.empty() ? "" : ", ", to_string(verdict.backend),
                                " ", to_string(verdict.status()));
  }
  return decision;
}

FrozenDecision decision_of(const PlanImpl& plan, const Selection& selection) {
  FrozenDecision decision = decision_of(plan.asked, selection);
  decision.forward = kernel_text(plan.kernel);
  decision.backward = kernel_text(plan.backward);
  return decision;
}

std::string policy_text(ContextImpl& context, const Policy& policy) {
  return to_string(policy_for(context, *context.settings(), policy)->policy);
}

}  // namespace

Expected<FrozenDecisions> freeze(Context& context, const std::vector<AttentionParams>& cases,
                                 const Policy& policy) try {
  ContextImpl& impl = ContextImpl::of(context);
  FrozenDecisions frozen;
  bool on_device = false;
  for (const AttentionParams& params : cases) {
    AttentionParams canonical = params;
    canonicalize(canonical);
    on_device = on_device || canonical.device.type != DeviceType::kCpu;
    const Expected<Plan> made = plan(context, canonical, policy);
    if (made) {
      const PlanImpl& found = *PlanImpl::of(*made);
      // A plan from the cache is of any case of its class: this one's words and reasons count.
      FrozenDecision decision = decision_of(canonical, explain(context, canonical, policy));
      decision.forward = kernel_text(found.kernel);
      decision.backward = kernel_text(found.backward);
      frozen.decisions.push_back(std::move(decision));
      continue;
    }
    if (made.status().code() != StatusCode::kNoBackend) return made.status();
    frozen.decisions.push_back(decision_of(canonical, explain(context, canonical, policy)));
  }
  const Env env = on_device ? with_devices(context.env()) : context.env();
  const auto settings = impl.settings();
  std::string backends;
  for (const BackendInfo& info : context.backends()) {
    backends += concat(backends.empty() ? "" : " ", to_string(info.ref), info.built ? "" : "-");
  }
  for (const DeniedBackend& denied : impl.self_checks->denied()) {
    backends += concat(" denied:", to_string(denied.ref));
  }
  frozen.environment = {{"version", env.version},
                        {"compiler", env.compiler},
                        {"isa", to_string(env.isa)},
                        {"isa_available", to_string(env.isa_available)},
                        {"cpu", env.cpu_model},
                        {"caches", concat(env.l1d_bytes, " ", env.l2_bytes, " ", env.l3_bytes)},
                        {"threads", std::to_string(env.concurrency)},
                        {"policy", policy_text(impl, policy)},
                        {"tuning", table_text(settings->tuning)},
                        {"cuda", cuda_text(env, on_device)},
                        {"backends", backends}};
  return frozen;
} catch (...) {
  return status_of_exception("freeze");
}

Expected<FrozenDecisions> read_frozen(const std::string& path) {
  constexpr std::int64_t kMaxBytes = 64 << 20;
  const Expected<std::string> text = read_regular_file(path, kMaxBytes, "parse_frozen");
  if (!text) return text.status();
  Expected<FrozenDecisions> frozen = parse_frozen(*text, path);
  unless_out_of_memory(frozen.status());
  return frozen;
}

Status Replay::check(const PlanImpl& plan) const {
  const auto found = decisions.find(to_string(plan.asked));
  if (found == decisions.end() || to_string(plan.policy->policy) != policy) return {};
  FrozenDecisions then, now;
  then.decisions.push_back(found->second);
  now.decisions.push_back(decision_of(plan, select(plan.inputs(plan.exact), plan.asked)));
  const std::vector<FrozenDifference> differences = diff(then, now);
  if (differences.empty()) return {};
  return invalid("plan", "the decision differs from that of ", source, " (frozen -> now):\n",
                 to_string(differences));
}

Status Context::set_replay(FrozenDecisions frozen) try {
  ContextImpl& impl = *impl_;
  const std::shared_ptr<const Replay> before = impl.settings()->replay;
  const auto set = [&](std::shared_ptr<const Replay> replay) {
    impl.update([&](Settings& settings) {
      settings.replay = std::move(replay);
      ++settings.generations.replay;
    });
  };
  if (frozen.empty()) {
    set(nullptr);
    return {};
  }
  std::vector<AttentionParams> cases;
  auto made = std::make_shared<Replay>();
  for (const FrozenDecision& decision : frozen.decisions) {
    const Expected<Case> parsed = parse_case(decision.words);
    if (!parsed) return parsed.status();
    cases.push_back(parsed->params);
    made->decisions.emplace(decision.words, decision);
  }
  made->source = frozen.source.empty() ? "the frozen decisions" : frozen.source;
  for (const auto& [name, value] : frozen.environment) {
    if (name == "policy") made->policy = value;
  }
  set(nullptr);  // the former decisions are not to refuse those of the new
  const Expected<FrozenDecisions> now = freeze(*this, cases);
  const std::vector<FrozenDifference> differences =
      now ? diff(frozen, *now) : std::vector<FrozenDifference>();
  if (now && differences.empty()) {
    set(std::move(made));
    return {};
  }
  set(before);
  if (!now) return now.status();
  return invalid("set_replay", "decisions differ from those of ", made->source,
                 " (frozen -> now):\n", to_string(differences));
} catch (...) {
  return status_of_exception("set_replay");
}

}  // namespace regard
