#include "tools/guide/grid.h"

#include <fmt/format.h>

#include <algorithm>

namespace regard::guide {
namespace {

using Sizes = std::vector<std::int64_t>;

Point point_of(double x, std::string problem) {
  Point point;
  point.x = x;
  point.label = count_words(static_cast<std::int64_t>(x));
  point.problem = std::move(problem);
  return point;
}

/// A sweep over cases, `text` with the size for {0}.
Sweep sweep_of(const char* id, const char* title, const char* x_title, const char* text,
               const Sizes& sizes) {
  Sweep sweep;
  sweep.id = id;
  sweep.title = title;
  sweep.x_title = x_title;
  for (const std::int64_t size : sizes) {
    sweep.points.push_back(
        point_of(static_cast<double>(size), fmt::format(fmt::runtime(text), size)));
  }
  return sweep;
}

Sweep with_peak(Sweep sweep, double gflops, const char* title) {
  sweep.limit = gflops;
  sweep.limit_title = title;
  return sweep;
}

Sweep in_seconds(Sweep sweep) {
  sweep.unit = Unit::kSeconds;
  return sweep;
}

}  // namespace

const std::vector<CacheFormat>& cache_formats() {
  static const std::vector<CacheFormat> formats = {{"bf16", ""},
                                                   {"f8e4m3", " kv=f8e4m3"},
                                                   {"i8", " kv=i8 scales=token"},
                                                   {"u4", " kv=u4 scales=token"}};
  return formats;
}

std::vector<std::int32_t> thread_counts(std::int32_t all) {
  std::vector<std::int32_t> counts;
  for (std::int32_t count = 1; count < all; count *= 2) counts.push_back(count);
  counts.push_back(all);
  return counts;
}

const std::vector<ErrorCase>& error_cases() {
  static const std::vector<ErrorCase> cases = {{"f32", "f32"},
                                               {"bf16", "bf16"},
                                               {"f16", "f16"},
                                               {"f64", "f64"},
                                               {"f8e4m3, out bf16", "f8e4m3"},
                                               {"bf16, kv i8", "bf16 kv=i8 scales=token"},
                                               {"bf16, kv u4", "bf16 kv=u4 scales=token"},
                                               {"f32", "f32 grad"},
                                               {"bf16", "bf16 grad"}};
  return cases;
}

std::vector<Sweep> make_grid(bool quick, const std::vector<Case>& problems,
                             const MachineRates& rates) {
  std::vector<Sweep> sweeps;
  if (!problems.empty()) {
    Sweep own = in_seconds(sweep_of("problems", "Your shapes", "problem", "", {}));
    own.log_x = false;
    for (const Case& c : problems) {
      own.points.push_back(point_of(static_cast<double>(own.points.size()), to_string(c)));
      own.points.back().label = own.points.back().problem;
    }
    sweeps.push_back(std::move(own));
  }
  const Sizes lengths = quick ? Sizes{64, 256, 1024} : Sizes{64, 128, 256, 512, 1024, 2048, 4096};
  const Sizes caches = quick ? Sizes{1024, 16384} : Sizes{256, 1024, 4096, 16384, 65536};
  const char* const peak = "the machine's peak";
  sweeps.push_back(with_peak(
      sweep_of("length_f32", "Prompts in f32", "positions", "b1 hq8 sq{0} d64 f32 causal", lengths),
      rates.f32_gflops, peak));
  sweeps.push_back(with_peak(sweep_of("length_bf16", "Prompts in bf16", "positions",
                                      "b1 hq8 sq{0} d64 bf16 causal", lengths),
                             rates.bf16_gflops, peak));
  sweeps.push_back(
      with_peak(sweep_of("head_dim", "Head dims", "elements", "b1 hq8 sq1024 d{0} f32 causal",
                         quick ? Sizes{64, 128} : Sizes{16, 32, 64, 128, 256, 576, 1024}),
                rates.f32_gflops, peak));
  sweeps.push_back(with_peak(sweep_of("gradients", "Gradients in f32", "positions",
                                      "b1 hq8 sq{0} d64 f32 causal grad saved",
                                      quick ? Sizes{256, 1024} : Sizes{128, 256, 512, 1024, 2048}),
                             rates.f32_gflops, peak));
  Sweep decode = sweep_of("decode", "Decode in bf16", "keys in the cache",
                          "b1 hq32 hkv8 sq1 skv{0} d128 bf16", caches);
  decode.unit = Unit::kGbps;
  sweeps.push_back(with_peak(std::move(decode), rates.read_gbps, "bandwidth of memory"));
  sweeps.push_back(in_seconds(sweep_of("cache", "Types of the cache", "keys in the cache",
                                       "b1 hq32 hkv8 sq1 skv{0} d128 bf16", caches)));
  Sweep padding = in_seconds(sweep_of("padding", "Padded or packed", "% of padding", "",
                                      quick ? Sizes{0, 50} : Sizes{0, 10, 25, 50, 75, 90}));
  padding.log_x = false;
  sweeps.push_back(std::move(padding));
  Sweep threads = in_seconds(sweep_of("threads", "Threads", "threads", "", {}));
  for (const std::int32_t count : thread_counts(rates.threads)) {
    threads.points.push_back(point_of(count, ""));
  }
  sweeps.push_back(std::move(threads));
  Sweep memory = sweep_of("memory", "Memory", "positions", "b1 hq8 sq{0} d64 f32 causal",
                          {128, 512, 2048, 8192, 32768, 131072});
  memory.unit = Unit::kBytes;
  sweeps.push_back(std::move(memory));
  return sweeps;
}

}  // namespace regard::guide
