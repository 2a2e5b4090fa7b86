#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/llm/gguf_writer.h"
#include "tools/llm/pre_tokenizer.h"
#include "tools/llm/tokenizer.h"

namespace llm {
namespace {

using regard::Expected;
using test::GgufWriter;
using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

constexpr std::int32_t kSpace = 0x20;  // tokens 0 to 255 are the bytes

Words split(std::string_view text) {
  const Expected<PreTokenizer> pre = PreTokenizer::named("smollm");
  EXPECT_TRUE(pre.ok());
  std::vector<std::string_view> words;
  EXPECT_TRUE(pre->split(text, words).ok());
  return {words.begin(), words.end()};
}

TEST(PreTokenizer, SplitsAsGpt2DoesAfterTheDigits) {
  EXPECT_EQ(split(""), Words());
  EXPECT_EQ(split("Hello world"), (Words{"Hello", " world"}));
  EXPECT_EQ(split("it's we'll I'd 'tis HE'S"),
            (Words{"it", "'s", " we", "'ll", " I", "'d", " '", "tis", " HE", "'", "S"}));
  EXPECT_EQ(split("a  b"), (Words{"a", " ", " b"}));
  EXPECT_EQ(split("a \n b"), (Words{"a", " \n", " b"}));
  EXPECT_EQ(split("a\nb"), (Words{"a", "\n", "b"}));
  EXPECT_EQ(split("end  "), (Words{"end", "  "}));
  EXPECT_EQ(split("f(x) -> y;"), (Words{"f", "(", "x", ")", " ->", " y", ";"}));
}

TEST(PreTokenizer, EachDigitIsAWordOfItsOwn) {
  EXPECT_EQ(split("1234"), (Words{"1", "2", "3", "4"}));
  // The split at digits comes first: white space before a digit is the end of a piece.
  EXPECT_EQ(split("a  1b"), (Words{"a", "  ", "1", "b"}));
  EXPECT_EQ(split(" 7 8"), (Words{" ", "7", " ", "8"}));
  EXPECT_EQ(split("x½Ⅷ٣²"), (Words{"x", "½", "Ⅷ", "٣", "²"}));
}

TEST(PreTokenizer, KnowsUnicode) {
  EXPECT_EQ(split("Привет мир"), (Words{"Привет", " мир"}));
  EXPECT_EQ(split("中文。字"), (Words{"中文", "。", "字"}));
  EXPECT_EQ(split("naïve 👍🏽!"), (Words{"naïve", " 👍🏽!"}));
  // White space by Unicode; U+180E is none.
  EXPECT_EQ(split("a\u3000\u2028\u0085b"), (Words{"a", "\u3000\u2028", "\u0085", "b"}));
  EXPECT_EQ(split("a\u180eb"), (Words{"a", "\u180e", "b"}));
}

TEST(PreTokenizer, AMillionSpacesOrLettersAreSplit) {
  const std::size_t n = 1'000'000;
  EXPECT_EQ(split(std::string(n, ' ').append("a")).size(), 2u);
  EXPECT_EQ(split(std::string(n, 'a')).size(), 1u);
  EXPECT_EQ(split(std::string(n, '-')).size(), 1u);
  EXPECT_EQ(split(std::string(n, '7')).size(), n);
}

TEST(PreTokenizer, OthersAreRefusedByName) {
  const auto other = PreTokenizer::named("llama-bpe\x1b");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().message(),
            "[tokenizer] key 'tokenizer.ggml.pre' is 'llama-bpe\\x1b', expected 'smollm', the only "
            "pre-tokeniser known here");
}

/// A tokenizer of bytes, a few merges and special tokens.
class TokenizerTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kTh = 256;        // "th"
  static constexpr std::int32_t kThe = 257;       // "the"
  static constexpr std::int32_t kSpaceThe = 258;  // " the"
  static constexpr std::int32_t kStart = 259;
  static constexpr std::int32_t kEnd = 260;

  static GgufWriter writer() {
    GgufWriter writer;
    test::add_tokenizer(writer, {"t h", "th e", "Ġ the"}, {"<|im_start|>", "<|im_end|>"});
    return writer;
  }

  static Tokenizer tokenizer(const GgufWriter& writer) {
    const auto bytes = writer.bytes();
    const auto file = GgufContents::parse(bytes);
    return Tokenizer::from(file.value()).value();
  }

  const Tokenizer tokenizer_ = tokenizer(writer());
};

TEST_F(TokenizerTest, EncodesWords) {
  EXPECT_EQ(tokenizer_.encode("", false).value(), Ids());
  EXPECT_EQ(tokenizer_.encode("the the", false).value(), (Ids{kThe, kSpaceThe}));
  EXPECT_EQ(tokenizer_.encode("th e", false).value(), (Ids{kTh, kSpace, 'e'}));
  EXPECT_EQ(tokenizer_.encode("é", false).value(), (Ids{0xc3, 0xa9}));
}

TEST_F(TokenizerTest, SpellingsOfSpecialTokensAreTokensOnlyIfWanted) {
  EXPECT_EQ(tokenizer_.encode("<|im_start|>the<|im_end|>", true).value(),
            (Ids{kStart, kThe, kEnd}));
  EXPECT_EQ(tokenizer_.encode("the<|im_end|> the", true).value(), (Ids{kThe, kEnd, kSpaceThe}));
  Ids spelled;
  for (const char c : std::string_view("<|im_end|>")) spelled.push_back(c);
  EXPECT_EQ(tokenizer_.encode("<|im_end|>", false).value(), spelled);
  EXPECT_EQ(tokenizer_.encode("<|im_end|", true).value(), Ids(spelled.begin(), spelled.end() - 1));
}

