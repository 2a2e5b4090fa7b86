// regard_peak: this machine's limits as one line of JSON.
//
// usage: regard_peak [--threads N] [--isa NAME]... [--seconds S] [--bandwidth]
//   --threads N   threads at once (the CPUs of this process)
//   --isa NAME    scalar, avx2, avx512 or avx512_bf16; may come often (the best of this machine)
//   --seconds S   of each of the three rounds of a measurement (0.02)
//   --bandwidth   read bandwidth too, of 256 MiB

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/peak/rates.h"
#include "regard/env.h"

namespace {

struct Options {
  int threads = 1;
  double seconds = 0.02;
  bool bandwidth = false;
  std::vector<regard::Isa> isas;
};

int usage(const std::string& word) {
  std::fprintf(stderr,
               "regard_peak: %s: expected [--threads N] [--isa NAME]... [--seconds S] "
               "[--bandwidth]\n",
               word.c_str());
  return 2;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

// {"avx2": 123.4}, without those that cannot be measured.
template <class Rate>
std::string rates(const Options& options, regard::Isa available, Rate rate) {
  std::string out;
  for (const regard::Isa isa : options.isas) {
    const double gflops = rate(isa, available, options.threads, options.seconds);
    if (gflops <= 0.0) continue;
    char text[32];
    std::snprintf(text, sizeof text, ": %.2f", gflops);
    out += (out.empty() ? "" : ", ") + quoted(regard::to_string(isa)) + text;
  }
  return "{" + out + "}";
}

// The options, or the word that cannot be used in `wrong`.
Options parse(int argc, char** argv, std::string* wrong) {
  Options options;
  options.threads = 0;
  for (int i = 1; i < argc && wrong->empty(); ++i) {
    const std::string word = argv[i];
    if (word == "--bandwidth") {
      options.bandwidth = true;
      continue;
    }
    const std::string value = ++i < argc ? argv[i] : "";
    bool good = false;
    if (word == "--threads") {
      options.threads = std::atoi(value.c_str());
      good = options.threads >= 1 && options.threads <= 4096;
    } else if (word == "--seconds") {
      options.seconds = std::atof(value.c_str());
      good = options.seconds > 0.0 && options.seconds < 60.0;
    } else if (word == "--isa") {
      const regard::Expected<regard::Isa> isa = regard::parse_isa(value);
      good = isa.ok();
      if (good) options.isas.push_back(isa.value());
    }
    if (!good) *wrong = word + " " + value;
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  std::string wrong;
  Options options = parse(argc, argv, &wrong);
  if (!wrong.empty()) return usage(wrong);
  const regard::Env env = regard::read_env();
  const regard::Isa available = env.isa_available;
  if (options.threads == 0) options.threads = env.concurrency;
  if (options.isas.empty()) options.isas.push_back(available);
  const std::string f32 = rates(options, available, regard::peak::f32_gflops);
  const std::string bf16 = rates(options, available, regard::peak::bf16_gflops);
  const double gbps =
      options.bandwidth ? regard::peak::read_gbps(options.threads, std::size_t{256} << 20, 3) : 0.0;
  std::printf(
      "{\"cpu_model\": %s, \"isa_available\": \"%s\", \"threads\": %d, \"f32_gflops\": %s, "
      "\"bf16_gflops\": %s, \"read_gbps\": %.2f}\n",
      quoted(env.cpu_model).c_str(), regard::to_string(available), options.threads, f32.c_str(),
      bf16.c_str(), gbps);
}
