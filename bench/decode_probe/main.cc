// Decode against a plain kernel (kernel.inl) and the rate at which the same threads read the same
// memory, in alternation: what share of the bandwidth each reaches.
//
//     regard_bench_decode [--threads N] [--megabytes 512] [--rounds 9] [--only TEXT] [--huge]
//     regard_bench_decode --pages 1,16,256 [...]  the library alone, on the same memory in pages
//
// Pages of so many keys, [pages, Hkv, keys, D] or with layout=bshd [pages, keys, Hkv, D], stand in
// a random order.
// Each rate is the best of its rounds, so that a machine that others use, too, is not measured for
// what they take. Sets of K and V of that size in all are read in turn; it must exceed the share of
// the last cache that this process has. --huge asks for huge pages, which may not be granted: the
// line says what of the memory has them. Results of both are compared before anything is measured.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "decode_probe/kernel.h"
#include "regard/attention.h"

namespace {

using probe::HeadCall;
using Kernel = void (*)(const HeadCall&);

struct Options {
  int threads = 2;
  std::int64_t megabytes = 512;
  int rounds = 9;
  std::string only;
  bool huge = false;
  std::vector<std::int64_t> pages;  // keys of one
};

/// Threads that wait between calls, so that a round starts none.
class Team {
 public:
  explicit Team(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
  }
  ~Team() {
    ends_ = true;
    ++round_;
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  void run(std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
    task_ = &task;
    tasks_ = tasks;
    next_ = 0;
    busy_ = static_cast<int>(workers_.size());
    ++round_;
    round_.notify_all();
    take();
    while (busy_.load() > 0) {
    }
  }

 private:
  void take() {
    for (std::int64_t i = next_++; i < tasks_; i = next_++) (*task_)(i);
  }
  void serve() {
    int seen = 0;
    for (;;) {
      round_.wait(seen);
      ++seen;
      if (ends_) return;
      take();
      --busy_;
    }
  }
  std::vector<std::thread> workers_;
  const std::function<void(std::int64_t)>* task_ = nullptr;
  std::int64_t tasks_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> busy_{0}, round_{0};
  std::atomic<bool> ends_{false};
};

/// Memory for all sets of K and V of every case.
class Arena {
 public:
  Arena(std::int64_t bytes, bool huge) : bytes_(static_cast<std::size_t>(bytes)) {
    void* const memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      std::fprintf(stderr, "regard_bench_decode: %lld bytes of memory are not available\n",
                   static_cast<long long>(bytes));
      std::exit(1);
    }
    madvise(memory, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    data_ = static_cast<char*>(memory);
  }
  ~Arena() { munmap(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  char* data() const { return data_; }

  /// Numbers about 0 in the type.
  void fill(bool bf16) const {
    std::minstd_rand random(1);
    std::vector<float> values(4096);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    std::vector<std::uint16_t> halves(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t word;
      std::memcpy(&word, &values[i], sizeof(word));
      halves[i] = static_cast<std::uint16_t>(word >> 16);
    }
    const char* const from = bf16 ? reinterpret_cast<const char*>(halves.data())
                                  : reinterpret_cast<const char*>(values.data());
    // Blocks of an odd length, so that heads differ.
    const std::size_t block = (bf16 ? 4091 : 4093) * (bf16 ? sizeof(std::uint16_t) : sizeof(float));
    for (std::size_t at = 0; at < bytes_; at += block) {
      std::memcpy(data_ + at, from, std::min(block, bytes_ - at));
    }
  }

 private:
  std::size_t bytes_;
  char* data_;
};

/// MB of this process in huge pages.
double huge_megabytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  double kilobytes = 0.0;
  while (file >> word) {
    if (word == "AnonHugePages:") file >> kilobytes;
  }
  return kilobytes / 1024;
}

struct Shape {
  std::int64_t batch, heads_kv, group, length, dim;
  bool bf16, bshd;
  std::int64_t element() const { return bf16 ? 2 : 4; }
  std::int64_t elements() const { return batch * heads_kv * length * dim; }
  std::string words() const {
    std::string text;
    const auto add = [&](const char* name, std::int64_t n) {
      text += name;
      text += std::to_string(n);
    };
    add("b", batch);
    add(" hq", heads_kv * group);
    add(" hkv", heads_kv);
    add(" sq1 skv", length);
    add(" d", dim);
    text += bf16 ? " bf16" : " f32";
    if (bshd) text += " layout=bshd";
    return text;
  }
};

regard::Env with_threads(int threads) {
  regard::Env env = regard::read_env();
  env.concurrency = threads;
  return env;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        arena_(options.megabytes << 20, options.huge),
        team_(options.threads),
        context_(with_threads(options.threads)) {}

  int run() {
    std::printf("%-52s %6s  %14s", "GB/s (share of read)", "read", "regard");
    for (const std::int64_t size : options_.pages) {
      std::printf(" %14s", ("pages of " + std::to_string(size)).c_str());
    }
    std::printf(options_.pages.empty() ? " %14s %14s\n" : "\n", "probe avx2", "probe avx512");
    for (const bool bf16 : {false, true}) {
      arena_.fill(bf16);
      for (const bool bshd : {false, true}) {
        for (const std::int64_t dim : {64, 96, 128, 256}) {
          for (const std::int64_t group : {1, 2, 4, 8}) {
            const Shape shape{4, 8, group, 524288 / dim, dim, bf16, bshd};
            if (shape.words().find(options_.only) != std::string::npos && !measure(shape)) return 1;
          }
        }
      }
    }
    std::printf("%.0f MB in sets, %.0f MB of this process in huge pages, %d threads\n",
                static_cast<double>(options_.megabytes), huge_megabytes(), options_.threads);
    return 0;
  }

 private:
  bool measure(const Shape& s) {
    const std::int64_t bytes = 2 * s.elements() * s.element();
    const std::int64_t sets = std::max<std::int64_t>(1, (options_.megabytes << 20) / bytes);
    q_.assign(static_cast<std::size_t>(s.batch * s.heads_kv * s.group * s.dim), 0.0f);
    std::minstd_rand random(2);
    std::normal_distribution<float> normal;
    for (float& value : q_) {  // exact in bf16, so that both compute the same
      const float drawn = normal(random);
      std::uint32_t word;
      std::memcpy(&word, &drawn, sizeof(word));
      word &= 0xffff0000u;
      std::memcpy(&value, &word, sizeof(value));
    }
    q_halves_.resize(q_.size());
    for (std::size_t i = 0; i < q_.size(); ++i) {
      std::uint32_t word;
      std::memcpy(&word, &q_[i], sizeof(word));
      q_halves_[i] = static_cast<std::uint16_t>(word >> 16);
    }
    out_.assign(q_.size(), 0.0f);
    probe_out_.assign(q_.size(), 0.0f);
    const regard::Expected<regard::AttentionParams> params = regard::describe(request(s, 0));
    if (!params) return fail(s, params.status());
    const std::vector<Kernel> kernels =
        options_.pages.empty() ? kernels_of(s) : std::vector<Kernel>{};
    std::vector<std::vector<double>> seconds(2 + options_.pages.size() + kernels.size());
    std::int64_t set = 0;
    const auto time = [&](std::vector<double>* to, const auto& call) {
      const auto start = std::chrono::steady_clock::now();
      call(set++ % sets);
      to->push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    };
    regard::Status status;
    for (int round = 0; round < options_.rounds; ++round) {
      time(&seconds[0], [&](std::int64_t at) { read(s, at); });
      time(&seconds[1],
           [&](std::int64_t at) { status = regard::attention(context_, request(s, at)); });
      if (!status.ok()) return fail(s, status);
      for (std::size_t i = 0; i < options_.pages.size(); ++i) {
        make_tables(s, options_.pages[i]);
        time(&seconds[2 + i], [&](std::int64_t at) {
          status = regard::attention(context_, request_in_pages(s, at, options_.pages[i]));
        });
        if (!status.ok()) return fail(s, status);
      }
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        time(&seconds[2 + i], [&](std::int64_t at) { probe(s, at, kernels[i]); });
      }
    }
    for (const Kernel kernel : kernels) {
      if (!agrees(s, kernel)) return false;
    }
    std::vector<double> rates;
    for (const std::vector<double>& of : seconds) {
      rates.push_back(static_cast<double>(bytes) / *std::min_element(of.begin(), of.end()) / 1e9);
    }
    std::printf("%-52s %6.2f", s.words().c_str(), rates[0]);
    for (std::size_t i = 1; i < rates.size(); ++i) {
      std::printf("  %6.2f (%4.2f)", rates[i], rates[i] / rates[0]);
    }
    std::printf("\n");
    std::fflush(stdout);
    return true;
  }

