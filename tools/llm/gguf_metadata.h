#pragma once

#include <map>
#include <string>

#include "regard/status.h"
#include "tools/llm/byte_reader.h"
#include "tools/llm/gguf.h"

namespace llm {

using Metadata = std::map<std::string, GgufValue, std::less<>>;

/// Reads `count` keys with their values.
regard::Status read_metadata(ByteReader& reader, std::uint64_t count, Metadata& out);

/// general.alignment, or the format's default of 32.
regard::Expected<std::uint64_t> alignment_of(const Metadata& values);

}  // namespace llm
