#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "regard/case.h"
#include "tools/files/pending_file.h"
#include "tools/guide/answers.h"
#include "tools/guide/measure.h"
#include "tools/guide/page.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/interrupt.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"
#include "tools/regard/problem_words.h"

namespace regard::cli {
namespace {

struct GuideFlags {
  CommonOptions common;  // threads and output alone
  std::vector<std::string> words;
  std::string output = "guide.html";
  std::string seconds;
  std::string peer;
  bool quick = false;
};

Status invalid_guide(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[guide] " + message);
}

/// The cases of the line, each one that this machine can run.
Expected<std::vector<Case>> cases_of(const std::vector<std::string>& words) {
  std::vector<Case> cases;
  for (const ProblemWords& problem : split_problems(words)) {
    if (problem.is_file) {
      return invalid_guide(printable(problem.text) + ": expected the words of a case, not a file");
    }
    Expected<Case> c = parse_case(problem.text);
    if (!c) return c.status();
    save_for_backward(c->params);
    const Expected<Env> env = env_of({}, *c, /*must_run=*/true);
    if (!env) return env.status();
    cases.push_back(*std::move(c));
  }
  return cases;
}

class GuideVerb {
 public:
  GuideVerb(Output& output, const GuideFlags& flags) : output_(output), flags_(flags) {}

  int run() {
    // Before some minutes are spent.
    if (const std::string why = files::why_not_writable(flags_.output); !why.empty()) {
      return output_.fail(invalid_guide("output " + printable(flags_.output) + ": " + why));
    }
    guide::MeasureOptions options;
    options.quick = flags_.quick;
    options.seconds = flags_.quick ? 60.0 : 240.0;
    options.peer_python = flags_.peer;
    if (!flags_.seconds.empty()) {
      const Expected<double> seconds = parse_seconds(flags_.seconds, "--seconds");
      if (!seconds) return output_.fail(seconds.status());
      options.seconds = *seconds;
    }
    Expected<std::vector<Case>> cases = cases_of(flags_.words);
    if (!cases) return output_.fail(cases.status());
    options.problems = *std::move(cases);
    Expected<Env> env = env_of(flags_.common, Case{}, /*must_run=*/true);
    if (!env) return output_.fail(env.status());
    return measure(*env, options);
  }

 private:
  int measure(const Env& env, guide::MeasureOptions& options) {
    Progress progress(output_, "% measured", 100);
    options.progress = [&](double share) {
      progress.update(static_cast<std::int64_t>(100.0 * share), options.seconds * (1.0 - share));
    };
    const Expected<guide::Report> report = guide::measure_machine(env, options);
    progress.clear();
    if (!report) return output_.fail(report.status());
    output_.document()["output"] = printable(flags_.output);
    output_.document()["report"] = Json::parse(guide::to_json(*report));
    return write(*report);
  }

  int write(const guide::Report& report) {
    const DeferSignals defer;  // a temporary file would be left behind
    const std::string error = files::replace_file(flags_.output, guide::to_page(report));
    if (!error.empty()) {
      return output_.fail(kExitFailed, "write_failed",
                          fmt::format("output {}: {}", printable(flags_.output), error));
    }
    for (const guide::Answer& answer : guide::answers(report)) {
      output_.print(output_.paint(answer.question, Colour::kStrong) + "\n");
      for (const std::string& sentence : answer.sentences) {
        output_.print("  " + printable(sentence) + "\n");
      }
    }
    if (!output_.quiet()) output_.print("\nwritten to " + printable(flags_.output) + "\n");
    return kExitOk;
  }

  Output& output_;
  const GuideFlags& flags_;
};

}  // namespace

Command add_guide(CLI::App& app) {
  CLI::App* verb =
      add_verb(app, "guide", "A page about this machine: what runs, how fast, how exact");
  const auto flags = std::make_shared<GuideFlags>();
  add_positional(*verb, "case", flags->words, false,
                 {"WORD", "Your own shapes, measured too: words of a case, or cases in quotes"});
  add_value(*verb, "-o,--output", flags->output, {"FILE", "The page to write", "guide.html"});
  add_flag(*verb, "--quick", flags->quick, "A minute and fewer sizes, in place of four minutes");
  add_value(*verb, "--seconds", flags->seconds, {"X", "Measure for at most so long", "240"});
  add_value(*verb, "--peer", flags->peer,
            {"FILE", "A Python interpreter whose PyTorch is measured beside", "none"});
  add_value(*verb, "--threads", flags->common.threads,
            {"N", "Workers that a plan may use", "REGARD_NUM_THREADS or all CPUs"});
  add_output_flags(*verb, flags->common.output);
  return {verb, [flags] {
            Output output("guide", flags->common.output);
            return output.finish(GuideVerb(output, *flags).run());
          }};
}

}  // namespace regard::cli
