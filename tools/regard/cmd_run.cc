#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/compare_gradients.h"
#include "conformance/run.h"
#include "distributed/launcher.h"
#include "oracle/gradients.h"
#include "oracle/oracle.h"
#include "regard/context.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/interrupt.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"
#include "tools/regard/problem_words.h"
#include "tools/regard/run_gradients.h"
#include "tools/regard/run_input.h"
#include "tools/regard/run_report.h"
#include "tools/regard/safetensors.h"

namespace regard::cli {
namespace {

constexpr std::int64_t kMaxRepeat = 1'000'000;

struct RunFileOptions {
  CommonOptions common;
  std::string file;
  std::string output;
  std::vector<std::string> words;
  std::string repeat;
  bool all_backends = false;
  bool no_check = false;
  bool profile = false;
  bool grad = false;
};

/// The verb, step by step. Each step returns an exit code; 0 goes on.
class RunVerb {
 public:
  RunVerb(Output& output, const RunFileOptions& options) : output_(output), options_(options) {}

  int run() {
    // The oracle comes after the backends: execute() and execute_backward() check the values that
    // describe() cannot see, such as lengths, and the oracle reads what they accepted.
    using Step = int (RunVerb::*)();
    constexpr Step kSteps[] = {&RunVerb::read_flags, &RunVerb::load,       &RunVerb::choose,
                               &RunVerb::run_all,    &RunVerb::find_truth, &RunVerb::compare_all,
                               &RunVerb::show,       &RunVerb::write};
    for (const Step step : kSteps) {
      if (const int code = (this->*step)(); code != kExitOk) return code;
    }
    return kExitOk;
  }

 private:
  int read_flags() {
    if (!options_.output.empty()) {
      const safetensors::WriteOutcome target = safetensors::check_target(options_.output);
      if (target.result != safetensors::WriteResult::kWritten) {
        return output_.fail(kExitUsage, "invalid_argument", target.message);
      }
    }
    if (!options_.repeat.empty()) {
      const Expected<std::int64_t> repeat = parse_whole(options_.repeat, "--repeat", 1, kMaxRepeat);
      if (!repeat) return output_.fail(repeat.status());
      repeat_ = *repeat;
    }
    Expected<Policy> policy = policy_of(options_.common);
    if (!policy) return output_.fail(policy.status());
    policy_ = *std::move(policy);
    return kExitOk;
  }

  int load() {
    // Before the file: a bad variable is reported whatever the file holds.
    if (const Status status = env_status(read_env()); !status) return output_.fail(status);
    Expected<RunInput> input = load_input(options_.file, joined(options_.words), options_.grad);
    if (!input) return output_.fail(input.status());
    input_.emplace(*std::move(input));
    if (options_.grad) {
      Expected<UpstreamGradients> upstream = load_upstream(*input_);
      if (!upstream) return output_.fail(upstream.status());
      upstream_ = *std::move(upstream);
      output_.document()["d_out"] = upstream_.from_file ? "file" : "made";
    }
    Expected<Env> env = env_of(options_.common, input_->c, /*must_run=*/true);
    if (!env) return output_.fail(env.status());
    context_ = std::make_unique<Context>(*std::move(env));
    output_.apply_to(*context_);
    output_.document()["file"] = printable(options_.file);
    output_.document()["case"] = to_string(input_->c);
    return kExitOk;
  }

  int choose() {
    const Selection selection = explain(*context_, input_->c.params, policy_);
    output_.document()["selection"] = Json::parse(to_json(selection));
    output_.print(highlight(output_, to_string(selection)) + "\n");
    if (!selection.ok()) {
      return output_.fail(kExitNoBackend, "no_backend", "no backend can run this problem");
    }
    chosen_.push_back(selection.chosen);
    for (const Verdict& verdict : selection.candidates) {
      const bool other = verdict.usable && verdict.enabled && !verdict.chosen;
      if (options_.all_backends && other) chosen_.push_back(verdict.backend);
    }
    return kExitOk;
  }

