#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/llm/gguf_writer.h"
#include "tools/llm/gguf.h"

// Files that are cut, wrong or made to harm are refused with a sentence that names the key or the
// tensor, before memory is taken for what they promise.

namespace llm {
namespace {

using regard::Expected;
using test::Bytes;
using test::GgufWriter;

constexpr std::uint32_t kMagic = 0x46554747;
constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

bool printable(const std::string& text) {
  for (const char c : text) {
    if (c < 0x20 || c == 0x7f) return false;
  }
  return true;
}

/// The message of a refusal.
std::string hostile_refusal(const std::vector<std::byte>& file) {
  const Expected<GgufContents> contents = GgufContents::parse(file);
  EXPECT_FALSE(contents.ok());
  const std::string& message = contents.status().message();
  EXPECT_TRUE(message.starts_with("[gguf] ")) << message;
  EXPECT_TRUE(printable(message)) << message;
  return message.substr(std::min<std::size_t>(7, message.size()));
}

Bytes header(std::uint64_t tensors, std::uint64_t keys) {
  return Bytes().put(kMagic).put(std::uint32_t{3}).put(tensors).put(keys);
}

/// Room for counts that are to be refused for another reason.
Bytes padded(Bytes bytes) { return bytes.raw(std::vector<std::byte>(4096)); }

/// A file with one key, whose type and value are `value`.
std::string refusal_of_value(const Bytes& value) {
  return hostile_refusal(header(0, 1).text("x\x1b").raw(value.bytes()).bytes());
}

/// A file with one tensor 't' whose fields after its name are `fields`, and 4 KiB after them.
std::string refusal_of_tensor(const Bytes& fields) {
  return hostile_refusal(padded(header(1, 0).text("t").raw(fields.bytes())).bytes());
}

Bytes tensor_fields(const std::vector<std::int64_t>& files_shape, std::uint32_t type,
                    std::uint64_t offset) {
  Bytes out;
  out.put(static_cast<std::uint32_t>(files_shape.size()));
  for (const std::int64_t extent : files_shape) out.put(extent);
  return out.put(type).put(offset);
}

GgufWriter small_file() {
  GgufWriter writer;
  writer.set("general.architecture", "llama").set("ints", std::vector<std::int32_t>{1, 2, 3});
  writer.set("flag", true).set("texts", std::vector<std::string>{"a", "bc"}).set("f", 1.5);
  const std::vector<float> values(64, 1.0f);
  writer.tensor("first", {2, 32}, GgmlType::kQ8_0, values);
  writer.tensor("second", {4, 16}, GgmlType::kF32, values);
  return writer;
}

TEST(GgufHostile, EveryTruncationIsRefused) {
  const auto whole = small_file().bytes();
  ASSERT_TRUE(GgufContents::parse(whole).ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // A copy of its own, so that a sanitizer sees a read past its end.
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<long>(size));
    const std::string message = hostile_refusal(cut);
    const bool names = message.find("key") != std::string::npos ||
                       message.find("tensor") != std::string::npos ||
                       message.find("header") != std::string::npos;
    EXPECT_TRUE(names) << size << ": " << message;
  }
}

TEST(GgufHostile, AChangedByteIsRefusedOrLeavesTensorsInsideTheFile) {
  const auto whole = small_file().bytes();
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      auto bytes = whole;
      bytes[at] ^= static_cast<std::byte>(change);
      const Expected<GgufContents> contents = GgufContents::parse(bytes);
      if (!contents) {
        ++refused;
        EXPECT_TRUE(printable(contents.status().message())) << contents.status().message();
        continue;
      }
      for (const GgufTensor& tensor : contents->tensors()) {
        EXPECT_GE(tensor.data.data(), bytes.data());
        EXPECT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
        std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.columns()));
        dequantize(tensor, 0, tensor.rows(), values.data());
      }
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(GgufHostile, Headers) {
  EXPECT_EQ(hostile_refusal({}), "the file ends at byte 0, inside the header (byte 0)");
  EXPECT_EQ(hostile_refusal(Bytes().put(0x46554748).put(3).bytes()),
            "the file does not begin with 'GGUF'");
  EXPECT_EQ(hostile_refusal(Bytes().put(kMagic).put(1).bytes()),
            "the file has version 1, expected 2 or 3");
  EXPECT_EQ(hostile_refusal(Bytes().put(kMagic).put(0).bytes()),
            "the file has version 0, expected 2 or 3");
  EXPECT_EQ(hostile_refusal(Bytes().put(kMagic).put(0x03000000).bytes()),
            "the file is big-endian, expected little-endian");
  EXPECT_EQ(
      hostile_refusal(header(kHuge, 0).bytes()),
      "the header states 18446744073709551615 tensors, expected at most 0 in the 8 bytes that "
      "follow");
  EXPECT_EQ(hostile_refusal(padded(header(0, kHuge)).bytes()),
            "the header states 18446744073709551615 keys, expected at most 315 in the 4096 bytes "
            "that follow");
}

