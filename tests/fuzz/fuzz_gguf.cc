#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fuzz/require.h"
#include "tools/llm/gguf.h"
#include "tools/llm/tokenizer.h"

// Any bytes are either refused with a printable reason or are tensors that lie inside the file, as
// large as their shapes say, whose rows can be read; and what the file says of a tokenizer and of a
// chat template is either refused with a reason or works.

namespace {

using regard::Expected;
using regard::Status;

void check_refusal(const Status& status) {
  require(status.message().starts_with("["), "a refusal names its place");
  for (const char c : status.message()) {
    require(c >= 0x20 && c < 0x7f, "a message is printable ASCII");
  }
}

void check_tensor(const llm::GgufTensor& tensor, const std::vector<std::byte>& file) {
  require(tensor.data.data() >= file.data(), "data starts inside the file");
  require(tensor.data.data() + tensor.data.size() <= file.data() + file.size(),
          "data ends inside it");
  require(tensor.rows() > 0 && tensor.columns() > 0, "a tensor has elements");
  // At most 2 elements a byte, so that what is read is of the file's order.
  const auto elements = static_cast<std::size_t>(tensor.rows() * tensor.columns());
  require(elements <= 2 * tensor.data.size(), "the shape and the bytes agree");
  std::vector<float> values(elements);
  llm::dequantize(tensor, 0, tensor.rows(), values.data());
  std::vector<float> last(static_cast<std::size_t>(tensor.columns()));
  llm::dequantize(tensor, tensor.rows() - 1, 1, last.data());
  require(std::memcmp(last.data(), values.data() + elements - last.size(),
                      last.size() * sizeof(float)) == 0,
          "a row is the same alone and among all");
}

void check_tokenizer(const llm::GgufContents& contents) {
  const Expected<llm::Tokenizer> tokenizer = llm::Tokenizer::from(contents);
  if (!tokenizer) return check_refusal(tokenizer.status());
  const Expected<llm::ChatTemplate> chat = llm::ChatTemplate::from(contents);
  if (!chat) check_refusal(chat.status());
  const auto tokens = tokenizer->encode("Ab 12 <|im_end|>\xc3\xa9", true);
  require(tokens.ok(), "text is encoded");
  for (const std::int32_t token : *tokens) {
    require(token >= 0 && token < tokenizer->vocab_size(), "a token is in the vocabulary");
  }
  if (!chat) return;
  const std::vector<llm::Message> messages = {{"user", "Hi"}};
  const auto conversation = chat->encode(*tokenizer, messages, true);
  if (!conversation) check_refusal(conversation.status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> file(size);
  if (size > 0) std::memcpy(file.data(), data, size);
  const Expected<llm::GgufContents> contents = llm::GgufContents::parse(file);
  if (!contents) {
    check_refusal(contents.status());
    return 0;
  }
  for (const llm::GgufTensor& tensor : contents->tensors()) {
    require(contents->find(tensor.name) == &tensor, "a tensor is found by its name");
    check_tensor(tensor, file);
  }
  check_tokenizer(*contents);
  return 0;
}
