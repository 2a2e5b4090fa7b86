#pragma once

#include <cstdint>
#include <string>

#include "regard/status.h"

namespace regard {

/// The bytes of a regular file of at most `max_bytes`. Pipes and devices, which may never end, are
/// refused without a byte of them being read.
Expected<std::string> read_regular_file(const std::string& path, std::int64_t max_bytes,
                                        const char* where);

}  // namespace regard
