#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tools/llm/tokenizer.h"
#include "tools/llm/utf8.h"

namespace llm {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

std::string passed_on(const std::vector<std::string_view>& pieces) {
  Utf8Stream stream;
  std::string out;
  for (const std::string_view piece : pieces) out += stream.add(piece);
  return out + stream.finish();
}

TEST(Utf8, EveryCodeIsReadAsItIsWritten) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    append_utf8(text, code);
    const Utf8Char c = read_utf8(text, 0);
    ASSERT_EQ(c.state, Utf8State::kWhole) << static_cast<unsigned>(code);
    ASSERT_EQ(c.length, text.size()) << static_cast<unsigned>(code);
    ASSERT_EQ(c.code, code);
    for (std::size_t size = 1; size < text.size(); ++size) {
      const Utf8Char part = read_utf8(std::string_view(text).substr(0, size), 0);
      ASSERT_EQ(part.state, Utf8State::kPartial) << static_cast<unsigned>(code);
      ASSERT_EQ(part.length, size) << static_cast<unsigned>(code);
    }
  }
}

TEST(Utf8, SurrogatesOverlongFormsAndCodesTooLargeAreInvalid) {
  for (const char* text : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                           "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                           "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe4\xb8(", "\xf0\x9f\x91("}) {
    EXPECT_EQ(read_utf8(text, 0).state, Utf8State::kInvalid) << text;
  }
}

TEST(Utf8Stream, PassesOnWholeCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add("a\xf0\x9f"), "a");
  EXPECT_EQ(stream.add("\x91"), "");
  EXPECT_EQ(stream.add("\x8d\xc3"), "👍");
  EXPECT_EQ(stream.add("\xa9"), "é");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, WhatIsNoUtf8BecomesReplacements) {
  const std::string r = kReplacement;
  EXPECT_EQ(passed_on({"a\xff", "b"}), "a" + r + "b");
  EXPECT_EQ(passed_on({"\xe4\xb8"}), r);                 // the end, inside a character
  EXPECT_EQ(passed_on({"\xe4", "\xb8", "x"}), r + "x");  // one for the longest right beginning
  EXPECT_EQ(passed_on({"\xed\xa0\x80"}), r + r + r);     // a surrogate, as Python has it
  EXPECT_EQ(passed_on({"\xf0\x80\x80"}), r + r + r);
  EXPECT_EQ(passed_on({}), "");
}

TEST(Utf8Stream, PiecesMakeNoDifference) {
  std::mt19937 random(4);
  const std::vector<std::string> parts = {"a", "é", "中", "👍", "\xff", "\xc3", "\xe4\xb8", "\x80"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += parts[random() % parts.size()];
    const std::string whole = passed_on({text});
    std::vector<std::string_view> pieces;
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t n = std::min<std::size_t>(rest.size(), random() % 4);
      pieces.push_back(rest.substr(0, n));
      rest.remove_prefix(n);
    }
    EXPECT_EQ(passed_on(pieces), whole);
    for (std::size_t at = 0; at < whole.size();) {
      const Utf8Char c = read_utf8(whole, at);
      ASSERT_EQ(c.state, Utf8State::kWhole);
      at += c.length;
    }
  }
}

}  // namespace
}  // namespace llm
