// regard_peak: this machine's limits as one line of JSON.
//
// usage: regard_peak [--threads N] [--isa NAME]... [--bandwidth]
//   --threads N   threads at once (the CPUs of this process)
//   --isa NAME    scalar, avx2, avx512, ...; may come often (the best of this machine)
//   --bandwidth   read bandwidth too

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "regard/env.h"
#include "regard/machine_rates.h"

namespace {

struct Options {
  int threads = 0;
  bool bandwidth = false;
  std::vector<regard::Isa> isas;
};

int usage(const std::string& word) {
  std::fprintf(stderr, "regard_peak: %s: expected [--threads N] [--isa NAME]... [--bandwidth]\n",
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

// The options, or the word that cannot be used in `wrong`.
Options parse(int argc, char** argv, std::string* wrong) {
  Options options;
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
      good = options.threads >= 1 && options.threads <= 1024;
    } else if (word == "--isa") {
      const regard::Expected<regard::Isa> isa = regard::parse_isa(value);
      good = isa.ok();
      if (good) options.isas.push_back(isa.value());
    }
    if (!good) *wrong = word + " " + value;
  }
  return options;
}

// Adds `"avx2": 123.40` to the inside of an object.
void add(std::string* object, regard::Isa isa, double rate) {
  char text[32];
  std::snprintf(text, sizeof text, ": %.2f", rate);
  *object += (object->empty() ? "" : ", ") + quoted(regard::to_string(isa)) + text;
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
  std::string f32, bf16;
  double read_gbps = 0.0;
  for (const regard::Isa isa : options.isas) {
    if (!available.includes(isa)) continue;
    const bool bandwidth = options.bandwidth && isa == options.isas.back();
    const regard::MachineRates rates =
        regard::measure_machine_rates(isa, options.threads, bandwidth);
    add(&f32, isa, rates.f32_gflops);
    // Where bf16 is converted, f32's rate is its limit.
    if (rates.bf16_gflops != rates.f32_gflops) add(&bf16, isa, rates.bf16_gflops);
    read_gbps = rates.read_gbps;
  }
  std::printf(
      "{\"cpu_model\": %s, \"isa_available\": \"%s\", \"threads\": %d, \"f32_gflops\": {%s}, "
      "\"bf16_gflops\": {%s}, \"read_gbps\": %.2f}\n",
      quoted(env.cpu_model).c_str(), regard::to_string(available), options.threads, f32.c_str(),
      bf16.c_str(), read_gbps);
}
