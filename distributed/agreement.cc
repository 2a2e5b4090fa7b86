#include "distributed/agreement.h"

#include <algorithm>

#include "distributed/stable_hash.h"
#include "distributed/text.h"

namespace regard::distributed {
namespace {

constexpr std::uint64_t kMaxText = 1 << 20;

/// A rank's first message.
struct Head {
  std::uint64_t hash, length;
  RankNumbers numbers;
};

}  // namespace

std::string policy_text(Context& context) {
  Policy policy = resolved_policy(context);
  policy.self_check_dir.reset();
  const std::string text = to_string(policy);
  return text.empty() ? "default" : text;
}

Expected<std::vector<RankNumbers>> agree(Communicator& communicator, const MessageLimits& limits,
                                         const std::string& text, const RankNumbers& numbers,
                                         const char* where) {
  Messages messages(communicator, limits, where);
  const auto ranks = static_cast<std::size_t>(messages.size());
  const auto own = static_cast<std::size_t>(messages.rank());
  std::vector<Head> heads(ranks);
  heads[own] = {stable_hash(text), text.size(), numbers};
  std::vector<std::span<std::byte>> spans;
  for (Head& head : heads) spans.push_back(std::as_writable_bytes(std::span(&head, 1)));
  if (Status s = messages.all_gather(spans, "plan: hashes", kAgreementTag); !s.ok()) return s;
  std::size_t other = ranks;
  for (std::size_t r = 0; r < ranks; ++r) {
    const bool differs = heads[r].hash != heads[0].hash || heads[r].length != heads[0].length;
    if (differs && other == ranks) other = r;
  }
  if (other == ranks) {
    std::vector<RankNumbers> all;
    for (const Head& head : heads) all.push_back(head.numbers);
    return all;
  }
  std::vector<std::string> texts(ranks);
  spans.clear();
  for (std::size_t r = 0; r < ranks; ++r) {
    texts[r].resize(static_cast<std::size_t>(std::min(heads[r].length, kMaxText)));
    if (r == own) texts[r] = text.substr(0, texts[r].size());
    spans.push_back(std::as_writable_bytes(std::span(texts[r])));
  }
  if (Status s = messages.all_gather(spans, "plan: texts", kAgreementTag); !s.ok()) return s;
  return invalid(where, "ranks disagree: rank 0 (", texts[0], "), rank ", other, " (", texts[other],
                 ")");
}

}  // namespace regard::distributed
