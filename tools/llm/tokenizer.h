#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "regard/status.h"
#include "tools/llm/gguf.h"

namespace llm {

/// Byte-level BPE as GPT-2 has it (tokenizer.ggml.model "gpt2"), with a file's vocabulary, merges
/// and special tokens; pre-tokeniser "smollm": each digit alone, then GPT-2's pattern.
class Tokenizer {
 public:
  static regard::Expected<Tokenizer> from(const GgufContents& file);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Tokens of UTF-8 text. With `special`, the spelling of a special token ("<|im_end|>") becomes
  /// that token; without, it is ordinary text, as what a user types must be. Invalid UTF-8 is an
  /// error that names the byte.
  regard::Expected<std::vector<std::int32_t>> encode(std::string_view text, bool special) const;
  /// The bytes of a token; those of one token need not be whole UTF-8 characters.
  std::string_view bytes_of(std::int32_t token) const noexcept;
  std::string decode(std::span<const std::int32_t> tokens) const;

  std::int64_t vocab_size() const noexcept;
  bool is_special(std::int32_t token) const noexcept;
  std::int32_t end_of_text() const noexcept;  // where an answer ends; -1: the file names none
  bool adds_start() const noexcept;           // tokenizer.ggml.add_bos_token
  std::int32_t start_of_text() const noexcept;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Passes on whole UTF-8 characters of bytes that arrive in pieces, so that a terminal never sees a
/// half one; bytes that are no UTF-8 become U+FFFD.
class Utf8Stream {
 public:
  std::string add(std::string_view bytes);
  std::string finish();  // what is left

 private:
  std::string pending_;
};

struct Message {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

/// How a model's conversations are written. Templates of the ChatML kind are known, with the
/// default system message that the file's template has; another one is refused by name, since
/// running Jinja is not done here.
class ChatTemplate {
 public:
  static regard::Expected<ChatTemplate> from(const GgufContents& file);
  /// Tokens of messages, and of the start of the assistant's answer if `answer`. Contents are
  /// ordinary text: what they spell never becomes a special token.
  regard::Expected<std::vector<std::int32_t>> encode(const Tokenizer& tokenizer,
                                                     std::span<const Message> messages,
                                                     bool answer) const;
  const std::string& default_system() const noexcept { return default_system_; }

 private:
  std::string default_system_;
};

}  // namespace llm