TEST(GgufHostile, Keys) {
  EXPECT_EQ(hostile_refusal(padded(header(0, 2).put(kHuge)).bytes()),
            "key 1 of 2 has a string of 18446744073709551615 bytes, expected at most 65535");
  EXPECT_EQ(hostile_refusal(header(0, 1).put(std::uint64_t{9}).put(1.0f).put('x').bytes()),
            "key 1 of 1 has a string of 9 bytes, expected at most 5, the rest of the file");
  // One byte too long.
  EXPECT_EQ(hostile_refusal(header(0, 1).put(std::uint64_t{6}).put(1.0f).put('x').bytes()),
            "key 1 of 1 has a string of 6 bytes, expected at most 5, the rest of the file");
  EXPECT_EQ(hostile_refusal(GgufWriter().set("a", 1).set("a", 2).bytes()),
            "the key 'a' comes twice");
}

TEST(GgufHostile, Values) {
  EXPECT_EQ(refusal_of_value(Bytes().put(13u).put(kHuge)),
            "key 'x\\x1b' has the value type 13, expected 0 to 12");
  EXPECT_EQ(refusal_of_value(Bytes().put(10u).put(kHuge)),
            "key 'x\\x1b' is 18446744073709551615, expected at most 2^63 - 1");
  EXPECT_EQ(refusal_of_value(Bytes().put(7u).put('\2')),
            "key 'x\\x1b' is a bool of value 2, expected 0 or 1");
  EXPECT_EQ(refusal_of_value(Bytes().put(12u).put(1.0f)),
            "the file ends at byte 42, inside key 'x\\x1b' (byte 38)");
  EXPECT_EQ(refusal_of_value(Bytes().put(8u).put(kHuge)),
            "key 'x\\x1b' has a string of 18446744073709551615 bytes, expected at most 0, the rest "
            "of the file");
}

TEST(GgufHostile, Arrays) {
  const auto array = [](std::uint32_t of) { return Bytes().put(9u).put(of); };
  EXPECT_EQ(refusal_of_value(array(9).put(std::uint64_t{1})),
            "key 'x\\x1b' is an array of arrays, which is not read here");
  EXPECT_EQ(refusal_of_value(array(77).put(std::uint64_t{1})),
            "key 'x\\x1b' has the value type 77, expected 0 to 12");
  EXPECT_EQ(refusal_of_value(array(8).put(kHuge)),
            "key 'x\\x1b' states 18446744073709551615 elements, expected at most 0 in the 0 bytes "
            "that follow");
  EXPECT_EQ(refusal_of_value(array(4).put(std::uint64_t{1} << 62).put(7u)),
            "key 'x\\x1b' states 4611686018427387904 elements, expected at most 1 in the 4 bytes "
            "that follow");
  EXPECT_EQ(refusal_of_value(array(4).put(std::uint64_t{2}).put(7u)),
            "key 'x\\x1b' states 2 elements, expected at most 1 in the 4 bytes that follow");
  EXPECT_EQ(refusal_of_value(array(8).put(std::uint64_t{2}).text("ab").put(kHuge)),
            "element 1 of key 'x\\x1b' has a string of 18446744073709551615 bytes, expected at "
            "most 0, the rest of the file");
  EXPECT_EQ(refusal_of_value(array(7).put(std::uint64_t{2}).put('\1').put('\3')),
            "element 1 of key 'x\\x1b' is a bool of value 3, expected 0 or 1");
}

TEST(GgufHostile, Alignments) {
  for (const std::uint32_t alignment : {0u, 1u, 4u, 48u, 33u}) {
    EXPECT_EQ(hostile_refusal(GgufWriter().set("general.alignment", alignment).bytes()),
              "key 'general.alignment' is " + std::to_string(alignment) +
                  ", expected a power of two of at least 8");
  }
  EXPECT_EQ(hostile_refusal(GgufWriter().set("general.alignment", "32").bytes()),
            "key 'general.alignment' is not an integer");
  // An alignment beyond the file's end leaves no data.
  GgufWriter writer;
  writer.set("general.alignment", std::int64_t{1} << 62);
  writer.tensor("t", {1}, GgmlType::kF32, std::vector<float>{1});
  EXPECT_EQ(hostile_refusal(writer.bytes()),
            "tensor 't' starts at offset 0 of the data and has 4 bytes, expected its end within "
            "the 0 bytes of data in the file");
}

