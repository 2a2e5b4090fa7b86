#include "tools/regard/rank_words.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

namespace regard::cli {
namespace {

Status wrong(std::string_view word, std::string_view expected) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("[explain] {} must be {}", word, expected));
}

std::optional<int> count_of(std::string_view text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool ok = error == std::errc{} && end == text.data() + text.size() && count >= 1;
  return ok ? std::optional(count) : std::nullopt;
}

/// "2,10" and "2,10,5,1.25": microseconds a message and GB/s, within a node and between nodes.
std::optional<distributed::Network> network_of(std::string_view text) {
  std::vector<double> numbers;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    double number = 0.0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + comma, number);
    const bool ok = error == std::errc{} && end == text.data() + comma && std::isfinite(number);
    if (!ok || number < 0.0 || (numbers.size() % 2 == 1 && number == 0.0)) return std::nullopt;
    numbers.push_back(number);
    at = comma + 1;
  }
  if (numbers.size() != 2 && numbers.size() != 4) return std::nullopt;
  const double* const between = numbers.data() + numbers.size() - 2;
  return distributed::Network{numbers[0] * 1e-6, numbers[1] * 1e9, between[0] * 1e-6,
                              between[1] * 1e9, distributed::NetworkSource::kGiven};
}

/// True where the word is one of ranks, which it then is taken as.
Expected<bool> take(std::string_view word, RankWords* to) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
  if (name == "cp") {
    const auto ranks = count_of(value);
    if (!ranks || *ranks > 4096) return wrong(word, "cp=N, 1 to 4096 ranks");
    to->ranks = *ranks;
  } else if (name == "topology") {
    const std::size_t x = value.find('x');
    const auto nodes = count_of(value.substr(0, x));
    const auto ranks = count_of(x == std::string_view::npos ? "" : value.substr(x + 1));
    if (!nodes || !ranks) return wrong(word, "topology=NODESxRANKS, such as 2x4");
    to->options.topology = {*nodes, *ranks};
  } else if (name == "network") {
    const auto network = network_of(value);
    if (!network) {
      return wrong(
          word,
          "network=US,GBS or network=US,GBS,US,GBS: microseconds a message and GB/s within "
          "a node, then between nodes");
    }
    to->options.network = *network;
  } else if (name == "comm") {
    const auto algorithm = distributed::parse_algorithm(value);
    if (!algorithm) return wrong(word, "comm=auto, p2p, all_gather, a2a or a2a+p2p");
    to->options.algorithm = *algorithm;
  } else if (name == "layout" && distributed::parse_layout(value)) {
    to->options.layout = *distributed::parse_layout(value);  // other layouts are the case's
  } else {
    return false;
  }
  return true;
}

}  // namespace

Expected<std::optional<RankWords>> take_rank_words(std::vector<std::string>* words) {
  RankWords ranks;
  std::string first;
  std::vector<std::string> others;
  for (const std::string& argument : *words) {
    std::string kept;
    for (std::size_t at = 0; at < argument.size();) {
      const std::size_t end = std::min(argument.find(' ', at), argument.size());
      const std::string word = argument.substr(at, end - at);
      at = end + 1;
      if (word.empty()) continue;
      const Expected<bool> taken = take(word, &ranks);
      if (!taken) return taken.status();
      if (!*taken) {
        kept += (kept.empty() ? "" : " ") + word;
      } else if (first.empty()) {
        first = word;
      }
    }
    if (!kept.empty()) others.push_back(kept);
  }
  if (first.empty()) return std::optional<RankWords>();
  if (ranks.ranks == 0) return wrong(first, "given with cp=N, the number of ranks");
  *words = std::move(others);
  return std::optional(ranks);
}

const char* rank_words_help() {
  return "Beside them, of a sequence that is spread over ranks:\n"
         "  cp=N              ranks; prints what each algorithm sends and takes\n"
         "  topology=NxM      nodes, and ranks of each; default 1xN\n"
         "  comm=NAME         auto (default), p2p, all_gather, a2a or a2a+p2p\n"
         "  network=US,GBS    microseconds a message and GB/s; of nodes two more: 2,10,5,1.25\n"
         "  layout=NAME       contiguous (default), zigzag or per_document\n";
}

Expected<distributed::Plan> plan_of(const RankWords& words, const Case& c) {
  distributed::Options options = words.options;
  options.seqlen_q = c.params.seqlen_q;
  options.seqlen_kv = c.params.seqlen_kv;
  return distributed::explain(c.params, options, words.ranks);
}

}  // namespace regard::cli
