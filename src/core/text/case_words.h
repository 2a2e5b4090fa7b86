#pragma once

#include <span>
#include <string>
#include <string_view>

#include "regard/case.h"

// The table of words that both prints and parses a case, so that the two cannot drift apart.

namespace regard {

enum class WordForm {
  kSize,    // b2: a name and digits ("b=2" is read as well)
  kDtype,   // the bare name of a dtype
  kFlag,    // causal
  kValue,   // softcap=30
  kEither,  // lens, lens=q: a flag that may have a value
};

struct CaseWord {
  const char* name;
  WordForm form;
  const char* value;  // how a value is written: "L,R"; "" for flags
  const char* doc;
  /// Appends the value to *out and returns true where the word must be printed.
  bool (*print)(const Case& c, std::string* out);
  /// Applies a value ("" for a flag or a bare word); false when it cannot be read. Words are
  /// applied in the table's order, so one may set the default of a later one.
  bool (*parse)(std::string_view value, Case* c);
  const char* needs = nullptr;  // the word without which this one means nothing
  /// Removes from a base the fields that this word sets with others, before they are set again.
  void (*reset)(Case* c) = nullptr;
  /// Whether a value is this word's; of words that share a name, the others' else.
  bool (*takes)(std::string_view value) = nullptr;
};

/// In canonical order.
std::span<const CaseWord> case_words() noexcept;

/// Dtypes by their own names and by those of NumPy and PyTorch: "bf16", "bfloat16", "int8".
std::optional<Dtype> parse_dtype_word(std::string_view name) noexcept;

}  // namespace regard