TEST(GgufHostile, TensorShapes) {
  EXPECT_EQ(refusal_of_tensor(tensor_fields({}, 0, 0)),
            "tensor 't' has 0 extents, expected 1 to 4");
  EXPECT_EQ(refusal_of_tensor(tensor_fields({1, 1, 1, 1, 1}, 0, 0)),
            "tensor 't' has 5 extents, expected 1 to 4");
  EXPECT_EQ(refusal_of_tensor(tensor_fields({4, 0}, 0, 0)),
            "tensor 't' has an extent of 0, expected 1 to 2^63 - 1");
  EXPECT_EQ(refusal_of_tensor(tensor_fields({4, -1}, 0, 0)),
            "tensor 't' has an extent of -1, expected 1 to 2^63 - 1");
  const std::int64_t big = std::int64_t{1} << 62;
  EXPECT_EQ(refusal_of_tensor(tensor_fields({4, big}, 0, 0)),
            "tensor 't' of F32 has shape [4611686018427387904,4], expected at most 2^63 - 1 bytes");
  EXPECT_EQ(refusal_of_tensor(tensor_fields({big}, 0, 0)),
            "tensor 't' of F32 has shape [4611686018427387904], expected at most 2^63 - 1 bytes");
  EXPECT_EQ(refusal_of_tensor(tensor_fields({1 << 30, 1 << 30, 1 << 30, 1 << 30}, 2, 0)),
            "tensor 't' of Q4_0 has shape [1073741824,1073741824,1073741824,1073741824], expected "
            "at most 2^63 - 1 bytes");
  EXPECT_EQ(refusal_of_tensor(tensor_fields({48, 2}, 3, 0)),
            "tensor 't' of Q4_1 has shape [2,48], expected rows of a multiple of 32 elements");
  EXPECT_EQ(refusal_of_tensor(tensor_fields({128, 2}, 14, 0)),
            "tensor 't' of Q6_K has shape [2,128], expected rows of a multiple of 256 elements");
}

TEST(GgufHostile, TensorTypesAndNames) {
  const std::string expected =
      ", expected one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";
  EXPECT_EQ(refusal_of_tensor(tensor_fields({256}, 10, 0)),
            "tensor 't' has type 10 (Q2_K)" + expected);
  EXPECT_EQ(refusal_of_tensor(tensor_fields({256}, 4, 0)), "tensor 't' has type 4" + expected);
  EXPECT_EQ(refusal_of_tensor(tensor_fields({256}, 0xffffffff, 0)),
            "tensor 't' has type 4294967295" + expected);
  EXPECT_EQ(hostile_refusal(padded(header(3, 0).put(std::uint64_t{65})).bytes()),
            "tensor 1 of 3 has a string of 65 bytes, expected at most 64");
  const std::vector<float> one = {1};
  EXPECT_EQ(hostile_refusal(GgufWriter()
                                .tensor("a\n", {1}, GgmlType::kF32, one)
                                .tensor("a\n", {1}, GgmlType::kF32, one)
                                .bytes()),
            "the tensor 'a\\x0a' comes twice");
}

TEST(GgufHostile, TensorPlaces) {
  EXPECT_EQ(refusal_of_tensor(tensor_fields({1}, 0, 8)),
            "tensor 't' starts at offset 8 of the data, expected a multiple of 32 "
            "(general.alignment)");
  // The fields are 57 bytes, so the data starts at byte 64 and has 4089 bytes.
  EXPECT_EQ(refusal_of_tensor(tensor_fields({1}, 0, 4096)),
            "tensor 't' starts at offset 4096 of the data and has 4 bytes, expected its end within "
            "the 4089 bytes of data in the file");
  EXPECT_EQ(
      refusal_of_tensor(tensor_fields({1}, 0, kHuge - 31)),
      "tensor 't' starts at offset 18446744073709551584 of the data and has 4 bytes, expected "
      "its end within the 4089 bytes of data in the file");
  EXPECT_EQ(
      refusal_of_tensor(tensor_fields({1016}, 0, 32)),
      "tensor 't' starts at offset 32 of the data and has 4064 bytes, expected its end within "
      "the 4089 bytes of data in the file");
  Bytes overlap = header(2, 0);
  overlap.text("b").raw(tensor_fields({4}, 0, 32).bytes());
  overlap.text("a").raw(tensor_fields({9}, 0, 0).bytes());
  EXPECT_EQ(hostile_refusal(padded(overlap).bytes()), "tensor 'b' overlaps tensor 'a'");
}

TEST(GgufHostile, LongNamesAreCut) {
  const std::string name(70, 'k');
  const std::string message = hostile_refusal(GgufWriter().set(name, 1).set(name, 1).bytes());
  EXPECT_EQ(message, "the key '" + std::string(60, 'k') + "...' comes twice");
}

}  // namespace
}  // namespace llm
