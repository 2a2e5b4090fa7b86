// Conformance on a CUDA device for each of its backends, then a table of speeds beside the device's
// own rates. scripts/gpu_check.sh builds and runs it.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/run.h"
#include "tools/gpu_check/cases.h"
#include "tools/gpu_check/device_rates.h"
#include "tools/gpu_check/device_runner.h"
#include "tools/gpu_check/measure.h"
#include "tools/gpu_check/report.h"

namespace regard::gpu_check {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: regard_gpu_check [--seconds N] [--cases N] [--out PREFIX] [--dry-run]\n"
    "  --seconds N   stop after that many, keeping what there is (420)\n"
    "  --cases N     random cases for each backend, half of them with gradients (2000)\n"
    "  --out PREFIX  write PREFIX.json and PREFIX.md (gpu_check)\n"
    "  --dry-run     host memory plays the device and the CPU's backends run: checks this "
    "program\n";

struct Options {
  double seconds = 420;
  long cases = 2000;
  std::string out = "gpu_check";
  bool dry_run = false;
};

bool parse(int argc, char** argv, Options* o) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--dry-run") {
      o->dry_run = true;
      continue;
    }
    if (value == nullptr) return false;
    ++i;
    if (word == "--seconds") {
      o->seconds = std::atof(value);
    } else if (word == "--cases") {
      o->cases = std::atol(value);
    } else if (word == "--out") {
      o->out = value;
    } else {
      return false;
    }
  }
  return o->seconds > 0 && o->cases >= 0;
}

class Check {
 public:
  Check(const Options& options, DeviceMemory& memory)
      : options_(options),
        memory_(memory),
        device_runner_(memory, !options.dry_run),
        begin_(Clock::now()),
        bench_{context_, memory, options.dry_run ? Effort{0.2, 3} : Effort{}, options.dry_run} {
    report_.prefix = options.out;
    report_.dry_run = options.dry_run;
    for (const BackendInfo& info : context_.backends()) {
      if (info.built && info.device == memory.device().type) backends_.push_back(info);
    }
  }

  bool run() {
    if (!options_.dry_run) measure_device();
    directed();
    random();
    overheads();
    comparisons();
    speeds();
    report_.complete = !was_cut_;
    report_.write();
    bool ok = !report_.tallies.empty();
    for (const auto& [backend, tally] : report_.tallies) {
      std::printf("%-28s %ld passed, %ld refused, %ld failed\n", backend.c_str(), tally.passed,
                  tally.refused, tally.failed);
      ok = ok && tally.failed == 0;
    }
    return ok;
  }

 private:
  /// Whether that share of the time is over, or the device lost, so that something is left out.
  bool late(double share) {
    const std::chrono::duration<double> gone = Clock::now() - begin_;
    const bool is_late = is_lost_ || gone.count() > share * options_.seconds;
    was_cut_ = was_cut_ || is_late;
    return is_late;
  }

  static Env older_env(const Context& context) {
    Env env = with_devices(context.env());
    env.sm_version = std::min(env.sm_version, std::int32_t{75});
    return env;
  }

  void measure_device() {
    report_.facts = read_facts(with_devices(context_.env()));
    report_.idle_clock_mhz = sm_clock_mhz();
    report_.matmul_tflops = matmul_tflops(memory_);
    report_.clock_mhz = sm_clock_mhz();
    report_.copy_gbps = copy_gbps(memory_);
    report_.write();
  }

  void check(Case c) {
    c.params.device = memory_.device();
    canonicalize(c);
    Expected<conformance::PreparedCase> prepared = conformance::prepare(c);
    if (!prepared) {
      report_.failures.push_back(to_string(c) + ": " + prepared.status().to_string());
      ++report_.tallies["prepare"].failed;
      return;
    }
    const Dtype dtype = c.params.dtype_q;
    const bool is_half = dtype == Dtype::kBf16 || dtype == Dtype::kF16;
    for (const BackendInfo& info : backends_) {
      const std::string name = to_string(info.ref);
      check_on(context_, &*prepared, info, name);
      if (is_half && info.ref.id == BackendId::kEfficient) {
        check_on(older_, &*prepared, info, name + ", no tensor cores");
      }
    }
  }

  void check_on(Context& context, conformance::PreparedCase* prepared, const BackendInfo& info,
                const std::string& name) {
    if (is_lost_) return;
    conformance::RunOptions run;
    run.device_runner = &device_runner_;
    run.check_fixes = false;  // decisions are checked where there is no device
    run.twice = info.determinism != Determinism::kNone;
    device_runner_.begin_case();
    announce(to_string(prepared->source), name);
    const conformance::Report seen = conformance::run_prepared(context, prepared, info.ref, run);
    Tally& tally = report_.tallies[name];
    switch (seen.outcome) {
      case conformance::Outcome::kPassed: ++tally.passed; break;
      case conformance::Outcome::kRefused: ++tally.refused; break;
      case conformance::Outcome::kFailed:
        ++tally.failed;
        note_failure(seen.text);
        break;
    }
    tally.worst_share = std::max({tally.worst_share, seen.comparison.out_margin,
                                  seen.comparison.lse_margin, seen.gradients.margin});
  }

