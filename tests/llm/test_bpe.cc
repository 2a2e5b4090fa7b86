#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tools/llm/bpe.h"
#include "tools/llm/byte_level.h"
#include "tools/llm/special_tokens.h"

namespace llm {
namespace {

using regard::Expected;

std::vector<std::int32_t> encode(const Bpe& bpe, std::string_view word) {
  Bpe::Workspace work;
  std::vector<std::int32_t> out;
  bpe.encode(word, work, out);
  return out;
}

/// A vocabulary of `letters` and of random merges of tokens it has by then.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
};

Vocabulary random_vocabulary(std::mt19937& random, const std::string& letters, int merges) {
  Vocabulary out;
  std::map<std::string, int> known;
  for (const char c : letters) {
    known.emplace(std::string(1, c), 0);
    out.tokens.emplace_back(1, c);
  }
  std::map<std::string, int> pairs;
  while (static_cast<int>(out.merges.size()) < merges) {
    const std::string left = out.tokens[random() % out.tokens.size()];
    const std::string right = out.tokens[random() % out.tokens.size()];
    if (left.size() + right.size() > 12 || !pairs.emplace(left + ' ' + right, 0).second) continue;
    out.merges.push_back(left + ' ' + right);
    if (known.emplace(left + right, 0).second) out.tokens.push_back(left + right);
  }
  return out;
}

/// Merges by the rule's words: the pair of lowest rank, the leftmost of these, again and again.
std::vector<std::string> merged_plainly(const Vocabulary& vocabulary, const std::string& word) {
  std::map<std::string, std::size_t> ranks;
  for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) ranks[vocabulary.merges[i]] = i;
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    std::size_t best = vocabulary.merges.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + ' ' + parts[i + 1]);
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == vocabulary.merges.size()) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<long>(at) + 1);
  }
}

TEST(Bpe, MergesAsTheRuleSays) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const Vocabulary vocabulary =
        random_vocabulary(random, "abc", static_cast<int>(1 + random() % 25));
    const Expected<Bpe> bpe = Bpe::from(vocabulary.tokens, vocabulary.merges);
    ASSERT_TRUE(bpe.ok()) << bpe.status().to_string();
    for (int n = 0; n < 20; ++n) {
      std::string word;
      for (std::size_t i = random() % 40; i > 0; --i) word += "abc"[random() % 3];
      std::vector<std::string> got;
      for (const std::int32_t token : encode(*bpe, word)) {
        got.push_back(vocabulary.tokens[static_cast<std::size_t>(token)]);
      }
      EXPECT_EQ(got, merged_plainly(vocabulary, word)) << word;
    }
  }
}

// A merge that looks for its pair from the start each time takes 10^12 steps here.
TEST(Bpe, LongWordsTakeNoQuadraticTime) {
  std::vector<std::string> tokens = {"a"};
  std::vector<std::string> merges;
  for (int i = 0; i < 6; ++i) {
    merges.push_back(tokens.back() + ' ' + tokens.back());
    tokens.push_back(tokens.back() + tokens.back());
  }
  const Expected<Bpe> bpe = Bpe::from(tokens, merges);
  ASSERT_TRUE(bpe.ok());
  const auto got = encode(*bpe, std::string(1'000'000, 'a'));
  EXPECT_EQ(got, std::vector<std::int32_t>(1'000'000 / 64, 6));
}

TEST(Bpe, ABytesThatTheVocabularyLacksIsLeftOut) {
  const std::vector<std::string> tokens = {"a", "b", "ab"};
  const Expected<Bpe> bpe = Bpe::from(tokens, std::vector<std::string>{"a b"});
  ASSERT_TRUE(bpe.ok());
  EXPECT_EQ(encode(*bpe, "axb?a"), (std::vector<std::int32_t>{2, 0}));
  EXPECT_TRUE(encode(*bpe, "xyz").empty());
  EXPECT_TRUE(encode(*bpe, "").empty());
}