  int run_all() {
    struct Ticker {
      Progress bar;
      std::int64_t done = 0;
    };
    Timing timing{repeat_, nullptr, nullptr};
    const int rounds = 1 + (options_.profile ? 1 : 0) + (options_.grad ? 1 : 0);
    Ticker ticker{{output_, "timed runs",
                   static_cast<std::int64_t>(chosen_.size()) * timing.max_runs() * rounds}};
    timing.user = &ticker;
    timing.after_each = [](void* user) {
      auto* t = static_cast<Ticker*>(user);
      t->bar.update(++t->done);
    };
    for (const BackendRef& backend : chosen_) {
      if (const int code = run_one(backend, timing); code != kExitOk) return code;
    }
    return kExitOk;
  }

  int run_one(const BackendRef& backend, const Timing& timing) {
    Expected<BackendRun> run = run_on_backend(*context_, *input_, backend, policy_, timing);
    if (!run) return output_.fail(run.status());
    Checked checked;
    checked.run = *std::move(run);
    checked.padding = check_padding(*input_, checked.run.outputs);
    if (options_.profile) {
      Expected<Profile> profile =
          profile_on_backend(*context_, *input_, checked.run, policy_, timing);
      if (!profile) return output_.fail(profile.status());
      checked.profile = *std::move(profile);
    }
    if (options_.grad) {
      if (const int code = run_backward_once(checked, timing); code != kExitOk) return code;
    }
    results_.push_back(std::move(checked));
    return kExitOk;
  }

  int run_backward_once(Checked& checked, const Timing& timing) {
    Expected<GradRun> back =
        run_backward(*context_, *input_, upstream_, checked.run, policy_, timing);
    if (!back) return output_.fail(back.status());
    checked.back = *std::move(back);
    return kExitOk;
  }

  int find_truth() {
    if (options_.no_check) return kExitOk;
    const RunOutputs& outputs = results_.front().run.outputs;
    Expected<oracle::Truth> truth = oracle::compute(input_->with(outputs));
    if (!truth) return output_.fail(truth.status());
    truth_.emplace(*std::move(truth));
    if (!options_.grad) return kExitOk;
    Expected<oracle::GradTruth> gradients =
        oracle::compute_gradients(grad_request(*input_, upstream_, outputs, {}));
    if (!gradients) return output_.fail(gradients.status());
    gradients_.emplace(*std::move(gradients));
    return kExitOk;
  }

  Dtype probs_of(const Checked& checked, const KernelPlan& kernel,
                 Claims BackendInfo::*direction) const {
    return conformance::claimed_probs(*context_, checked.run.backend, input_->c.params, kernel,
                                      direction);
  }

  int compare_all() {
    for (Checked& checked : results_) {
      const RunOutputs& outputs = checked.run.outputs;
      if (truth_) {
        checked.comparison =
            conformance::compare(input_->with(outputs), *truth_,
                                 probs_of(checked, checked.run.kernel, &BackendInfo::forward));
      }
      if (!gradients_) continue;
      checked.gradients = conformance::compare_gradients(
          grad_request(*input_, upstream_, outputs, checked.back->outputs), *gradients_,
          probs_of(checked, checked.back->kernel, &BackendInfo::backward));
    }
    return kExitOk;
  }

  int show() {
    return show_results(output_, *input_, results_)
               ? kExitOk
               : output_.fail(kExitFailed, "check_failed",
                              "a result is outside of its tolerance, or padding is not zero");
  }

