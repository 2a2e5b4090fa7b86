#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/llm/gguf_writer.h"
#include "tests/support/temp_folder.h"
#include "tools/llm/gguf.h"

namespace llm {
namespace {

using regard::Expected;
using test::GgufWriter;

void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string map_refusal(const std::filesystem::path& path) {
  const Expected<GgufFile> file = GgufFile::open(path.string());
  EXPECT_FALSE(file.ok()) << path;
  return file.ok() ? "" : file.status().message();
}

GgufWriter with_value(float value) {
  return GgufWriter().tensor("t", {1}, GgmlType::kF32, std::vector<float>{value});
}

float value_of(const GgufFile& file) {
  float value = 0;
  dequantize(file.contents().tensors().front(), 0, 1, &value);
  return value;
}

TEST(GgufMap, OpensAFile) {
  const regard::test::TempFolder folder;
  const auto path = folder.path() / "a.gguf";
  with_value(7).save(path);
  const Expected<GgufFile> file = GgufFile::open(path.string());
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->size(), std::filesystem::file_size(path));
  EXPECT_EQ(value_of(*file), 7);
}

TEST(GgufMap, BytesStayWhenThePathIsReplaced) {
  const regard::test::TempFolder folder;
  const auto path = folder.path() / "a.gguf";
  with_value(7).save(path);
  const Expected<GgufFile> file = GgufFile::open(path.string());
  ASSERT_TRUE(file.ok());
  with_value(8).save(folder.path() / "b.gguf");
  std::filesystem::rename(folder.path() / "b.gguf", path);
  EXPECT_EQ(value_of(*file), 7);
  std::filesystem::remove(path);
  EXPECT_EQ(value_of(*file), 7);
}

TEST(GgufMap, Moves) {
  const regard::test::TempFolder folder;
  with_value(7).save(folder.path() / "7");
  with_value(8).save(folder.path() / "8");
  Expected<GgufFile> seven = GgufFile::open((folder.path() / "7").string());
  Expected<GgufFile> eight = GgufFile::open((folder.path() / "8").string());
  ASSERT_TRUE(seven.ok() && eight.ok());
  GgufFile moved = *std::move(seven);
  EXPECT_EQ(value_of(moved), 7);
  moved = *std::move(eight);
  EXPECT_EQ(value_of(moved), 8);
}

TEST(GgufMap, RefusesWhatIsNoFile) {
  const regard::test::TempFolder folder;
  EXPECT_NE(map_refusal(folder.path() / "absent").find("No such file"), std::string::npos);
  EXPECT_NE(map_refusal(folder.path()).find("it is not a regular file"), std::string::npos);
  const auto fifo = folder.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_NE(map_refusal(fifo).find("it is not a regular file"), std::string::npos);
}

TEST(GgufMap, RefusalsNameTheFile) {
  const regard::test::TempFolder folder;
  write(folder.path() / "empty", "");
  write(folder.path() / "other", "PK\3\4 this is another format");
  const std::string empty = map_refusal(folder.path() / "empty");
  EXPECT_NE(empty.find("the file ends at byte 0"), std::string::npos) << empty;
  EXPECT_NE(empty.find("(file '"), std::string::npos) << empty;
  EXPECT_NE(map_refusal(folder.path() / "other").find("does not begin with 'GGUF'"),
            std::string::npos);
}

}  // namespace
}  // namespace llm
