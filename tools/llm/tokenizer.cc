#include "tools/llm/tokenizer.h"

#include <limits>
#include <optional>
#include <utility>

#include "tools/llm/bpe.h"
#include "tools/llm/byte_level.h"
#include "tools/llm/messages.h"
#include "tools/llm/pre_tokenizer.h"
#include "tools/llm/special_tokens.h"
#include "tools/llm/utf8.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

constexpr std::size_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxTextBytes = std::numeric_limits<std::int32_t>::max();

// Of tokenizer.ggml.token_type; the other types are ordinary text here.
constexpr std::int64_t kControl = 3;
constexpr std::int64_t kUserDefined = 4;

/// Which tokens are special; none where the file does not say.
Expected<std::vector<bool>> special_of(const GgufContents& file, std::size_t tokens) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  std::vector<bool> special(tokens);
  if (!file.has(kKey)) return special;
  const auto types = file.integers(kKey);
  if (!types) return types.status();
  if (types->size() != tokens) {
    return invalid("tokenizer", "key " + quote(kKey) + " has " + std::to_string(types->size()) +
                                    " elements, expected " + std::to_string(tokens) +
                                    ", one for each of tokenizer.ggml.tokens");
  }
  for (std::size_t i = 0; i < tokens; ++i) {
    special[i] = (*types)[i] == kControl || (*types)[i] == kUserDefined;
  }
  return special;
}

/// A token that a key names; -1 without the key.
Expected<std::int32_t> token_of(const GgufContents& file, std::string_view key,
                                std::size_t tokens) {
  if (!file.has(key)) return -1;
  const Expected<std::int64_t> id = file.integer(key);
  if (!id) return id.status();
  if (*id < 0 || static_cast<std::uint64_t>(*id) >= tokens) {
    return invalid("tokenizer", "key " + quote(key) + " is " + std::to_string(*id) +
                                    ", expected a token, 0 to " + std::to_string(tokens - 1));
  }
  return static_cast<std::int32_t>(*id);
}

Expected<std::span<const std::string>> tokens_of(const GgufContents& file) {
  const Expected<std::string_view> model = file.text("tokenizer.ggml.model");
  if (!model) return model.status();
  if (*model != "gpt2") {
    return invalid("tokenizer", "key 'tokenizer.ggml.model' is " + quote(*model) +
                                    ", expected 'gpt2', the only model known here");
  }
  const auto tokens = file.texts("tokenizer.ggml.tokens");
  if (!tokens) return tokens.status();
  if (tokens->empty() || tokens->size() > kMaxTokens) {
    return invalid("tokenizer", "key 'tokenizer.ggml.tokens' has " +
                                    std::to_string(tokens->size()) +
                                    " elements, expected 1 to 2^31 - 1");
  }
  return *tokens;
}

/// An error that names the first byte which is not UTF-8.
Status check_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return invalid("tokenizer", "the text has " + std::to_string(text.size()) +
                                    " bytes, expected at most 2^31 - 1");
  }
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = read_utf8(text, at);
    if (c.state != Utf8State::kWhole) {
      return invalid(
          "tokenizer",
          "the text is not UTF-8: byte " + std::to_string(at) + " is " + quote(text.substr(at, 1)) +
              (c.state == Utf8State::kPartial ? ", and the text ends inside its character"
                                              : ", where no character begins so"));
    }
    at += c.length;
  }
  return {};
}

}  // namespace

struct Tokenizer::Impl {
  Bpe bpe;
  PreTokenizer words;
  SpecialTokens specials;
  std::vector<std::string> bytes;  // by token
  std::vector<bool> special;       // by token
  std::int32_t start = -1;
  std::int32_t end = -1;
  bool adds_start = false;

  Status encode_ordinary(std::string_view text, Bpe::Workspace& work,
                         std::vector<std::int32_t>& out) const;
};

