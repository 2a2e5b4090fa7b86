#pragma once

#include <string>

#include "regard/params.h"

namespace regard {

inline constexpr const char* kDimNames[4] = {"B", "H", "Sq", "Skv"};

/// "1,H,Sq,Skv": the dimensions with their full extent by name.
inline std::string broadcast_text(BroadcastDims dims) {
  std::string out;
  for (int i = 0; i < 4; ++i) {
    if (i != 0) out += ',';
    out += (dims >> i & 1) != 0 ? kDimNames[i] : "1";
  }
  return out;
}

}  // namespace regard
