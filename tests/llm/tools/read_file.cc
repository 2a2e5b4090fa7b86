#include <cstdio>
#include <string_view>
#include <vector>

#include "tools/llm/gguf.h"

// What the library reads of a GGUF file, for tests in Python that compare it with other readers.
//
// usage: read_file FILE tensor NAME    a tensor as f32 in rows, to stdout

namespace {

int fail(const regard::Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

int write_tensor(const llm::GgufFile& file, std::string_view name) {
  const llm::GgufTensor* tensor = file.contents().find(name);
  if (tensor == nullptr) {
    std::fprintf(stderr, "no such tensor\n");
    return 1;
  }
  std::vector<float> row(static_cast<std::size_t>(tensor->columns()));
  for (std::int64_t i = 0; i < tensor->rows(); ++i) {
    llm::dequantize(*tensor, i, 1, row.data());
    if (std::fwrite(row.data(), sizeof(float), row.size(), stdout) != row.size()) return 1;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv, argv + argc);
  if (argc < 3) return 2;
  const regard::Expected<llm::GgufFile> file = llm::GgufFile::open(argv[1]);
  if (!file) return fail(file.status());
  if (arguments[2] == "tensor" && argc == 4) return write_tensor(*file, arguments[3]);
  return 2;
}