Status Tokenizer::Impl::encode_ordinary(std::string_view text, Bpe::Workspace& work,
                                        std::vector<std::int32_t>& out) const {
  std::vector<std::string_view> found;
  if (Status status = words.split(text, found); !status) return status;
  for (const std::string_view word : found) bpe.encode(word, work, out);
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Expected<Tokenizer> Tokenizer::from(const GgufContents& file) {
  const auto tokens = tokens_of(file);
  if (!tokens) return tokens.status();
  const Expected<std::string_view> pre = file.text("tokenizer.ggml.pre");
  if (!pre) return pre.status();
  Expected<PreTokenizer> words = PreTokenizer::named(*pre);
  if (!words) return words.status();
  const auto merges = file.texts("tokenizer.ggml.merges");
  if (!merges) return merges.status();
  Expected<Bpe> bpe = Bpe::from(*tokens, *merges);
  if (!bpe) return bpe.status();
  Expected<std::vector<bool>> special = special_of(file, tokens->size());
  if (!special) return special.status();
  const auto start = token_of(file, "tokenizer.ggml.bos_token_id", tokens->size());
  if (!start) return start.status();
  const auto end = token_of(file, "tokenizer.ggml.eos_token_id", tokens->size());
  if (!end) return end.status();

  Impl impl{*std::move(bpe), *std::move(words), {}, {}, *std::move(special), *start, *end, false};
  constexpr std::string_view kAddsStart = "tokenizer.ggml.add_bos_token";
  if (file.has(kAddsStart)) {
    const Expected<bool> adds = file.flag(kAddsStart);
    if (!adds) return adds.status();
    if (*adds && *start < 0) {
      return invalid("tokenizer", "key " + quote(kAddsStart) +
                                      " is true, but tokenizer.ggml.bos_token_id is missing");
    }
    impl.adds_start = *adds;
  }
  std::vector<std::pair<std::string, std::int32_t>> spellings;
  impl.bytes.reserve(tokens->size());
  for (const std::string& spelling : *tokens) {
    const auto id = static_cast<std::int32_t>(impl.bytes.size());
    const bool is_special = impl.special[impl.bytes.size()];
    if (is_special) spellings.emplace_back(spelling, id);
    // Special tokens are spelled as they are; so is one that has a character which is no byte's.
    std::optional<std::string> bytes;
    if (!is_special) bytes = spelled_bytes(spelling);
    impl.bytes.push_back(bytes ? *std::move(bytes) : spelling);
  }
  impl.specials = SpecialTokens(std::move(spellings));
  return Tokenizer(std::make_unique<Impl>(std::move(impl)));
}

Expected<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool special) const {
  if (Status status = check_text(text); !status) return status;
  std::vector<std::int32_t> out;
  Bpe::Workspace work;
  std::size_t at = 0;
  while (special) {
    const auto found = impl_->specials.find(text, at);
    if (!found) break;
    const std::string_view before = text.substr(at, found->at - at);
    if (Status status = impl_->encode_ordinary(before, work, out); !status) return status;
    out.push_back(found->token);
    at = found->at + found->length;
  }
  if (Status status = impl_->encode_ordinary(text.substr(at), work, out); !status) return status;
  return out;
}

std::string_view Tokenizer::bytes_of(std::int32_t token) const noexcept {
  const bool exists = token >= 0 && token < vocab_size();
  return exists ? std::string_view(impl_->bytes[static_cast<std::size_t>(token)])
                : std::string_view();
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string out;
  for (const std::int32_t token : tokens) out += bytes_of(token);
  return out;
}

std::int64_t Tokenizer::vocab_size() const noexcept {
  return static_cast<std::int64_t>(impl_->bytes.size());
}

bool Tokenizer::is_special(std::int32_t token) const noexcept {
  return token >= 0 && token < vocab_size() && impl_->special[static_cast<std::size_t>(token)];
}

std::int32_t Tokenizer::end_of_text() const noexcept { return impl_->end; }
bool Tokenizer::adds_start() const noexcept { return impl_->adds_start; }
std::int32_t Tokenizer::start_of_text() const noexcept { return impl_->start; }

}  // namespace llm
