#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/llm/gguf.h"

// How ggml lays tensors out: rows of blocks, a block being so many elements in so many bytes.

namespace llm {

struct BlockFormat {
  std::int64_t elements = 1;
  std::int64_t bytes = 1;
};

BlockFormat block_format(GgmlType type) noexcept;

/// The type with a file's number; none where regard-llm does not read it.
std::optional<GgmlType> known_type(std::uint32_t number) noexcept;

/// "type 10 (Q2_K)", for messages: also of types that are not read.
std::string type_text(std::uint32_t number);

/// All types that are read: "F32 F16 BF16 ...", for messages.
const char* known_types() noexcept;

}  // namespace llm
