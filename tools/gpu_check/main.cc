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
#include "tools/gpu_check/carrier.h"
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

// What CUDNN claims is too little of the random cases to be met there often.
constexpr const char* kDirected[] = {
    "b2 hq4 hkv2 sq128 skv128 d64 bf16 lse",
    "b2 hq4 hkv2 sq127 skv257 d128 bf16 lse layout=bshd",
    "b1 hq2 sq65 skv65 d256 f16 causal diag=tl lse",
    "b2 hq4 hkv1 sq100 skv300 d64 f16 causal diag=br lse",
    "b1 hq2 sq300 skv100 d64 bf16 causal diag=tl lse",
    "b1 hq2 sq256 skv256 d64 bf16 window=0,0 diag=tl lse",
    "b1 hq2 sq256 skv256 d64 bf16 window=1,0 diag=tl lse",
    "b1 hq2 sq200 skv300 d72 bf16 window=31,7 diag=br lse",
    "b3 hq8 hkv2 sq1 skv777 d128 bf16 lse",
    "b1 hq2 sq64 skv64 d192 dv128 bf16 lse",
    "b2 hq4 hkv2 sq128 skv128 d64 bf16 lse grad",
    "b2 hq4 hkv2 sq127 skv257 d128 f16 layout=bshd lse grad",
    "b1 hq2 sq100 skv100 d64 bf16 causal diag=tl lse grad",
    "b1 hq4 hkv1 sq100 skv300 d80 f16 causal diag=br lse grad",
    "b1 hq2 sq256 skv256 d128 bf16 window=15,0 diag=tl lse grad",
    "b1 hq2 sq1000 skv1500 d64 bf16 causal diag=br lse",
};

constexpr const char* kSpeeds[] = {
    "b2 hq16 sq4096 d128 bf16",
    "b2 hq16 sq4096 d128 bf16 causal diag=tl",
    "b1 hq64 hkv8 sq8192 d128 bf16 causal diag=tl",
    "b2 hq32 sq4096 d64 bf16 causal diag=tl",
    "b1 hq16 sq8192 d256 bf16 causal diag=tl",
    "b2 hq16 sq4096 d128 bf16 lse grad",
    "b2 hq16 sq4096 d128 bf16 causal diag=tl lse grad",
    "b1 hq16 sq4096 d256 bf16 causal diag=tl lse grad",
    "b8 hq32 hkv8 sq1 skv8192 d128 bf16",
    "b2 hq16 sq2048 d64 f32",
    "b1 hq8 sq64 d64 bf16",
};

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
        carrier_(memory, !options.dry_run),
        begin_(Clock::now()) {
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
    if (!options_.dry_run) speeds();
    report_.complete = !late(1.0);
    report_.write();
    bool ok = !report_.tallies.empty();
    for (const auto& [backend, tally] : report_.tallies) {
      std::printf("%-10s %ld passed, %ld refused, %ld failed\n", backend.c_str(), tally.passed,
                  tally.refused, tally.failed);
      ok = ok && tally.failed == 0;
    }
    return ok;
  }

 private:
  /// Whether that share of the time is over.
  bool late(double share) const {
    const std::chrono::duration<double> gone = Clock::now() - begin_;
    return gone.count() > share * options_.seconds;
  }

  void measure_device() {
    report_.facts = read_facts(with_devices(context_.env()));
    report_.idle_clock_mhz = sm_clock_mhz();
    report_.matmul_tflops = matmul_tflops();
    report_.clock_mhz = sm_clock_mhz();
    report_.copy_gbps = copy_gbps();
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
    for (const BackendInfo& info : backends_) {
      conformance::RunOptions run;
      run.carrier = &carrier_;
      run.check_fixes = false;  // decisions are checked where there is no device
      run.twice = info.determinism != Determinism::kNone;
      carrier_.begin_case();
      const conformance::Report seen =
          conformance::run_prepared(context_, &*prepared, info.ref, run);
      Tally& tally = report_.tallies[to_string(info.ref)];
      switch (seen.outcome) {
        case conformance::Outcome::kPassed: ++tally.passed; break;
        case conformance::Outcome::kRefused: ++tally.refused; break;
        case conformance::Outcome::kFailed:
          ++tally.failed;
          if (report_.failures.size() < 40) report_.failures.push_back(seen.text);
          std::printf("%s\n", seen.text.c_str());
          break;
      }
      tally.worst_share = std::max({tally.worst_share, seen.comparison.out_margin,
                                    seen.comparison.lse_margin, seen.gradients.margin});
    }
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

  void speeds() {
    for (const char* words : kSpeeds) {
      for (const BackendInfo& info : backends_) {
        if (late(0.95)) return;
        Case c = parse_case(words).value();
        c.params.device = memory_.device();
        canonicalize(c);
        // Unfused scores of these sizes take MATH minutes.
        const bool is_math = info.ref.id == BackendId::kMath;
        if (is_math && c.params.seqlen_q * c.params.seqlen_kv > std::int64_t{2048} * 2048) continue;
        const Selection selection =
            explain(context_, c.params, conformance::policy_for(c, info.ref));
        const Verdict* verdict = selection.find(info.ref);
        if (verdict == nullptr || !verdict->usable) continue;
        report_.rows.push_back({words, to_string(info.ref), measure(context_, c, info.ref)});
        report_.write();
      }
    }
  }

  const Options& options_;
  DeviceMemory& memory_;
  DeviceCarrier carrier_;
  const Clock::time_point begin_;
  Context context_;
  std::vector<BackendInfo> backends_;
  Report report_;
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
