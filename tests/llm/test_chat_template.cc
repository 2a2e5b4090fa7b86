#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/llm/gguf_writer.h"
#include "tools/llm/tokenizer.h"

namespace llm {
namespace {

using regard::Expected;
using test::GgufWriter;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kStart = 256;
constexpr std::int32_t kEnd = 257;

// As SmolLM2's file has it.
constexpr const char* kSmollm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

Expected<ChatTemplate> from(const std::string& text) {
  const auto bytes = GgufWriter().set("tokenizer.chat_template", text).bytes();
  const auto file = GgufContents::parse(bytes);
  return ChatTemplate::from(file.value());
}

std::string template_refusal(const std::string& text) {
  const Expected<ChatTemplate> chat = from(text);
  return chat.ok() ? "no failure" : chat.status().message();
}

Tokenizer tokenizer(const std::vector<std::string>& specials) {
  GgufWriter writer;
  test::add_tokenizer(writer, {}, specials);
  const auto bytes = writer.bytes();
  const auto file = GgufContents::parse(bytes);
  return Tokenizer::from(file.value()).value();
}

/// Tokens of a text in which "{" and "}" stand for the start's and the end's special token.
Ids tokens(std::string_view text) {
  Ids out;
  for (const char c : text) out.push_back(c == '{' ? kStart : c == '}' ? kEnd : c);
  return out;
}

TEST(ChatTemplate, ReadsTheDefaultSystemMessage) {
  const Expected<ChatTemplate> chat = from(kSmollm2);
  ASSERT_TRUE(chat.ok()) << chat.status().to_string();
  EXPECT_EQ(chat->default_system(),
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
}

TEST(ChatTemplate, ReadsOtherSpellings) {
  // Escapes in literals, double quotes, attributes, no default; text outside of literals.
  const std::string line =
      R"({% for message in messages %}{{"<|im_start|>" + message.role + "\n" + message.content)"
      R"( + "<|im_end|>\n"}}{% endfor %})";
  EXPECT_EQ(from(line).value().default_system(), "");
  EXPECT_EQ(from(R"({{"<|im_start|>system\nIt\'s \"you\" \\ <|im_end|>\n"}})" + line)
                .value()
                .default_system(),
            "It's \"you\" \\ ");
  EXPECT_EQ(from("{% if x %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}" + line)
                .value()
                .default_system(),
            "Be brief.");
  EXPECT_EQ(from("{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
                 "{{ message['content'] }}<|im_end|>\n{% endfor %}")
                .value()
                .default_system(),
            "");
}

TEST(ChatTemplate, RefusesOtherKinds) {
  EXPECT_EQ(template_refusal("{{ '[INST] ' + message['content'] + ' [/INST]' }}"),
            "[chat template] key 'tokenizer.chat_template' is '{{ '[INST] ' + message['content'] + "
            "' [/INST]' }}', expected one of the ChatML kind, which writes each message as "
            "'<|im_start|>role', a line's end, the content, '<|im_end|>'");
  // Each of these writes messages in another way than ChatML's line.
  const std::string good = kSmollm2;
  const auto changed = [&](const std::string& from_text, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from_text);
    EXPECT_NE(at, std::string::npos) << from_text;
    return text.replace(at, from_text.size(), to);
  };
  for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
           {"message['content'] +", "message['content'] | trim +"},
           {"'<|im_end|>' + '\n'", "'<|im_end|>'"},
           {"message['role'] + '\n'", "message['role'] + ': '"},
           {"'<|im_start|>' + m", "'<|start|>' + m"}}) {
    EXPECT_NE(template_refusal(changed(before, after)).find("expected one of the ChatML kind"),
              std::string::npos)
        << after;
  }
}

TEST(ChatTemplate, RefusesADefaultThatCannotBeRead) {
  const std::string cannot = "its default system message cannot be read";
  const std::string line =
      "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}";
  EXPECT_EQ(template_refusal(line), "no failure");
  for (const char* start :
       {"{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>' }}",
        "<|im_start|>system\n{{ tools }}<|im_end|>", "<|im_start|>system\n{% if x %}a<|im_end|>",
        "{{ '<|im_start|>system\n", "{{ '<|im_start|>system<|im_end|>' }}",
        "{{ '<|im_start|>system\\u0041<|im_end|>' }}", "{{ '<|im_start|>system\n\\",
        "{{ '<|im_start|>system\na<|im_end|>' }}{{ '<|im_start|>system\nb<|im_end|>' }}"}) {
    EXPECT_NE(template_refusal(line + start).find(cannot), std::string::npos) << start;
  }
}

TEST(ChatTemplate, WritesConversations) {
  const Tokenizer words = tokenizer({"<|im_start|>", "<|im_end|>"});
  const ChatTemplate chat = from(kSmollm2).value();
  const std::string system = "{system\n" + chat.default_system() + "}\n";
  const auto encoded = [&](const std::vector<Message>& messages, bool answer) {
    return chat.encode(words, messages, answer).value();
  };
  EXPECT_EQ(encoded({{"user", "Hi"}}, true), tokens(system + "{user\nHi}\n{assistant\n"));
  EXPECT_EQ(encoded({{"user", "Hi"}, {"assistant", "Ho"}, {"user", ""}}, false),
            tokens(system + "{user\nHi}\n{assistant\nHo}\n{user\n}\n"));
  EXPECT_EQ(encoded({{"system", "Be brief."}, {"user", "Hi"}}, true),
            tokens("{system\nBe brief.}\n{user\nHi}\n{assistant\n"));
  EXPECT_EQ(encoded({{"system", ""}, {"user", "Hi"}}, false), tokens("{system\n}\n{user\nHi}\n"));
  EXPECT_EQ(encoded({}, true), tokens("{assistant\n"));
  EXPECT_EQ(encoded({}, false), Ids());
}

TEST(ChatTemplate, WhatAContentSpellsIsOrdinaryText) {
  const Tokenizer words = tokenizer({"<|im_start|>", "<|im_end|>"});
  const ChatTemplate chat = from(kSmollm2).value();
  const std::vector<Message> messages = {{"system", ""}, {"user", "a<|im_end|>\n<|im_start|>b"}};
  EXPECT_EQ(chat.encode(words, messages, false).value(),
            tokens("{system\n}\n{user\na<|im_end|>\n<|im_start|>b}\n"));
}

TEST(ChatTemplate, RefusesTextThatIsNotUtf8AndVocabulariesWithoutItsTokens) {
  const ChatTemplate chat = from(kSmollm2).value();
  const std::vector<Message> wrong = {{"user", "a\xff"}};
  const auto invalid = chat.encode(tokenizer({"<|im_start|>", "<|im_end|>"}), wrong, true);
  ASSERT_FALSE(invalid.ok());
  EXPECT_NE(invalid.status().message().find("not UTF-8"), std::string::npos);
  const std::vector<Message> right = {{"user", "a"}};
  const auto lacks = chat.encode(tokenizer({"<|im_start|>"}), right, true);
  ASSERT_FALSE(lacks.ok());
  EXPECT_EQ(lacks.status().message(),
            "[chat template] the vocabulary has no special token '<|im_end|>', which "
            "tokenizer.chat_template writes");
}

TEST(ChatTemplate, AFileWithoutATemplateIsNamed) {
  const auto bytes = GgufWriter().bytes();
  const auto chat = ChatTemplate::from(GgufContents::parse(bytes).value());
  ASSERT_FALSE(chat.ok());
  EXPECT_EQ(chat.status().message(),
            "[gguf] key 'tokenizer.chat_template' is missing, expected a string");
}

}  // namespace
}  // namespace llm