  int write() {
    output_.document()["output"] = nullptr;
    if (options_.output.empty()) return kExitOk;
    const Checked& first = results_.front();
    const RunOutputs& outputs = first.run.outputs;
    std::vector<safetensors::TensorToWrite> tensors;
    const auto add = [&](const char* name, const OwnedTensor& tensor) {
      if (tensor.shape.empty()) return;
      tensors.push_back({name, tensor.dtype, tensor.shape, tensor.bytes.data()});
    };
    add("out", outputs.out);
    add("lse", outputs.lse);
    add("saved_stats", outputs.saved);
    add("scores_out", outputs.scores);
    if (first.back) {
      const GradOutputs& g = first.back->outputs;
      add("d_q", g.d_q);
      add("d_k", g.d_k);
      add("d_v", g.d_v);
      add("d_bias", g.d_bias);
      add("d_sinks", g.d_sinks);
    }
    const safetensors::Metadata metadata = {{"regard.backend", to_string(first.run.backend)},
                                            {"regard.case", to_string(input_->c)},
                                            {"regard.version", context_->env().version}};
    const DeferSignals defer;
    const safetensors::WriteOutcome outcome =
        safetensors::write_file(options_.output, tensors, metadata, interrupted);
    switch (outcome.result) {
      case safetensors::WriteResult::kWritten: break;
      case safetensors::WriteResult::kInterrupted: return output_.fail_interrupted();
      case safetensors::WriteResult::kRefused:
        return output_.fail(kExitUsage, "invalid_argument", outcome.message);
      case safetensors::WriteResult::kFailed:
        return output_.fail(kExitFailed, "output_failed", outcome.message);
    }
    output_.document()["output"] = printable(options_.output);
    output_.print(fmt::format("wrote     {} ({} of {})\n", printable(options_.output),
                              first.back ? "out, lse and gradients" : "out and lse",
                              to_string(first.run.backend)));
    return kExitOk;
  }

  Output& output_;
  const RunFileOptions& options_;
  std::int64_t repeat_ = 0;
  Policy policy_;
  std::optional<RunInput> input_;
  std::unique_ptr<Context> context_;
  std::vector<BackendRef> chosen_;  // the selected one first
  std::optional<oracle::Truth> truth_;
  UpstreamGradients upstream_;  // with --grad
  std::optional<oracle::GradTruth> gradients_;
  std::vector<Checked> results_;
};

/// Becomes the program for ranks, which lies beside this one. Returns where it cannot.
int run_as_rank(Output& output, const RunFileOptions& options) {
  const bool has_others = options.all_backends || options.no_check || options.profile ||
                          options.grad || !options.output.empty() || !options.repeat.empty();
  if (has_others) {
    return output.fail(kExitUsage, "invalid_argument",
                       "options must be left out under mpirun: the words of a case say what runs");
  }
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (own.parent_path() / "regard-ranks").string();
  if (error || access(program.c_str(), X_OK) != 0) {
    return output.fail(kExitFailed, "unavailable",
                       "under mpirun " + program + " must exist: build regard with REGARD_MPI=ON");
  }
  const std::string words = options.file + " " + joined(options.words);
  execl(program.c_str(), program.c_str(), words.c_str(), nullptr);
  return output.fail(kExitFailed, "unavailable", program + " does not start");
}

}  // namespace

Command add_run(CLI::App& app) {
  CLI::App* verb = add_verb(
      app, "run", "Attention on the tensors of a file: result, error against the oracle, time");
  const auto options = std::make_shared<RunFileOptions>();
  add_positional(*verb, "file", options->file, true,
                 {"FILE",
                  "A safetensors file with q, k, v and, optionally, masks, lengths, ...; under "
                  "mpirun a case"});
  add_flag(*verb, "--all-backends", options->all_backends,
           "Every usable backend, not the chosen one alone");
  add_value(*verb, "-o,--output", options->output,
            {"FILE", "Write out, lse and gradients to this safetensors file"});
  add_value(*verb, "--option", options->words,
            {"WORDS", "Words of a case, over the file's regard.options: 'causal diag=br'"});
  add_value(*verb, "--repeat", options->repeat,
            {"N", "Timed runs of each backend", "up to 7 in some 2 s"});
  add_flag(*verb, "--profile", options->profile,
           "Repeat the calls under a profiler and show where time goes");
  add_flag(*verb, "--grad", options->grad, "The backward too: gradients, their errors and times");
  add_flag(*verb, "--no-check", options->no_check, "Leave out the comparison with the oracle");
  add_common_flags(*verb, options->common);
  return {verb, [options] {
            Output output("run", options->common.output);
            if (distributed::ranks_of_launcher() > 0)
              return output.finish(run_as_rank(output, *options));
            return output.finish(RunVerb(output, *options).run());
          }};
}

}  // namespace regard::cli
