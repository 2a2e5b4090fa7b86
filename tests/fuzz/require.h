#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

/// Ends the fuzzer with a message where a property does not hold.
inline void require(bool holds, const char* what, const std::string& detail = "") {
  if (holds) return;
  std::fprintf(stderr, "property violated: %s: %s\n", what, detail.c_str());
  std::abort();
}
