#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "regard/attention.h"

namespace train {

inline constexpr const char* kUsage =
    "usage: train_tiny [option...]\n"
    "  --backend NAME  MATH, FLASH or EFFICIENT; without it regard chooses\n"
    "  --threads N     of attention and of everything else (as many as regard would use)\n"
    "  --steps N       (800)\n"
    "  --text FILE     may come several times (the licence texts of a Debian machine)\n"
    "  --svg FILE      writes the loss curve\n"
    "  --losses FILE   writes the loss of each step, a line each\n";

struct Options {
  regard::Policy policy;
  std::int64_t threads = 0;  // 0: as many as regard would use
  std::int64_t steps = 800;
  std::vector<std::string> texts;
  std::string svg, losses;
};

/// False, with a complaint on stderr, when `text` is no number in [1, most].
inline bool read_count(const char* name, const char* text, std::int64_t max, std::int64_t* count) {
  char* end = nullptr;
  errno = 0;
  *count = std::strtoll(text, &end, 10);
  if (end != text && *end == '\0' && errno == 0 && *count >= 1 && *count <= max) return true;
  std::fprintf(stderr, "train_tiny: %s (%s) must be 1..%lld\n", name, text,
               static_cast<long long>(max));
  return false;
}

/// False, with a complaint on stderr, when the words are wrong.
inline bool read_options(int count, char** words, Options* options) {
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    if (i + 1 == count) {
      std::fprintf(stderr, "train_tiny: %s needs a value\n%s", name.c_str(), kUsage);
      return false;
    }
    const char* const value = words[i + 1];
    if (name == "--backend") {
      const regard::Expected<regard::BackendRef> backend = regard::parse_backend(value);
      if (!backend) {
        std::fprintf(stderr, "train_tiny: %s\n", backend.status().to_string().c_str());
        return false;
      }
      options->policy.only = {{*backend}};
    } else if (name == "--threads") {
      if (!read_count("--threads", value, 1024, &options->threads)) return false;
    } else if (name == "--steps") {
      if (!read_count("--steps", value, 1'000'000, &options->steps)) return false;
    } else if (name == "--text") {
      options->texts.emplace_back(value);
    } else if (name == "--svg") {
      options->svg = value;
    } else if (name == "--losses") {
      options->losses = value;
    } else {
      std::fprintf(stderr, "train_tiny: unknown option %s\n%s", name.c_str(), kUsage);
      return false;
    }
  }
  return true;
}

}  // namespace train
