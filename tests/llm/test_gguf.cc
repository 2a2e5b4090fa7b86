#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/llm/gguf_writer.h"
#include "tools/llm/gguf.h"

namespace llm {
namespace {

using regard::Expected;
using test::GgufWriter;

constexpr auto kMaxInt = std::numeric_limits<std::int64_t>::max();

/// Contents of a file that must be readable. They point into `bytes`.
GgufContents parsed(const std::vector<std::byte>& bytes) {
  Expected<GgufContents> contents = GgufContents::parse(bytes);
  EXPECT_TRUE(contents.ok()) << contents.status().to_string();
  return contents ? *std::move(contents) : GgufContents();
}

template <class T>
std::string message(const Expected<T>& result) {
  return result.ok() ? "no failure" : result.status().message();
}

TEST(Gguf, ReadsEveryIntegerType) {
  GgufWriter writer;
  writer.set("u8", std::uint8_t{255}).set("i8", std::int8_t{-128});
  writer.set("u16", std::uint16_t{65535}).set("i16", std::int16_t{-32768});
  writer.set("u32", std::uint32_t{0xffffffff}).set("i32", std::int32_t{-0x7fffffff - 1});
  writer.set("u64", std::uint64_t{kMaxInt}).set("i64", -kMaxInt - 1);
  const auto bytes = writer.bytes();
  const GgufContents file = parsed(bytes);
  EXPECT_EQ(file.integer("u8").value(), 255);
  EXPECT_EQ(file.integer("i8").value(), -128);
  EXPECT_EQ(file.integer("u16").value(), 65535);
  EXPECT_EQ(file.integer("i16").value(), -32768);
  EXPECT_EQ(file.integer("u32").value(), 0xffffffff);
  EXPECT_EQ(file.integer("i32").value(), -0x7fffffffLL - 1);
  EXPECT_EQ(file.integer("u64").value(), kMaxInt);
  EXPECT_EQ(file.integer("i64").value(), -kMaxInt - 1);
  EXPECT_EQ(file.number("i16").value(), -32768.0);
}

TEST(Gguf, ReadsNumbersFlagsAndTexts) {
  const auto bytes = GgufWriter()
                         .set("f32", 0.1f)
                         .set("f64", 0.1)
                         .set("yes", true)
                         .set("no", false)
                         .set("text", std::string_view("a\0\xff", 3))
                         .bytes();
  const GgufContents file = parsed(bytes);
  EXPECT_EQ(file.number("f32").value(), static_cast<double>(0.1f));
  EXPECT_EQ(file.number("f64").value(), 0.1);
  EXPECT_TRUE(file.flag("yes").value());
  EXPECT_FALSE(file.flag("no").value());
  EXPECT_EQ(file.text("text").value(), std::string_view("a\0\xff", 3));
  EXPECT_TRUE(file.has("no"));
  EXPECT_FALSE(file.has("n"));
}

TEST(Gguf, ReadsArrays) {
  GgufWriter writer;
  writer.set("i32", std::vector<std::int32_t>{-1, 2}).set("u8", std::vector<std::uint8_t>{255});
  writer.set("bools", std::vector<bool>{true, false});
  writer.set("texts", std::vector<std::string>{"", "b"}).set("f32", std::vector<float>{1, 2});
  writer.set("none", std::vector<std::string>());
  const auto bytes = writer.bytes();
  const GgufContents file = parsed(bytes);
  const auto same = [](const auto& got, const auto& want) {
    return got.ok() && std::equal(got->begin(), got->end(), want.begin(), want.end());
  };
  EXPECT_TRUE(same(file.integers("i32"), std::vector<std::int64_t>{-1, 2}));
  EXPECT_TRUE(same(file.integers("u8"), std::vector<std::int64_t>{255}));
  EXPECT_TRUE(same(file.integers("bools"), std::vector<std::int64_t>{1, 0}));
  EXPECT_TRUE(same(file.texts("texts"), std::vector<std::string>{"", "b"}));
  EXPECT_TRUE(same(file.texts("none"), std::vector<std::string>()));
}

TEST(Gguf, GettersNameTheKeyWhatItIsAndWhatWasExpected) {
  const auto bytes = GgufWriter()
                         .set("text", "long\x1b[2J")
                         .set("one", 1)
                         .set("yes", true)
                         .set("half", 0.5)
                         .set("floats", std::vector<float>{1})
                         .set("texts", std::vector<std::string>{"a", "b"})
                         .set("ints", std::vector<int>{1, 2, 3})
                         .bytes();
  const GgufContents file = parsed(bytes);
  EXPECT_EQ(message(file.integer("absent")), "[gguf] key 'absent' is missing, expected an integer");
  EXPECT_EQ(message(file.integer("text")),
            "[gguf] key 'text' is the string 'long\\x1b[2J', expected an integer");
  EXPECT_EQ(message(file.integer("half")), "[gguf] key 'half' is 0.500000, expected an integer");
  EXPECT_EQ(message(file.number("yes")), "[gguf] key 'yes' is true, expected a number");
  EXPECT_EQ(message(file.number("x")), "[gguf] key 'x' is missing, expected a number");
  EXPECT_EQ(message(file.flag("one")), "[gguf] key 'one' is 1, expected true or false");
  EXPECT_EQ(message(file.flag("x")), "[gguf] key 'x' is missing, expected true or false");
  EXPECT_EQ(message(file.text("texts")),
            "[gguf] key 'texts' is an array of 2 strings, expected a string");
  EXPECT_EQ(message(file.text("x")), "[gguf] key 'x' is missing, expected a string");
  EXPECT_EQ(message(file.texts("ints")),
            "[gguf] key 'ints' is an array of 3 integers, expected an array of strings");
  EXPECT_EQ(message(file.texts("x")), "[gguf] key 'x' is missing, expected an array of strings");
  EXPECT_EQ(message(file.integers("floats")),
            "[gguf] key 'floats' is an array of 1 numbers, expected an array of integers");
  EXPECT_EQ(message(file.integers("x\n")),
            "[gguf] key 'x\\x0a' is missing, expected an array of integers");
}

TEST(Gguf, ReadsTensors) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  for (const std::uint32_t version : {2u, 3u}) {
    const auto bytes = GgufWriter(version)
                           .set("key", 1)
                           .tensor("a", {2, 3}, GgmlType::kF32, values)
                           .tensor("b", {6}, GgmlType::kF16, values)
                           .tensor("c", {1, 3, 2, 1}, GgmlType::kBF16, values)
                           .bytes();
    const GgufContents file = parsed(bytes);
    ASSERT_EQ(file.tensors().size(), 3u);
    const GgufTensor* a = file.find("a");
    const GgufTensor* b = file.find("b");
    const GgufTensor* c = file.find("c");
    ASSERT_TRUE(a != nullptr && b != nullptr && c != nullptr);
    EXPECT_EQ(file.find("d"), nullptr);
    EXPECT_EQ(a->shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(a->rows(), 2);
    EXPECT_EQ(a->columns(), 3);
    EXPECT_EQ(b->rows(), 1);
    EXPECT_EQ(c->rows(), 6);
    EXPECT_EQ(c->columns(), 1);
    EXPECT_EQ(a->data.size(), 24u);
    EXPECT_EQ(b->data.size(), 12u);
    EXPECT_EQ(b->data.data() - a->data.data(), 32);  // aligned to 32
    EXPECT_EQ(c->data.data() + c->data.size(), bytes.data() + bytes.size());
    std::vector<float> row(3);
    dequantize(*a, 1, 1, row.data());
    EXPECT_EQ(row, (std::vector<float>{4, 5, 6}));
  }
}

TEST(Gguf, DataBeginsAtTheStatedAlignment) {
  const std::vector<float> values(3, 7.0f);
  for (const std::uint32_t alignment : {8u, 64u, 4096u}) {
    const auto bytes = GgufWriter()
                           .align(alignment)
                           .tensor("a", {3}, GgmlType::kF32, values)
                           .tensor("b", {3}, GgmlType::kF32, values)
                           .bytes();
    const GgufContents file = parsed(bytes);
    ASSERT_EQ(file.tensors().size(), 2u);
    for (const GgufTensor& tensor : file.tensors()) {
      EXPECT_EQ((tensor.data.data() - bytes.data()) % alignment, 0u);
      std::vector<float> row(3);
      dequantize(tensor, 0, 1, row.data());
      EXPECT_EQ(row, values);
    }
  }
}

TEST(Gguf, AFileMayHaveNoTensorsAndNoKeys) {
  const auto bytes = GgufWriter().bytes();
  EXPECT_TRUE(parsed(bytes).tensors().empty());
}

TEST(Gguf, BytesAfterTheLastTensorAreIgnored) {
  auto bytes = GgufWriter().tensor("a", {1}, GgmlType::kF32, std::vector<float>{1}).bytes();
  bytes.resize(bytes.size() + 28);  // ggml pads the last tensor as well
  EXPECT_EQ(parsed(bytes).tensors().size(), 1u);
}

}  // namespace
}  // namespace llm
