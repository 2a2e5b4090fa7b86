#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "regard/context.h"
#include "regard/frozen.h"
#include "tools/files/pending_file.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/interrupt.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"
#include "tools/regard/recorded_cases.h"

namespace regard::cli {
namespace {

struct FreezeOptions {
  CommonOptions common;
  std::vector<std::string> words;
  FileOptions file;
  std::string output;
  std::string verify;
};

struct DiffOptions {
  OutputOptions output;
  std::string a, b;
};

Json differences_json(const std::vector<FrozenDifference>& differences) {
  Json list = Json::array();
  for (const FrozenDifference& d : differences) {
    list.push_back({{"cause", to_string(d.cause)}, {"what", d.what}, {"a", d.a}, {"b", d.b}});
  }
  return list;
}

Expected<FrozenDecisions> read_frozen(const std::string& path) {
  const Expected<std::string> text = read_text(path);
  return text ? parse_frozen(*text, printable(path)) : text.status();
}

int verify_decisions(Output& output, const FreezeOptions& options, const Policy& policy) {
  Expected<FrozenDecisions> frozen = read_frozen(options.verify);
  if (!frozen) return output.fail(frozen.status());
  Expected<Env> env = env_of(options.common, Case(), /*must_run=*/false);
  if (!env) return output.fail(env.status());
  Context context(*std::move(env));
  output.apply_to(context);
  context.set_policy(policy);
  const std::size_t count = frozen->decisions.size();
  const Status status = context.set_replay(*std::move(frozen));
  if (!status) return output.fail(kExitFailed, "differs", status.message());
  output.document()["decisions"] = count;
  output.print(fmt::format("{} decisions are those of this machine\n", count));
  return kExitOk;
}

int freeze_decisions(Output& output, const FreezeOptions& options) {
  const Expected<Policy> policy = policy_of(options.common);
  if (!policy) return output.fail(policy.status());
  if (!options.verify.empty()) return verify_decisions(output, options, *policy);
  const auto problems = expand_records(split_problems(options.words));
  if (!problems) return output.fail(problems.status());
  if (problems->empty()) {
    return output.fail(kExitUsage, "usage", "expected cases or a record, or --verify FILE");
  }
  std::vector<AttentionParams> cases;
  for (const CountedProblem& problem : *problems) {
    const Expected<Case> c = case_of(problem.words, options.file);
    if (!c) return output.fail(c.status());
    if (c->env != EnvOverrides()) {
      return output.fail(
          kExitUsage, "usage",
          "isa= and device=smNN describe another machine; freeze there, or use --isa");
    }
    const auto same = [&](const AttentionParams& p) { return p == c->params; };
    if (std::none_of(cases.begin(), cases.end(), same)) cases.push_back(c->params);
  }
  Expected<Env> env = env_of(options.common, Case(), /*must_run=*/false);
  if (!env) return output.fail(env.status());
  Context context(*std::move(env));
  output.apply_to(context);
  context.set_policy(*policy);
  const Expected<FrozenDecisions> frozen = freeze(context, cases);
  if (!frozen) return output.fail(frozen.status());
  const std::string text = to_string(*frozen);
  output.document()["decisions"] = frozen->decisions.size();
  output.document()["text"] = text;
  if (options.output.empty()) {
    output.print(text);
    return kExitOk;
  }
  const DeferSignals defer;  // a temporary file would be left behind
  if (const std::string failed = files::replace_file(options.output, text); !failed.empty()) {
    return output.fail(kExitFailed, "write_failed",
                       fmt::format("output {}: {}", printable(options.output), failed));
  }
  output.print(fmt::format("wrote     {} ({} decisions)\n", printable(options.output),
                           frozen->decisions.size()));
  return kExitOk;
}

int show_differences(Output& output, const DiffOptions& options) {
  const Expected<FrozenDecisions> a = read_frozen(options.a);
  if (!a) return output.fail(a.status());
  const Expected<FrozenDecisions> b = read_frozen(options.b);
  if (!b) return output.fail(b.status());
  const std::vector<FrozenDifference> differences = diff(*a, *b);
  output.document()["differences"] = differences_json(differences);
  output.print(differences.empty() ? "no difference\n" : to_string(differences));
  return differences.empty() ? kExitOk : kExitFailed;
}

}  // namespace

Command add_freeze(CLI::App& app) {
  CLI::App* verb =
      add_verb(app, "freeze",
               "Record what runs for some cases on this machine, or compare with such a file");
  const auto options = std::make_shared<FreezeOptions>();
  add_positional(*verb, "problem", options->words, false,
                 {kProblemValue, "Words of a case, cases in quotes, files, or records of calls"});
  add_value(*verb, "-o,--output", options->output,
            {"FILE", "Write the decisions to this file", "standard output"});
  add_value(*verb, "--verify", options->verify,
            {"FILE", "Compare with the decisions of this file; 1 where one differs"});
  add_file_flags(*verb, options->file);
  add_common_flags(*verb, options->common);
  return {verb, [options] {
            Output output("freeze", options->common.output);
            return output.finish(freeze_decisions(output, *options));
          }};
}

Command add_diff(CLI::App& app) {
  CLI::App* verb =
      add_verb(app, "diff", "How two files of freeze differ, line by line and by cause");
  const auto options = std::make_shared<DiffOptions>();
  add_positional(*verb, "a", options->a, true, {"FILE", "A file of freeze"});
  add_positional(*verb, "b", options->b, true, {"FILE", "Another one"});
  add_output_flags(*verb, options->output);
  return {verb, [options] {
            Output output("diff", options->output);
            return output.finish(show_differences(output, *options));
          }};
}

}  // namespace regard::cli
