#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "tools/llm/gguf.h"
#include "tools/llm/tokenizer.h"

// What the library reads of a GGUF file, for tests in Python that compare it with other readers.
//
// usage: read_file FILE tensor NAME    a tensor as f32 in rows, to stdout
//        read_file FILE tokens         a line of tokens for each text of stdin; spellings of
//        special read_file FILE special        tokens are ordinary text, or these tokens read_file
//        FILE chat           tokens of a conversation: the texts of stdin are a role, a
//                                      content, a role, ...; the answer's start follows
//        read_file FILE decode         reads tokens from stdin, writes their bytes
//
// A text of stdin is its length in bytes, a line's end, the bytes.

namespace {

int fail(const regard::Status& status) {
  std::cerr << status.message() << '\n';
  return 1;
}

int write_tensor(const llm::GgufContents& file, std::string_view name) {
  const llm::GgufTensor* tensor = file.find(name);
  if (tensor == nullptr) {
    std::cerr << "no such tensor\n";
    return 1;
  }
  std::vector<float> row(static_cast<std::size_t>(tensor->columns()));
  for (std::int64_t i = 0; i < tensor->rows(); ++i) {
    llm::dequantize(*tensor, i, 1, row.data());
    if (std::fwrite(row.data(), sizeof(float), row.size(), stdout) != row.size()) return 1;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

bool read_text(std::string& text) {
  std::string length;
  if (!std::getline(std::cin, length)) return false;
  text.resize(std::strtoull(length.c_str(), nullptr, 10));
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  return static_cast<std::size_t>(std::cin.gcount()) == text.size();
}

void print(const std::vector<std::int32_t>& tokens) {
  for (const std::int32_t token : tokens) std::cout << token << ' ';
  std::cout << '\n';
}

int write_tokens(const llm::Tokenizer& tokenizer, bool special) {
  std::string text;
  while (read_text(text)) {
    const auto tokens = tokenizer.encode(text, special);
    if (!tokens) return fail(tokens.status());
    print(*tokens);
  }
  return 0;
}

int write_chat(const llm::Tokenizer& tokenizer, const llm::GgufContents& file) {
  const auto chat = llm::ChatTemplate::from(file);
  if (!chat) return fail(chat.status());
  std::vector<llm::Message> messages;
  llm::Message message;
  while (read_text(message.role) && read_text(message.content)) messages.push_back(message);
  const auto tokens = chat->encode(tokenizer, messages, true);
  if (!tokens) return fail(tokens.status());
  print(*tokens);
  return 0;
}

int write_decoded(const llm::Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens;
  std::int32_t token = 0;
  while (std::cin >> token) tokens.push_back(token);
  std::cout << tokenizer.decode(tokens);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string_view verb = argv[2];
  const regard::Expected<llm::GgufFile> file = llm::GgufFile::open(argv[1]);
  if (!file) return fail(file.status());
  if (verb == "tensor" && argc == 4) return write_tensor(file->contents(), argv[3]);
  const regard::Expected<llm::Tokenizer> tokenizer = llm::Tokenizer::from(file->contents());
  if (!tokenizer) return fail(tokenizer.status());
  if (verb == "tokens") return write_tokens(*tokenizer, false);
  if (verb == "special") return write_tokens(*tokenizer, true);
  if (verb == "chat") return write_chat(*tokenizer, file->contents());
  if (verb == "decode") return write_decoded(*tokenizer);
  return 2;
}