TEST(Bpe, RefusesMergesThatCannotBe) {
  const std::vector<std::string> tokens = {"a", "b", "ab", "c"};
  const auto refusal = [&](const std::vector<std::string>& merges) {
    const Expected<Bpe> bpe = Bpe::from(tokens, merges);
    return bpe.ok() ? "no failure" : bpe.status().message();
  };
  EXPECT_EQ(refusal({"a b", "ab"}),
            "[tokenizer] merge 1 is 'ab', expected two tokens with a space between them");
  EXPECT_EQ(refusal({"a b c"}),
            "[tokenizer] merge 0 is 'a b c', expected two tokens with a space between them");
  EXPECT_EQ(refusal({"a d"}), "[tokenizer] merge 0 is 'a d', but the vocabulary lacks 'd'");
  EXPECT_EQ(refusal({"d a"}), "[tokenizer] merge 0 is 'd a', but the vocabulary lacks 'd'");
  EXPECT_EQ(refusal({" a"}), "[tokenizer] merge 0 is ' a', but the vocabulary lacks ''");
  EXPECT_EQ(refusal({"a c"}), "[tokenizer] merge 0 is 'a c', but the vocabulary lacks 'ac'");
  EXPECT_EQ(refusal({"a b", "a b"}), "[tokenizer] merge 1 is 'a b', which comes twice");
  const Expected<Bpe> twice = Bpe::from(std::vector<std::string>{"a", "\x1b", "\x1b"}, {});
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(twice.status().message(), "[tokenizer] tokens 1 and 2 are both '\\x1b'");
}

TEST(ByteLevel, SpellsBytesAsGpt2Does) {
  constexpr auto kSpellings = byte_spellings();
  EXPECT_EQ(kSpellings['a'], U'a');
  EXPECT_EQ(kSpellings['\n'], U'Ċ');
  EXPECT_EQ(kSpellings[' '], U'Ġ');
  EXPECT_EQ(kSpellings[0], U'\u0100');
  EXPECT_EQ(kSpellings[0x7f], U'\u0121');
  EXPECT_EQ(kSpellings[0xa0], U'\u0142');
  EXPECT_EQ(kSpellings[0xad], U'\u0143');
  EXPECT_EQ(kSpellings[0xff], U'ÿ');
  EXPECT_EQ(spelled_bytes("Ġabout"), " about");
  EXPECT_EQ(spelled_bytes("ÿŃ"), "\xff\xad");
  EXPECT_EQ(spelled_bytes(""), "");
  for (const char* none : {"a b", "ń", "中", "\xff"}) EXPECT_EQ(spelled_bytes(none), std::nullopt);
}

TEST(SpecialTokens, FindsTheFirstPlaceAndThereTheLongest) {
  const SpecialTokens specials(
      {{"<a>", 1}, {"<a>b", 2}, {"<a>bcd", 3}, {"<", 4}, {"x", 5}, {"", 6}});
  const auto found = [&](std::string_view text, std::size_t from) -> std::vector<std::size_t> {
    const auto result = specials.find(text, from);
    if (!result) return {};
    return {result->at, result->length, static_cast<std::size_t>(result->token)};
  };
  using Found = std::vector<std::size_t>;
  EXPECT_EQ(found("", 0), Found());
  EXPECT_EQ(found("plain >", 0), Found());
  EXPECT_EQ(found("..<a>bc", 0), (Found{2, 4, 2}));
  EXPECT_EQ(found("..<a>bcdx", 0), (Found{2, 6, 3}));
  EXPECT_EQ(found("<a", 0), (Found{0, 1, 4}));
  EXPECT_EQ(found("x<a>", 1), (Found{1, 3, 1}));
  EXPECT_EQ(found("<a>", 3), Found());
  EXPECT_FALSE(SpecialTokens().find("abc", 0).has_value());
}

}  // namespace
}  // namespace llm
