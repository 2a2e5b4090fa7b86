#include <array>
#include <optional>

#include "tools/llm/messages.h"
#include "tools/llm/tokenizer.h"

// Templates are programs in Jinja. Those of the ChatML kind differ in little: how a message's line
// is written, and which system message comes first where the conversation has none. Both are read
// from the template's text; whatever is written in another way is refused, not guessed.

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

constexpr std::string_view kKey = "tokenizer.chat_template";
constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// The template with one spelling for what Jinja spells in several ways.
std::string normalized(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c != ' ') {
      out += c == '"' ? '\'' : c;
    }
  }
  replace_all(out, "message.role", "message['role']");
  replace_all(out, "message.content", "message['content']");
  replace_all(out, "'+'", "");  // two literals are one
  return out;
}

/// Whether every message is written "<|im_start|>role\ncontent<|im_end|>\n".
bool is_chatml(std::string_view text) {
  constexpr std::array<std::string_view, 2> kLines = {
      "'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>\\n'",
      "<|im_start|>{{message['role']}}\\n{{message['content']}}<|im_end|>\\n"};
  const std::string plain = normalized(text);
  for (const std::string_view line : kLines) {
    if (plain.find(line) != std::string::npos) return true;
  }
  return false;
}

/// What a backslash and this character stand for in a literal of Jinja.
std::optional<char> unescaped(char c) {
  switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case '\\':
    case '\'':
    case '"': return c;
    default: return std::nullopt;
  }
}

/// The text from `at` to "<|im_end|>": inside a literal that began with this quote, or with '\0'
/// outside of literals. Nothing if the literal or the plain text ends before.
std::optional<std::string> text_to_end(std::string_view text, std::size_t at, char literal) {
  std::string out;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(kEnd)) return out;
    if (literal != '\0' && rest.front() == literal) return std::nullopt;
    if (literal == '\0' && (rest.starts_with("{{") || rest.starts_with("{%"))) return std::nullopt;
    if (literal != '\0' && rest.front() == '\\') {
      const auto c = rest.size() > 1 ? unescaped(rest[1]) : std::nullopt;
      if (!c) return std::nullopt;
      out += *c;
      at += 2;
    } else {
      out += rest.front();
      ++at;
    }
  }
  return std::nullopt;
}

/// The system message that the template puts first where there is none; empty: it has none.
Expected<std::string> default_system_of(std::string_view text) {
  const std::string head = std::string(kStart) + "system";
  std::optional<std::string> found;
  for (std::size_t at = text.find(head); at != std::string_view::npos;
       at = text.find(head, at + 1)) {
    const char before = at > 0 ? text[at - 1] : '\0';
    const char literal = before == '\'' || before == '"' ? before : '\0';
    std::optional<std::string> system = text_to_end(text, at + head.size(), literal);
    if (!system || !system->starts_with('\n') || (found && *found != *system)) {
      return invalid("chat template", "key " + quote(kKey) +
                                          ": its default system message cannot be read, expected "
                                          "'<|im_start|>system', a line's end, text without "
                                          "variables, '<|im_end|>'");
    }
    found = std::move(system);
  }
  return found ? found->substr(1) : std::string();
}

}  // namespace

Expected<ChatTemplate> ChatTemplate::from(const GgufContents& file) {
  const Expected<std::string_view> text = file.text(kKey);
  if (!text) return text.status();
  if (!is_chatml(*text)) {
    return invalid("chat template",
                   "key " + quote(kKey) + " is " + quote(*text) +
                       ", expected one of the ChatML kind, which writes each message as "
                       "'<|im_start|>role', a line's end, the content, '<|im_end|>'");
  }
  Expected<std::string> system = default_system_of(*text);
  if (!system) return system.status();
  ChatTemplate chat;
  chat.default_system_ = *std::move(system);
  return chat;
}

namespace {

/// Appends tokens of messages, one part after the other.
class Writer {
 public:
  explicit Writer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Status special(std::string_view spelling) {
    const auto tokens = tokenizer_.encode(spelling, true);
    if (!tokens) return tokens.status();
    if (tokens->size() != 1 || !tokenizer_.is_special(tokens->front())) {
      return invalid("chat template", "the vocabulary has no special token " + quote(spelling) +
                                          ", which " + std::string(kKey) + " writes");
    }
    out_.push_back(tokens->front());
    return {};
  }

  Status ordinary(std::string_view text) {
    const auto tokens = tokenizer_.encode(text, false);
    if (!tokens) return tokens.status();
    out_.insert(out_.end(), tokens->begin(), tokens->end());
    return {};
  }

  Status message(const std::string& role, const std::string& content) {
    if (Status status = special(kStart); !status) return status;
    // One text: where its words end does not depend on where the template's pieces do.
    if (Status status = ordinary(role + '\n' + content); !status) return status;
    if (Status status = special(kEnd); !status) return status;
    return ordinary("\n");
  }

  std::vector<std::int32_t> tokens() && { return std::move(out_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> out_;
};

}  // namespace

Expected<std::vector<std::int32_t>> ChatTemplate::encode(const Tokenizer& tokenizer,
                                                         std::span<const Message> messages,
                                                         bool answer) const {
  Writer writer(tokenizer);
  const bool has_system = !messages.empty() && messages.front().role == "system";
  if (!messages.empty() && !has_system && !default_system_.empty()) {
    if (Status status = writer.message("system", default_system_); !status) return status;
  }
  for (const Message& message : messages) {
    if (Status status = writer.message(message.role, message.content); !status) return status;
  }
  if (answer) {
    if (Status status = writer.special(kStart); !status) return status;
    if (Status status = writer.ordinary("assistant\n"); !status) return status;
  }
  return std::move(writer).tokens();
}

}  // namespace llm