TEST_F(TokenizerTest, DecodesBytes) {
  EXPECT_EQ(tokenizer_.bytes_of(kSpaceThe), " the");
  EXPECT_EQ(tokenizer_.bytes_of(0xff), "\xff");
  EXPECT_EQ(tokenizer_.bytes_of(0), std::string_view("\0", 1));
  EXPECT_EQ(tokenizer_.bytes_of(kEnd), "<|im_end|>");
  for (const std::int32_t none : {-1, 261, 0x7fffffff}) {
    EXPECT_EQ(tokenizer_.bytes_of(none), "");
    EXPECT_FALSE(tokenizer_.is_special(none));
  }
  std::string all;
  for (char32_t c = 1; c < 0x3000; c += 7) {
    all += static_cast<char>(c % 0x7f + 1);
    all += "é中👍";
  }
  EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(all, false).value()), all);
}

TEST_F(TokenizerTest, FactsOfTheFile) {
  EXPECT_EQ(tokenizer_.vocab_size(), 261);
  EXPECT_EQ(tokenizer_.start_of_text(), kStart);
  EXPECT_EQ(tokenizer_.end_of_text(), kEnd);
  EXPECT_FALSE(tokenizer_.adds_start());
  EXPECT_TRUE(tokenizer_.is_special(kEnd));
  EXPECT_FALSE(tokenizer_.is_special(kThe));
  GgufWriter with_start = writer();
  with_start.set("tokenizer.ggml.add_bos_token", true);
  EXPECT_TRUE(tokenizer(with_start).adds_start());
  GgufWriter without_special;
  test::add_tokenizer(without_special, {}, {});
  const Tokenizer plain = tokenizer(without_special);
  EXPECT_EQ(plain.start_of_text(), -1);
  EXPECT_EQ(plain.end_of_text(), -1);
  EXPECT_EQ(plain.encode("<|im_end|>", true).value().size(), 10u);
}

TEST_F(TokenizerTest, InvalidUtf8IsAnErrorThatNamesTheByte) {
  const auto refusal = [&](std::string_view text) {
    const auto tokens = tokenizer_.encode(text, true);
    return tokens.ok() ? "no failure" : tokens.status().message();
  };
  const std::string none_begins = ", where no character begins so";
  EXPECT_EQ(refusal("ab\xff"),
            "[tokenizer] the text is not UTF-8: byte 2 is '\\xff'" + none_begins);
  EXPECT_EQ(refusal("\xc0\x80"),
            "[tokenizer] the text is not UTF-8: byte 0 is '\\xc0'" + none_begins);
  EXPECT_EQ(refusal("é\xed\xa0\x80"),
            "[tokenizer] the text is not UTF-8: byte 2 is '\\xed'" + none_begins);
  EXPECT_EQ(refusal("a\xe4\xb8"),
            "[tokenizer] the text is not UTF-8: byte 1 is '\\xe4', and the text ends inside its "
            "character");
}

/// The refusal of a file that has these keys besides, or instead of those of writer().
std::string tokenizer_refusal(const std::function<void(GgufWriter&)>& fill) {
  GgufWriter writer;
  fill(writer);
  const auto bytes = writer.bytes();
  const auto file = GgufContents::parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status().to_string();
  const auto tokenizer = Tokenizer::from(file.value());
  return tokenizer.ok() ? "no failure" : tokenizer.status().message();
}

TEST(TokenizerFrom, RefusesModelsByName) {
  EXPECT_EQ(tokenizer_refusal([](GgufWriter&) {}),
            "[gguf] key 'tokenizer.ggml.model' is missing, expected a string");
  EXPECT_EQ(tokenizer_refusal([](GgufWriter& w) { w.set("tokenizer.ggml.model", "llama"); }),
            "[tokenizer] key 'tokenizer.ggml.model' is 'llama', expected 'gpt2', the only model "
            "known here");
}

TEST(TokenizerFrom, RefusesVocabulariesThatDoNotFit) {
  const auto base = [](GgufWriter& w, int tokens, int types) {
    w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "smollm");
    std::vector<std::string> texts;
    for (int i = 0; i < tokens; ++i) texts.push_back(std::string(1, static_cast<char>('a' + i)));
    w.set("tokenizer.ggml.tokens", texts);
    w.set("tokenizer.ggml.token_type", std::vector<std::int32_t>(static_cast<std::size_t>(types)));
    w.set("tokenizer.ggml.merges", std::vector<std::string>());
  };
  EXPECT_EQ(tokenizer_refusal([&](GgufWriter& w) { base(w, 2, 2); }), "no failure");
  EXPECT_EQ(tokenizer_refusal([&](GgufWriter& w) { base(w, 0, 0); }),
            "[tokenizer] key 'tokenizer.ggml.tokens' has 0 elements, expected 1 to 2^31 - 1");
  EXPECT_EQ(tokenizer_refusal([&](GgufWriter& w) { base(w, 3, 2); }),
            "[tokenizer] key 'tokenizer.ggml.token_type' has 2 elements, expected 3, one for each "
            "of tokenizer.ggml.tokens");
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"}) {
    for (const std::int32_t id : {-1, 2}) {
      EXPECT_EQ(tokenizer_refusal([&](GgufWriter& w) {
                  base(w, 2, 2);
                  w.set(key, id);
                }),
                "[tokenizer] key '" + std::string(key) + "' is " + std::to_string(id) +
                    ", expected a token, 0 to 1");
    }
  }
  EXPECT_EQ(tokenizer_refusal([&](GgufWriter& w) {
              base(w, 2, 2);
              w.set("tokenizer.ggml.add_bos_token", true);
            }),
            "[tokenizer] key 'tokenizer.ggml.add_bos_token' is true, but "
            "tokenizer.ggml.bos_token_id is missing");
}

}  // namespace
}  // namespace llm