  /// What is tried now: the last line of the log of a run that a kernel hangs.
  static void announce(const std::string& words, const std::string& backend) {
    std::printf("%s on %s\n", words.c_str(), backend.c_str());
    std::fflush(stdout);
  }

  void note_failure(const std::string& text) {
    if (report_.failures.size() < 40) report_.failures.push_back(text);
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    const std::string error = memory_.wait();
    if (error.empty()) return;
    // A fault of a kernel is every later call's error: nothing more is to be learnt here.
    is_lost_ = true;
    report_.failures.push_back("the device is lost to this process: " + error);
    report_.write();
  }

  void directed() {
    std::uint64_t seed = 1;
    for (const char* words : kDirected) {
      if (late(0.5)) return;
      Expected<Case> c = parse_case(words);
      if (!c) {
        report_.failures.push_back(c.status().to_string());
        ++report_.tallies["prepare"].failed;
        continue;
      }
      c->data.seed = seed++;
      check(*c);
    }
    report_.write();
  }

  void random() {
    constexpr std::uint64_t kSeed = 1;
    for (long i = 0; i < options_.cases && !late(0.6); ++i) {
      const auto index = static_cast<std::uint64_t>(i / 2);
      check(i % 2 == 0 ? conformance::random_case(kSeed, index)
                       : conformance::random_grad_case(kSeed, index));
      if (i % 100 == 99) report_.write();
    }
    report_.write();
  }

  /// The case on the device; short in a dry run, whose host would take minutes.
  Case case_of(const char* words) const {
    Case c = parse_case(words).value();
    c.params.device = memory_.device();
    if (options_.dry_run) {
      constexpr std::int64_t kMax = 64;
      c.params.seqlen_q = std::min(c.params.seqlen_q, kMax);
      c.params.seqlen_kv = std::min(c.params.seqlen_kv, kMax);
    }
    canonicalize(c);
    return c;
  }
  bool runs(const Case& c, const BackendRef& backend) {
    const Selection selection = explain(context_, c.params, conformance::policy_for(c, backend));
    const Verdict* verdict = selection.find(backend);
    return verdict != nullptr && verdict->usable;
  }

  void overheads() {
    const Case c = case_of(kOverhead);
    for (const BackendInfo& info : backends_) {
      if (late(0.65)) return;
      if (!runs(c, info.ref)) continue;
      announce(kOverhead, to_string(info.ref));
      report_.overheads.push_back(
          {kOverhead, to_string(info.ref), measure_overhead(bench_, c, info.ref)});
    }
    report_.write();
  }

  void comparisons() {
    BackendRef backend;
    // The CPU has no CUDNN: another backend plays it.
    backend.id = options_.dry_run ? BackendId::kEfficient : BackendId::kCudnn;
    for (const char* words : kCompared) {
      const Case c = case_of(words);
      if (!runs(c, backend)) continue;
      for (const bool backward : {false, true}) {
        if (late(0.8)) return;
        announce(words, to_string(backend));
        report_.comparisons.push_back(
            {words, backward, compare_with_cudnn(bench_, c, backend, backward)});
        report_.write();
      }
    }
  }

  void speeds() {
    for (const char* words : kSpeeds) {
      const Case c = case_of(words);
      for (const BackendInfo& info : backends_) {
        if (late(0.95)) return;
        // Unfused scores of these sizes take MATH minutes.
        const bool is_math = info.ref.id == BackendId::kMath;
        if (is_math && c.params.seqlen_q * c.params.seqlen_kv > std::int64_t{2048} * 2048) continue;
        if (!runs(c, info.ref)) continue;
        announce(words, to_string(info.ref));
        report_.rows.push_back({words, to_string(info.ref), measure(bench_, c, info.ref)});
        report_.write();
      }
    }
  }

  const Options& options_;
  DeviceMemory& memory_;
  CudaDeviceRunner device_runner_;
  const Clock::time_point begin_;
  Context context_;
  Context older_{older_env(context_)};  // plans what devices without bf16 tensor cores run
  const Bench bench_;
  std::vector<BackendInfo> backends_;
  Report report_;
  bool was_cut_ = false;
  bool is_lost_ = false;
};

int run(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const std::unique_ptr<DeviceMemory> memory = options.dry_run ? host_memory() : cuda_memory();
  if (memory == nullptr) {
    std::fputs("regard_gpu_check: no CUDA device; --dry-run checks this program without one\n",
               stderr);
    return 3;
  }
  return Check(options, *memory).run() ? 0 : 1;
}

}  // namespace
}  // namespace regard::gpu_check

int main(int argc, char** argv) {
  try {
    return regard::gpu_check::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "regard_gpu_check: %s\n", error.what());
    return 1;
  }
}