  static bool fail(const Shape& s, const regard::Status& status) {
    std::fprintf(stderr, "%s: %s\n", s.words().c_str(), status.message().c_str());
    return false;
  }

  static std::vector<Kernel> kernels_of(const Shape& s) {
    std::vector<Kernel> kernels;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      kernels.push_back(s.bf16 ? probe::decode_bf16_avx2 : probe::decode_f32_avx2);
    }
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
      kernels.push_back(s.bf16 ? probe::decode_bf16_avx512 : probe::decode_f32_avx512);
    }
#endif
    return kernels;
  }

  char* keys(const Shape& s, std::int64_t set) const {
    return arena_.data() + set * 2 * s.elements() * s.element();
  }
  char* values(const Shape& s, std::int64_t set) const {
    return keys(s, set) + s.elements() * s.element();
  }

  regard::AttentionRequest request(const Shape& s, std::int64_t set) {
    using regard::make_view;
    const regard::Dtype dtype = s.bf16 ? regard::Dtype::kBf16 : regard::Dtype::kF32;
    const std::int64_t heads = s.heads_kv * s.group, head = s.length * s.dim;
    const auto cache = [&](char* data) {
      const std::int64_t by_head = s.bshd ? s.dim : head,
                         by_key = s.bshd ? s.heads_kv * s.dim : s.dim;
      return make_view(data, dtype, {s.batch, s.heads_kv, s.length, s.dim},
                       {s.heads_kv * head, by_head, by_key, 1});
    };
    const auto rows = [&](void* data, regard::Dtype of) {
      return make_view(data, of, {s.batch, heads, 1, s.dim}, {heads * s.dim, s.dim, s.dim, 1});
    };
    regard::AttentionRequest r;
    r.q = s.bf16 ? rows(q_halves_.data(), dtype) : rows(q_.data(), dtype);
    r.k = cache(keys(s, set));
    r.v = cache(values(s, set));
    r.out = rows(out_.data(), regard::Dtype::kF32);
    return r;
  }

