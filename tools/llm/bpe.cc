#include "tools/llm/bpe.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "tools/llm/byte_level.h"
#include "tools/llm/messages.h"
#include "tools/llm/utf8.h"

namespace llm {
namespace {

using regard::Expected;

constexpr std::int32_t kNone = -1;

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

/// The last in the heap's order comes out first.
constexpr auto kLater = [](const auto& a, const auto& b) {
  return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
};

}  // namespace

Expected<Bpe> Bpe::from(std::span<const std::string> tokens, std::span<const std::string> merges) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  ids.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto [found, added] = ids.emplace(tokens[i], static_cast<std::int32_t>(i));
    if (!added) {
      return invalid("tokenizer", "tokens " + std::to_string(found->second) + " and " +
                                      std::to_string(i) + " are both " + quote(tokens[i]));
    }
  }
  const auto id_of = [&](std::string_view spelling) {
    const auto found = ids.find(spelling);
    return found == ids.end() ? kNone : found->second;
  };

  Bpe bpe;
  constexpr std::array<char32_t, 256> kSpellings = byte_spellings();
  for (std::size_t byte = 0; byte < kSpellings.size(); ++byte) {
    std::string spelling;
    append_utf8(spelling, kSpellings[byte]);
    bpe.byte_tokens_[byte] = id_of(spelling);
  }
  bpe.merges_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const auto what = [&] { return "merge " + std::to_string(rank) + " is " + quote(merge); };
    const std::size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return invalid("tokenizer", what() + ", expected two tokens with a space between them");
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    const std::string merged = std::string(left) + std::string(right);
    for (const std::string_view part : {left, right, std::string_view(merged)}) {
      if (id_of(part) == kNone) {
        return invalid("tokenizer", what() + ", but the vocabulary lacks " + quote(part));
      }
    }
    const Merge entry{static_cast<std::int32_t>(rank), id_of(merged)};
    if (!bpe.merges_.emplace(key_of(id_of(left), id_of(right)), entry).second) {
      return invalid("tokenizer", what() + ", which comes twice");
    }
  }
  return bpe;
}

/// Adds the pair that begins at a symbol, if it can be merged.
void Bpe::consider(Workspace& work, std::int32_t left) const {
  if (left == kNone) return;
  const auto& symbol = work.symbols[static_cast<std::size_t>(left)];
  if (symbol.next == kNone) return;
  const std::int32_t right = work.symbols[static_cast<std::size_t>(symbol.next)].token;
  const auto found = merges_.find(key_of(symbol.token, right));
  if (found == merges_.end()) return;
  work.heap.push_back({found->second.rank, left, symbol.token, right, found->second.token});
  std::push_heap(work.heap.begin(), work.heap.end(), kLater);
}

void Bpe::merge_all(Workspace& work) const {
  auto& symbols = work.symbols;
  const auto at = [&](std::int32_t i) -> auto& { return symbols[static_cast<std::size_t>(i)]; };
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), kLater);
    const Candidate pair = work.heap.back();
    work.heap.pop_back();
    auto& left = at(pair.at);
    if (left.token != pair.left || left.next == kNone) continue;
    auto& right = at(left.next);
    if (right.token != pair.right) continue;
    left.token = pair.merged;
    left.next = right.next;
    right.token = kNone;  // no pair that was found begins here any more
    if (left.next != kNone) at(left.next).previous = pair.at;
    consider(work, left.previous);
    consider(work, pair.at);
  }
}

void Bpe::encode(std::string_view word, Workspace& work, std::vector<std::int32_t>& out) const {
  work.symbols.clear();
  for (const char c : word) {
    const std::int32_t token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token == kNone) continue;
    const auto n = static_cast<std::int32_t>(work.symbols.size());
    work.symbols.push_back({token, n - 1, n + 1});
  }
  if (work.symbols.empty()) return;
  work.symbols.back().next = kNone;
  work.heap.clear();
  for (std::size_t i = 0; i + 1 < work.symbols.size(); ++i) {
    consider(work, static_cast<std::int32_t>(i));
  }
  merge_all(work);
  for (std::int32_t i = 0; i != kNone; i = work.symbols[static_cast<std::size_t>(i)].next) {
    out.push_back(work.symbols[static_cast<std::size_t>(i)].token);
  }
}

}  // namespace llm
