#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "regard/status.h"

namespace llm {

/// Byte-pair encoding of one word: starts with a token a byte and merges, as long as there is one,
/// the pair of lowest rank, of equal ones the leftmost.
class Bpe {
 public:
  /// `merges` in the order of their ranks, "left right" in the spelling of the tokens.
  static regard::Expected<Bpe> from(std::span<const std::string> tokens,
                                    std::span<const std::string> merges);

  /// Memory that words share.
  struct Workspace;

  /// Appends the tokens of a word, of less than 2^31 bytes. A byte without a token is left out, as
  /// the library `tokenizers` does: vocabularies lack the bytes that no text had.
  void encode(std::string_view word, Workspace& work, std::vector<std::int32_t>& out) const;

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t token;
  };
  struct Candidate;
  void consider(Workspace& work, std::int32_t left) const;
  void merge_all(Workspace& work) const;

  std::array<std::int32_t, 256> byte_tokens_{};      // -1: none
  std::unordered_map<std::uint64_t, Merge> merges_;  // by left token << 32 | right token
};

/// A mergeable pair, as it was when it was found: `left` and `right` tell whether it still is.
struct Bpe::Candidate {
  std::int32_t rank;
  std::int32_t at;
  std::int32_t left;
  std::int32_t right;
  std::int32_t merged;
};

struct Bpe::Workspace {
  struct Symbol {
    std::int32_t token;
    std::int32_t previous;
    std::int32_t next;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

}  // namespace llm
