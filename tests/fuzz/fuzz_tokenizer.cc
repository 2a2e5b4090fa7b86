#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/require.h"
#include "tests/llm/gguf_writer.h"
#include "tools/llm/tokenizer.h"

// Any bytes are either refused, because they are not UTF-8, or become tokens that decode to them;
// and bytes that arrive in pieces are passed on as UTF-8 which does not depend on the pieces.

namespace {

/// A vocabulary of all bytes, so that no byte of a text is left out.
const llm::Tokenizer& tokenizer() {
  static const llm::Tokenizer made = [] {
    llm::test::GgufWriter writer;
    llm::test::add_tokenizer(writer,
                             {"a a", "aa aa", "t h", "th e", "Ġ the", "Ġ Ġ", "Ġ a", "a b", "b a",
                              "aaaa aaaa", "ab a", "Ã ©", "' s"},
                             {"<|im_start|>", "<|im_end|>", "<|", "<|im"});
    const auto bytes = writer.bytes();
    return llm::Tokenizer::from(llm::GgufContents::parse(bytes).value()).value();
  }();
  return made;
}

std::string passed_on(std::string_view text, std::size_t piece) {
  llm::Utf8Stream stream;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += piece) out += stream.add(text.substr(at, piece));
  return out + stream.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string whole = passed_on(text, size + 1);
  require(passed_on(text, 1) == whole && passed_on(text, 3) == whole, "pieces make no difference");
  const bool is_utf8 = whole == text;
  require(tokenizer().encode(whole, false).ok(), "what is passed on is UTF-8");
  for (const bool special : {false, true}) {
    const auto tokens = tokenizer().encode(text, special);
    require(tokens.ok() == is_utf8, "UTF-8 is encoded and nothing else");
    if (!tokens) continue;
    require(tokenizer().decode(*tokens) == text, "tokens decode to the text");
    for (const std::int32_t token : *tokens) {
      require(token >= 0 && token < tokenizer().vocab_size(), "a token is in the vocabulary");
      require(special || !tokenizer().is_special(token), "ordinary text has no special token");
    }
  }
  return 0;
}
