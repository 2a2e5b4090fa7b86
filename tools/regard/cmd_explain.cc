#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "regard/case.h"
#include "regard/context.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"
#include "tools/regard/problem_tensors.h"
#include "tools/regard/problem_words.h"
#include "tools/regard/rank_words.h"

namespace regard::cli {
namespace {

struct ExplainOptions {
  CommonOptions common;
  std::vector<std::string> words;
  FileOptions file;
  std::int64_t shared_prefix = 0;
  bool verbose = false;
};

/// A kernel's rules, under `name` in both forms of the output.
void show_kernel(Output& output, const char* name, const KernelPlan& kernel) {
  output.document()[name] = {
      {"kernel", kernel.kernel},
      {"isa", to_string(kernel.isa)},
      {"workers", kernel.workers},
      {"tile_q", kernel.tile_q},
      {"tile_kv", kernel.tile_kv},
      {"workspace_bytes", kernel.workspace_bytes},
      {"variant", kernel.variant.empty() ? "default" : kernel.variant},
      {"variant_source", kernel.variant.empty() ? "default" : kernel.variant_source}};
  output.print(fmt::format("{:<8} {}\n", name, to_string(kernel)));
}

/// The rules of the plan that the chosen backend makes, beside the reasons for choosing it.
void show_plan(Output& output, const Plan& plan) {
  output.print("\n");
  show_kernel(output, "plan", plan.kernel());
  if (!plan.backward_kernel().kernel.empty()) {
    show_kernel(output, "backward", plan.backward_kernel());
  }
}

/// The sums of lengths that the words list, for predictions.
void state_tokens(Case& c) {
  const auto state = [](std::int64_t& tokens, const std::vector<std::int64_t>& lengths) {
    if (tokens == 0) tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  };
  state(c.params.tokens_q, c.data.seqlens_q);
  state(c.params.tokens_kv, c.data.seqlens_kv);
}

/// What each algorithm over ranks sends and takes.
int explain_ranks(Output& output, const RankWords& ranks, const Case& c) {
  const Expected<distributed::Plan> plan = plan_of(ranks, c);
  if (!plan) return output.fail(plan.status());
  Json algorithms = Json::array();
  for (const distributed::Estimate& e : plan->estimates()) {
    Json one{{"comm", to_string(e.algorithm)}, {"refusal", e.refusal}};
    const auto traffic = [](const std::vector<distributed::Traffic>& ranks_sent) {
      Json list = Json::array();
      for (const auto& t : ranks_sent)
        list.push_back({{"messages", t.messages}, {"bytes", t.bytes}});
      return list;
    };
    if (e.refusal.empty()) {
      one.update({{"forward", traffic(e.forward)},
                  {"backward", traffic(e.backward)},
                  {"balance", e.balance},
                  {"memory_bytes", e.memory},
                  {"seconds", e.seconds}});
    }
    algorithms.push_back(one);
  }
  const distributed::Network& network = plan->options().network;
  output.document()["ranks"] = {{"cp", ranks.ranks},
                                {"network",
                                 {{"source", to_string(network.source)},
                                  {"latency", network.latency},
                                  {"bandwidth", network.bandwidth},
                                  {"node_latency", network.node_latency},
                                  {"node_bandwidth", network.node_bandwidth}}},
                                {"layout", to_string(plan->options().layout)},
                                {"comm", to_string(plan->algorithm())},
                                {"algorithms", algorithms}};
  output.print("\n" + plan->explain());
  return kExitOk;
}

int explain_problem(Output& output, const ExplainOptions& options) {
  std::vector<std::string> case_words = options.words;
  const Expected<std::optional<RankWords>> ranks = take_rank_words(&case_words);
  if (!ranks) return output.fail(ranks.status());
  const Expected<ProblemWords> words = one_problem(case_words, "explain");
  if (!words) return output.fail(words.status());
  const Expected<Policy> policy = policy_of(options.common);
  if (!policy) return output.fail(policy.status());
  Expected<Case> c = case_of(*words, options.file);
  if (!c) return output.fail(c.status());
  state_tokens(*c);
  Expected<Env> env = env_of(options.common, *c, /*must_run=*/false);
  if (!env) return output.fail(env.status());

  Context context(*std::move(env));
  output.apply_to(context);
  const Expected<Selection> explained =
      explain_shared_prefix(context, c->params, options.shared_prefix, *policy);
  if (!explained) return output.fail(explained.status());
  const Selection& selection = *explained;
  if (words->is_file) output.document()["file"] = printable(words->text);
  output.document().update(Json::parse(to_json(selection)));
  output.print(highlight(output, to_string(selection, options.verbose)));
  if (!selection.ok()) return kExitNoBackend;
  const Expected<Plan> made = plan(context, selection.params, *policy);
  if (!made) return output.fail(made.status());
  if (words->is_file && options.shared_prefix == 0) {
    const auto tensors = ProblemTensors::make(*words, *c, options.file);
    if (!tensors) return output.fail(tensors.status());
    const Status status = check_tensors(*made, (*tensors)->request());
    if (!status) return output.fail(status);
  }
  show_plan(output, *made);
  return *ranks ? explain_ranks(output, **ranks, *c) : kExitOk;
}

}  // namespace

Command add_explain(CLI::App& app) {
  CLI::App* verb = add_verb(app, "explain",
                            "Which backend would run a problem, and why every other one would not");
  const auto options = std::make_shared<ExplainOptions>();
  add_positional(*verb, "problem", options->words, true,
                 {kProblemValue, "The words of a case, or a file as run takes it"});
  add_file_flags(*verb, options->file);
  add_common_flags(*verb, options->common);
  add_value(*verb, "--shared-prefix", options->shared_prefix,
            {"N", "Keys that all sequences have in the same first pages: explains both calls"});
  add_flag(*verb, "--verbose", options->verbose,
           "Show four facts of each backend, and backends of absent devices");
  add_footer(*verb,
             "The words of a case, in any order:\n" + case_syntax_help() + rank_words_help());
  return {verb, [options] {
            Output output("explain", options->common.output);
            return output.finish(explain_problem(output, *options));
          }};
}

}  // namespace regard::cli
