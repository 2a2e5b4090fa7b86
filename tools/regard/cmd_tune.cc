#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "regard/context.h"
#include "tools/files/pending_file.h"
#include "tools/files/quote.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/interrupt.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"
#include "tools/regard/tuning_run.h"

namespace regard::cli {
namespace {

struct TuneFlags {
  OutputOptions output;
  std::string threads;
  std::string cases;
  std::string path;
  std::string seconds;
  bool quick = false;
};

class TuneVerb {
 public:
  TuneVerb(Output& output, const TuneFlags& flags) : output_(output), flags_(flags) {}

  int run() {
    CommonOptions common;
    common.threads = flags_.threads;
    Expected<Env> env = env_of(common, Case{}, /*must_run=*/true);
    if (!env) return output_.fail(env.status());
    double seconds = flags_.quick ? 50.0 : 300.0;
    if (!flags_.seconds.empty()) {
      const Expected<double> given = parse_seconds(flags_.seconds, "--seconds");
      if (!given) return output_.fail(given.status());
      seconds = *given;
    }
    std::vector<std::string> problems = tuning_grid(flags_.quick);
    if (!flags_.cases.empty()) {
      Expected<std::vector<std::string>> cases = read_cases(flags_.cases);
      if (!cases) return output_.fail(cases.status());
      problems = *std::move(cases);
    }
    const std::string folder = tuning_folder(*env);
    if (folder.empty()) {
      return output_.fail(kExitUsage, "no_folder",
                          "neither XDG_CACHE_HOME nor HOME names a folder for what is measured");
    }
    Context context(*std::move(env));
    output_.apply_to(context);
    machine_rates(context.env().isa, context.env().concurrency);
    const DeferSignals defer;
    const int rounds = flags_.quick ? 2 : 7;
    TuningRun run(context, TuningStore(context.env(), rounds), rounds);
    if (const Status status = measure(&run, problems, seconds); !status.ok()) {
      return output_.fail(kExitFailed, "failed", status.message());
    }
    return finish(run, folder);
  }

 private:
  Status measure(TuningRun* run, const std::vector<std::string>& problems, double seconds) {
    const auto total = static_cast<std::int64_t>(problems.size());
    auto bar = std::make_unique<Progress>(output_, "problems", total);
    return run->measure(problems, seconds, [&](int done, double left) { bar->update(done, left); });
  }

  int finish(const TuningRun& run, const std::string& folder) {
    const TuningCounts& counts = run.counts();
    for (const std::string& note : counts.notes) output_.warn(note);
    if (counts.unsteady > 0) {
      output_.warn(
          fmt::format("the machine's speed changed while {} problems were measured, three "
                      "times each; they are not kept for another run",
                      counts.unsteady));
    }
    output_.document()["problems"] = counts.problems;
    output_.document()["measured"] = counts.measured;
    output_.document()["reused"] = counts.reused;
    output_.document()["repeated"] = counts.repeated;
    output_.document()["unsteady"] = counts.unsteady;
    output_.document()["out_of_time"] = counts.out_of_time;
    output_.document()["notes"] = counts.notes;
    const int done = counts.measured + counts.reused;
    if (interrupted()) {
      output_.print(fmt::format("{} of {} problems are measured and kept; run it again to go on\n",
                                done, counts.problems));
      return output_.fail_interrupted();
    }
    const TuningTable table = run.table();
    const std::string path = flags_.path.empty() ? folder + "/table.txt" : flags_.path;
    std::error_code error;
    if (flags_.path.empty()) std::filesystem::create_directories(folder, error);
    if (const std::string failed = files::replace_file(path, to_text(table)); !failed.empty()) {
      return output_.fail(kExitFailed, "failed",
                          fmt::format("cannot write {}: {}", files::quote(path), failed));
    }
    output_.document()["table"] = printable(path);
    output_.document()["rules"] = table.rules.size();
    output_.document()["variants"] = table.variants.size();
    output_.print(fmt::format(
        "{} of {} problems, {} of them from an earlier run{}\n", done, counts.problems,
        counts.reused, counts.out_of_time ? "; the time is over: run it again to go on" : ""));
    output_.print(fmt::format(
        "{} are faster on another backend than the default, {} by another variant of a kernel\n",
        table.rules.size(), table.variants.size()));
    output_.print(fmt::format("wrote {}{}\n", files::quote(path),
                              flags_.path.empty()
                                  ? ", which programs on this machine use from now on"
                                  : "; to use it:\nexport REGARD_TUNING=" + printable(path)));
    return kExitOk;
  }

  Output& output_;
  const TuneFlags& flags_;
};

}  // namespace

Command add_tune(CLI::App& app) {
  CLI::App* verb =
      add_verb(app, "tune", "Measure this machine, and write a table of what is fastest on it");
  const auto flags = std::make_shared<TuneFlags>();
  add_value(*verb, "-o,--output", flags->path,
            {"FILE", "The table", "where programs on this machine look for it"});
  add_value(*verb, "--cases", flags->cases,
            {"FILE", "The cases to measure, one a line, or a record"});
  add_value(*verb, "--seconds", flags->seconds,
            {"X", "Begin no problem after so long", "300, with --quick 50"});
  add_value(*verb, "--threads", flags->threads, {"N", "Threads that a call may use", "all CPUs"});
  add_flag(*verb, "--quick", flags->quick, "Fewer problems and rounds: within a minute");
  add_output_flags(*verb, flags->output);
  return {verb, [flags] {
            Output output("tune", flags->output);
            return output.finish(TuneVerb(output, *flags).run());
          }};
}

}  // namespace regard::cli
