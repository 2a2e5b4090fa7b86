#include <utility>

#include "tools/llm/gguf.h"

namespace llm {

regard::Expected<GgufFile> GgufFile::open(const std::string& path) {
  auto bytes = regard::files::MappedBytes::open(path, "gguf");
  if (!bytes) return bytes.status();
  auto contents = GgufContents::parse(bytes->bytes());
  if (!contents) return regard::files::in_file(contents.status(), path);
  return GgufFile(*std::move(bytes), *std::move(contents));
}

}  // namespace llm
