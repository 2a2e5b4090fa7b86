#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/random.h"
#include "conformance/run.h"
#include "regard/case.h"
#include "regard/context.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"
#include "tools/regard/problem_words.h"

namespace regard::cli {
namespace {

using conformance::Outcome;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

struct CheckOptions {
  CommonOptions common;
  std::vector<std::string> words;
  std::string random;
  std::string seed;
  std::string min_pairs;
};

Status invalid_check(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[check] " + message);
}

/// The candidates that the policy allows, in the order of preference.
std::vector<BackendRef> enabled_of(const Selection& selection, bool usable_only) {
  std::vector<BackendRef> refs;
  for (const Verdict& v : selection.candidates) {
    if (v.enabled && v.built && (v.usable || !usable_only)) refs.push_back(v.backend);
  }
  return refs;
}

// ---- one case

Json report_json(const BackendRef& backend, const conformance::Report& report) {
  constexpr const char* kOutcomes[] = {"passed", "refused", "failed"};
  const conformance::Comparison& c = report.comparison;
  Json json = {{"backend", to_string(backend)},
               {"outcome", kOutcomes[static_cast<int>(report.outcome)]}};
  if (report.outcome != Outcome::kPassed) json["text"] = report.text;
  if (report.outcome == Outcome::kRefused) return json;
  json["kernel"] = report.kernel;
  json["isa"] = to_string(report.isa);
  json["workspace_bytes"] = report.workspace_bytes;
  json["error"] = c.out_error;
  json["lse_error"] = c.lse_error;
  json["error_over_tolerance"] = c.out_margin;
  json["lse_error_over_tolerance"] = c.lse_margin;
  json["grad_error"] = report.gradients.error;
  json["grad_error_over_tolerance"] = report.gradients.margin;
  json["rows"] = c.rows;
  json["dead_rows"] = c.dead_rows;
  json["padding_rows"] = c.padding_rows;
  json["structural_rows"] = c.structural_rows;
  return json;
}

Table table_of(bool gradients) {
  std::vector<std::string> header = {"backend", "result", "error", "error / tolerance",
                                     "lse / tolerance"};
  if (gradients) header.insert(header.end(), {"gradients", "error / tolerance"});
  header.insert(header.end(), {"workspace", "kernel"});
  return Table(std::move(header));
}

void add_row(Table& table, const BackendRef& backend, const conformance::Report& report,
             bool gradients) {
  struct Shown {
    const char* word;
    Colour colour;
  };
  constexpr Shown kOutcomes[] = {
      {"ok", Colour::kGood}, {"refused", Colour::kWarning}, {"FAIL", Colour::kBad}};
  const Shown& outcome = kOutcomes[static_cast<int>(report.outcome)];
  const bool ran = report.outcome != Outcome::kRefused;
  const auto figure = [ran](std::string text) { return ran ? std::move(text) : "-"; };
  std::vector<std::string> row = {to_string(backend), outcome.word};
  const auto add_error = [&](double error) { row.push_back(figure(fmt::format("{:.2e}", error))); };
  const auto add_share = [&](double share) {
    row.push_back(figure(fmt::format("{:.0f} %", 100.0 * share)));
  };
  add_error(report.comparison.out_error);
  add_share(report.comparison.out_margin);
  add_share(report.comparison.lse_margin);
  if (gradients) {
    add_error(report.gradients.error);
    add_share(report.gradients.margin);
  }
  row.push_back(figure(bytes_text(report.workspace_bytes)));
  row.push_back(ran ? report.kernel : report.text);
  table.add(std::move(row), {Colour::kStrong, outcome.colour});
}

/// Runs the case on every enabled backend, in the order of preference; those that refuse it must
/// say how they would not.
int run_backends(Output& output, Context& context, conformance::PreparedCase& prepared,
                 const std::vector<BackendRef>& backends, bool gradients) {
  Table table = table_of(gradients);
  Json list = Json::array();
  std::vector<std::string> failures;
  Progress progress(output, "backends", static_cast<std::int64_t>(backends.size()));
  for (const BackendRef& backend : backends) {
    progress.update(static_cast<std::int64_t>(list.size()));
    const conformance::Report report = conformance::run_prepared(context, &prepared, backend);
    if (!report.ok()) failures.push_back(report.text);
    add_row(table, backend, report, gradients);
    list.push_back(report_json(backend, report));
  }
  progress.clear();
  output.document()["results"] = std::move(list);
  output.print(table.text(output));
  for (const std::string& failure : failures) output.print(failure + "\n");
  if (failures.empty()) return kExitOk;
  return output.fail(kExitFailed, "check_failed",
                     fmt::format("{} of {} backends failed", failures.size(), backends.size()));
}

int check_case(Output& output, const CheckOptions& options) {
  Expected<Case> c = parse_case(joined(options.words));
  if (!c) return output.fail(c.status());
  save_for_backward(c->params);
  Expected<Policy> policy = policy_of(options.common);
  if (!policy) return output.fail(policy.status());
  if (!policy->assume_finite) policy->assume_finite = !c->data.poison;
  Expected<Env> env = env_of(options.common, *c, /*must_run=*/true);
  if (!env) return output.fail(env.status());

  Context context(*std::move(env));
  output.apply_to(context);
  output.document()["case"] = to_string(*c);
  output.print(fmt::format("case  {}\n\n", to_string(*c)));
  const Selection selection = explain(context, c->params, *policy);
  if (enabled_of(selection, /*usable_only=*/true).empty()) {
    output.document()["selection"] = Json::parse(to_json(selection));
    output.print(highlight(output, to_string(selection)));
    return output.fail(kExitNoBackend, "no_backend", "no backend can run this case");
  }
  Expected<conformance::PreparedCase> prepared = conformance::prepare(*c);
  if (!prepared) return output.fail(prepared.status());
  const bool gradients = c->params.features.has(Feature::kNeedsGrad);
  return run_backends(output, context, *prepared, enabled_of(selection, false), gradients);
}

// ---- random cases

struct RandomFlags {
  std::int64_t count = 0;
  std::int64_t seed = 1;
  std::int64_t min_pairs = 0;
};

Expected<RandomFlags> random_flags(const CheckOptions& options) {
  RandomFlags flags;
  const auto take = [](const std::string& text, const char* name, std::int64_t min,
                       std::int64_t* out) -> Status {
    if (text.empty()) return {};
    const Expected<std::int64_t> value = parse_whole(text, name, min, kMax);
    if (!value) return value.status();
    *out = *value;
    return {};
  };
  if (Status s = take(options.random, "--random", 1, &flags.count); !s) return s;
  if (Status s = take(options.seed, "--seed", 0, &flags.seed); !s) return s;
  if (Status s = take(options.min_pairs, "--min-pairs", 0, &flags.min_pairs); !s) return s;
  const CommonOptions& common = options.common;
  const std::pair<const char*, bool> meaningless[] = {
      {"--prefer", !common.prefer.empty()},
      {"--max-error", !common.max_error.empty()},
      {"--require", !common.require.empty()},
      {"--on-fallback", !common.on_fallback.empty()},
      {"--max-workspace", !common.max_workspace.empty()},
      {"--assume-finite", common.assume_finite},
      {"--self-check", !common.self_check.empty()}};
  for (const auto& [name, given] : meaningless) {
    if (given) return invalid_check(fmt::format("{} has no meaning with --random", name));
  }
  return flags;
}

/// The built backends that flags and environment allow: what a plain case may run on.
std::vector<BackendRef> backends_to_check(Context& context, const Policy& policy) {
  AttentionParams plain;
  plain.softmax_scale = default_softmax_scale(plain.head_dim_qk);
  return enabled_of(explain(context, plain, policy), /*usable_only=*/true);
}

Json coverage_json(const conformance::Coverage& coverage) {
  Json features = Json::object();
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (coverage.count(feature) > 0) features[to_string(feature)] = coverage.count(feature);
  }
  return features;
}

std::vector<std::string> missing_pairs(const Context& context,
                                       const conformance::RandomResult& result,
                                       const std::vector<BackendRef>& backends,
                                       std::int64_t at_least) {
  std::vector<std::string> missing;
  for (const BackendInfo& info : context.backends()) {
    if (std::find(backends.begin(), backends.end(), info.ref) == backends.end()) continue;
    if (info.device != DeviceType::kCpu) continue;
    const std::vector<std::string> some = result.coverage.missing_pairs(info, at_least);
    missing.insert(missing.end(), some.begin(), some.end());
  }
  return missing;
}

int show_random(Output& output, const Context& context, const conformance::RandomResult& result,
                const std::vector<BackendRef>& backends, const RandomFlags& flags) {
  const std::vector<std::string> missing =
      missing_pairs(context, result, backends, flags.min_pairs);
  output.document()["cases"] = result.cases;
  output.document()["seed"] = flags.seed;
  output.document()["failures"] = result.failures;
  output.document()["features"] = coverage_json(result.coverage);
  output.document()["missing_pairs"] = missing;
  output.print(result.table());
  for (const std::string& failure : result.failures) {
    output.print(fmt::format("{} {}\n", output.paint("FAIL", Colour::kBad), failure));
  }
  for (const std::string& pair : missing) {
    output.print(fmt::format("too rare: {}, expected at least {}\n", pair, flags.min_pairs));
  }
  if (!result.ok()) {
    return output.fail(
        kExitFailed, "check_failed",
        fmt::format("{} failures in {} cases", result.failures.size(), result.cases));
  }
  if (!missing.empty()) {
    return output.fail(kExitFailed, "too_rare",
                       fmt::format("{} pairs of features came too rarely", missing.size()));
  }
  output.print(fmt::format("{} {} cases of seed {}\n", output.paint("ok", Colour::kGood),
                           result.cases, flags.seed));
  return kExitOk;
}

int check_random(Output& output, const CheckOptions& options) {
  const Expected<RandomFlags> flags = random_flags(options);
  if (!flags) return output.fail(flags.status());
  const Expected<Policy> policy = policy_of(options.common);
  if (!policy) return output.fail(policy.status());
  Expected<Env> env = env_of(options.common, Case{}, /*must_run=*/true);
  if (!env) return output.fail(env.status());

  Context context(*std::move(env));
  output.apply_to(context);
  conformance::RandomOptions random;
  random.backends = backends_to_check(context, *policy);
  if (random.backends.empty()) {
    return output.fail(kExitNoBackend, "no_backend", "no backend of this build may run");
  }
  random.count = flags->count;
  random.seed = static_cast<std::uint64_t>(flags->seed);
  Progress progress(output, "cases", flags->count);
  random.progress = [&](std::int64_t done) {
    progress.update(done);
    return true;
  };
  const conformance::RandomResult result = conformance::run_random(context, random);
  progress.clear();
  return show_random(output, context, result, random.backends, *flags);
}

int check(Output& output, const CheckOptions& options) {
  const bool random = !options.random.empty();
  if (random != options.words.empty()) {
    return output.fail(invalid_check("expected either the words of a case or --random N"));
  }
  if (random) return check_random(output, options);
  if (!options.seed.empty() || !options.min_pairs.empty()) {
    return output.fail(invalid_check("--seed and --min-pairs need --random; a case has seed=N"));
  }
  return check_case(output, options);
}

}  // namespace

Command add_check(CLI::App& app) {
  CLI::App* verb = add_verb(app, "check", "Hold every usable backend against the oracle on cases");
  const auto options = std::make_shared<CheckOptions>();
  add_positional(*verb, "case", options->words, false, {"WORD", "The words of a case"});
  add_value(*verb, "--random", options->random, {"N", "Check this many random cases instead"});
  add_value(*verb, "--seed", options->seed, {"N", "Of the random cases", "1"});
  add_value(*verb, "--min-pairs", options->min_pairs,
            {"N", "Fail where a claimed pair of features came in fewer cases", "0"});
  add_common_flags(*verb, options->common);
  return {verb, [options] {
            Output output("check", options->common.output);
            return output.finish(check(output, *options));
          }};
}

}  // namespace regard::cli
