#pragma once

#include <cstdint>
#include <string>

#include "regard/status.h"

namespace regard {

/// The bytes of a regular file of at most `max_bytes`. Pipes and devices, which may never end, are
/// refused without a byte of them being read.
Expected<std::string> read_regular_file(const std::string& path, std::int64_t max_bytes,
                                        const char* where);

/// The bytes of a small file that may state no size, as those of /proc and /sys; "" where there is
/// none. Not a stream: that takes a shortage of memory for the end of the file.
std::string read_system_file(const std::string& path);

}  // namespace regard