  /// Page numbers of all sequences, in a random order, and their lengths.
  void make_tables(const Shape& s, std::int64_t size) {
    table_.resize(static_cast<std::size_t>(s.batch * s.length / size));
    std::iota(table_.begin(), table_.end(), 0);
    lengths_.assign(static_cast<std::size_t>(s.batch),
                    static_cast<std::int32_t>(s.length / size * size));
    std::shuffle(table_.begin(), table_.end(), std::minstd_rand(3));
  }

  regard::AttentionRequest request_in_pages(const Shape& s, std::int64_t set, std::int64_t size) {
    regard::AttentionRequest r = request(s, set);
    const auto count = static_cast<std::int64_t>(table_.size());
    const std::int64_t head = s.bshd ? s.dim : size * s.dim;
    const std::int64_t key = s.bshd ? s.heads_kv * s.dim : s.dim;
    for (regard::TensorView* view : {&r.k, &r.v}) {
      *view = regard::make_view(view->data, view->dtype, {count, s.heads_kv, size, s.dim},
                                {s.heads_kv * size * s.dim, head, key, 1});
    }
    r.page_table = regard::make_view(table_.data(), {s.batch, count / s.batch});
    r.seqlens_kv = regard::make_view(lengths_.data(), {s.batch});
    return r;
  }

  void probe(const Shape& s, std::int64_t set, Kernel kernel) {
    team_.run(s.batch * s.heads_kv, [&](std::int64_t task) {
      const std::int64_t b = task / s.heads_kv, h = task % s.heads_kv;
      const std::int64_t first =
          s.bshd ? b * s.heads_kv * s.length * s.dim + h * s.dim : task * s.length * s.dim;
      const std::int64_t row = task * s.group * s.dim;
      kernel({q_.data() + row, keys(s, set) + first * s.element(),
              values(s, set) + first * s.element(), probe_out_.data() + row, s.group, s.dim,
              s.length, s.bshd ? s.heads_kv * s.dim : s.dim,
              1.44269504f / std::sqrt(static_cast<float>(s.dim))});
    });
  }

  /// Sums of words of K, then of V, in as many blocks as there are heads.
  void read(const Shape& s, std::int64_t set) {
    const std::int64_t tasks = s.batch * s.heads_kv;
    const std::int64_t words = 2 * s.elements() * s.element() / tasks / 8;
    team_.run(tasks, [&](std::int64_t task) {
      const auto* const from = reinterpret_cast<const std::uint64_t*>(keys(s, set)) + task * words;
      std::uint64_t sums[8] = {};
      for (std::int64_t i = 0; i + 8 <= words; i += 8) {
        for (int x = 0; x < 8; ++x) sums[x] += from[i + x];
      }
      for (const std::uint64_t sum : sums) read_ += sum;
    });
  }

  bool agrees(const Shape& s, Kernel kernel) {
    const regard::Status status = regard::attention(context_, request(s, 0));
    if (!status.ok()) return fail(s, status);
    probe(s, 0, kernel);
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (std::abs(out_[i] - probe_out_[i]) <= 1e-2f) continue;
      std::fprintf(stderr, "%s: element %zu is %g, the probe's %g\n", s.words().c_str(), i,
                   static_cast<double>(out_[i]), static_cast<double>(probe_out_[i]));
      return false;
    }
    return true;
  }

  Options options_;
  Arena arena_;
  Team team_;
  regard::Context context_;
  std::vector<float> q_, out_, probe_out_;
  std::vector<std::uint16_t> q_halves_;
  std::vector<std::int32_t> table_, lengths_;
  std::atomic<std::uint64_t> read_{0};
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--huge") == 0) {
      options.huge = true;
    } else if (std::strcmp(argv[i], "--threads") == 0 && has_value) {
      options.threads = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--megabytes") == 0 && has_value) {
      options.megabytes = std::max(64LL, std::atoll(argv[++i]));
    } else if (std::strcmp(argv[i], "--rounds") == 0 && has_value) {
      options.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && has_value) {
      options.only = argv[++i];
    } else if (std::strcmp(argv[i], "--pages") == 0 && has_value) {
      std::istringstream sizes(argv[++i]);
      for (std::string size; std::getline(sizes, size, ',');) {
        options.pages.push_back(std::max(1, std::atoi(size.c_str())));
      }
    } else {
      std::fprintf(stderr,
                   "usage: %s [--threads N] [--megabytes N] [--rounds N] [--only TEXT] [--huge]"
                   " [--pages N,...]\n",
                   argv[0]);
      return 2;
    }
  }
  return Bench(options).run();
}
