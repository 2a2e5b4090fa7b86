#include <utility>

#include "tools/regard/safetensors.h"

namespace regard::safetensors {

Expected<MappedFile> MappedFile::open(const std::string& path) {
  Expected<files::MappedBytes> bytes = files::MappedBytes::open(path, "safetensors");
  if (!bytes) return bytes.status();
  Expected<Contents> contents = parse(bytes->bytes());
  if (!contents) return files::in_file(contents.status(), path);
  return MappedFile(*std::move(bytes), *std::move(contents));
}

}  // namespace regard::safetensors
