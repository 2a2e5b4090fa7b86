#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fuzz/require.h"
#include "tools/regard/safetensors.h"

// Any bytes are either refused with a reason or are tensors that lie inside the file, aligned and
// apart from each other; and what was read, written again, reads the same.

namespace {

using regard::Expected;
using regard::safetensors::Contents;
using regard::safetensors::EncodedHeader;
using regard::safetensors::TensorEntry;
using regard::safetensors::TensorToWrite;

/// Inputs that start with '{' are a header alone, so that mutations need not keep a length in step:
/// the length is put before it and 64 zero bytes after it. Others are whole files.
std::vector<std::byte> file_of(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kDataBytes = 64;
  const bool header_alone = size > 0 && data[0] == '{';
  const std::size_t before = header_alone ? 8 : 0;
  std::vector<std::byte> file(before + size + (header_alone ? kDataBytes : 0));
  if (size > 0) std::memcpy(file.data() + before, data, size);
  for (std::size_t i = 0; i < before; ++i) file[i] = static_cast<std::byte>(size >> (8 * i));
  return file;
}

void check_entry(const TensorEntry& tensor, const std::vector<std::byte>& file) {
  require(tensor.data >= file.data(), "data starts inside the file");
  require(tensor.data + tensor.size_bytes <= file.data() + file.size(), "data ends inside it");
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  const auto item = static_cast<std::uintptr_t>(regard::size_of(tensor.dtype));
  require(tensor.size_bytes == 0 || address % item == 0, "data is aligned");
  const Expected<regard::TensorView> view = regard::safetensors::view_of(tensor);
  const bool rank_fits = !tensor.shape.empty() && tensor.shape.size() <= regard::kMaxRank;
  require(view.ok() == rank_fits, "a view exists for ranks 1 to 4");
  if (view) {
    require(view->num_elements() * regard::size_of(tensor.dtype) == tensor.size_bytes,
            "the shape and the bytes agree");
  }
}

void check_round_trip(const Contents& contents) {
  std::vector<TensorToWrite> tensors;
  for (const TensorEntry& tensor : contents.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
  }
  const Expected<EncodedHeader> header =
      regard::safetensors::encode_header(tensors, contents.metadata);
  require(header.ok(), "what was read can be written");
  std::vector<std::byte> file(header->bytes.size());
  std::memcpy(file.data(), header->bytes.data(), file.size());
  for (const std::size_t i : header->order) {
    const TensorEntry& tensor = contents.tensors[i];
    file.insert(file.end(), tensor.data, tensor.data + tensor.size_bytes);
  }
  const Expected<Contents> again = regard::safetensors::parse(file);
  require(again.ok(), "what was written can be read");
  require(again->metadata == contents.metadata, "metadata survives");
  require(again->tensors.size() == contents.tensors.size(), "every tensor survives");
  for (const TensorEntry& tensor : contents.tensors) {
    const TensorEntry* copy = again->find(tensor.name);
    require(copy != nullptr && copy->dtype == tensor.dtype && copy->shape == tensor.shape,
            "name, dtype and shape survive");
    const auto bytes = static_cast<std::size_t>(tensor.size_bytes);
    require(bytes == 0 || std::memcmp(copy->data, tensor.data, bytes) == 0, "values survive");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::byte> file = file_of(data, size);
  const Expected<Contents> contents = regard::safetensors::parse(file);
  if (!contents) {
    const std::string& message = contents.status().message();
    require(message.starts_with("[safetensors] "), "a refusal names its place");
    for (const char c : message) require(c >= 0x20 && c < 0x7f, "a message is printable ASCII");
    return 0;
  }
  for (const TensorEntry& tensor : contents->tensors) check_entry(tensor, file);
  check_round_trip(*contents);
  return 0;
}
