#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "regard/export.h"
#include "regard/status.h"
#include "regard/trace.h"

// The cases that a program calls, and how often: REGARD_RECORD=FILE and Context::set_record write
// them, `parse_record` reads them (docs/self_check.md has the file's format).

namespace regard {

struct RecordedCase {
  std::string words;  // of a case, without data and addresses
  Direction direction = Direction::kForward;
  std::uint64_t count = 0;
  friend bool operator==(const RecordedCase&, const RecordedCase&) = default;
};

struct Record {
  static constexpr std::size_t kMaxCases = 4096;
  std::vector<RecordedCase> cases;  // the most frequent first
  std::uint64_t dropped = 0;        // calls of cases past kMaxCases, of which no case is kept
  friend bool operator==(const Record&, const Record&) = default;
};

/// Parses a file's text. `source` is the name that errors state.
REGARD_EXPORT Expected<Record> parse_record(std::string_view text, const std::string& source);
REGARD_EXPORT std::string to_string(const Record& record);

/// Whether the first line is that of a record, whatever follows.
REGARD_EXPORT bool is_record(std::string_view text) noexcept;

}  // namespace regard
