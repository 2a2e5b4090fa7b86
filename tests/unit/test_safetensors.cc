#include "tools/regard/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace regard::safetensors {
namespace {

namespace fs = std::filesystem;

/// The bytes of a file with `header` and `data_bytes` zero bytes after it.
std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(header.size() >> (8 * i));
  if (!header.empty()) std::memcpy(file.data() + 8, header.data(), header.size());
  return file;
}

/// `json` with spaces after it, so that the data is aligned to 8.
std::string padded(std::string json) {
  json.append((8 - json.size() % 8) % 8, ' ');
  return json;
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return padded(R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
                offsets + "}}");
}

/// The message of a refusal; the tests below state what it must name.
std::string file_refusal(const std::string& header, std::size_t data_bytes,
                         StatusCode code = StatusCode::kInvalidArgument) {
  const Expected<Contents> contents = parse(file_of(header, data_bytes));
  EXPECT_FALSE(contents.ok()) << header;
  EXPECT_EQ(contents.status().code(), code) << contents.status().to_string();
  return contents.status().message();
}

void expect_has(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

TEST(SafetensorsParse, ReadsEveryDtype) {
  const std::vector<std::pair<std::string, Dtype>> names = {
      {"F64", Dtype::kF64},   {"F32", Dtype::kF32},        {"F16", Dtype::kF16},
      {"BF16", Dtype::kBf16}, {"F8_E4M3", Dtype::kF8E4M3}, {"F8_E5M2", Dtype::kF8E5M2},
      {"I64", Dtype::kI64},   {"I32", Dtype::kI32},        {"I8", Dtype::kI8},
      {"U8", Dtype::kU8},     {"BOOL", Dtype::kBool}};
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kDtypeCount - 1));  // all but u4
  for (const auto& [name, dtype] : names) {
    const std::size_t bytes = 3 * static_cast<std::size_t>(size_of(dtype));
    const auto file = file_of(one(name, "[3]", "[0," + std::to_string(bytes) + "]"), bytes);
    const Expected<Contents> contents = parse(file);
    ASSERT_TRUE(contents.ok()) << contents.status().to_string();
    ASSERT_EQ(contents->tensors.size(), 1u);
    EXPECT_EQ(contents->tensors[0].dtype, dtype);
    EXPECT_EQ(contents->tensors[0].shape, std::vector<std::int64_t>{3});
    EXPECT_EQ(contents->tensors[0].data, file.data() + file.size() - bytes);
    EXPECT_EQ(dtype_name(dtype), name);
  }
}

TEST(SafetensorsParse, AcceptsScalarsEmptyTensorsAndMetadata) {
  const std::string header =
      padded(R"({"__metadata__":{"a":"1","b":""},"empty":{"dtype":"F32","shape":[2,0],)"
             R"("data_offsets":[4,4]},"scalar":{"data_offsets":[0,4],"shape":[],"dtype":"I32"}})");
  const auto file = file_of(header, 4);
  const Expected<Contents> contents = parse(file);
  ASSERT_TRUE(contents.ok()) << contents.status().to_string();
  EXPECT_EQ(contents->metadata, (Metadata{{"a", "1"}, {"b", ""}}));
  ASSERT_NE(contents->find("empty"), nullptr);
  EXPECT_EQ(contents->find("empty")->size_bytes, 0);
  ASSERT_NE(contents->find("scalar"), nullptr);
  EXPECT_TRUE(contents->find("scalar")->shape.empty());
  EXPECT_EQ(contents->find("other"), nullptr);
}

TEST(SafetensorsParse, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(parse(file_of("{}", 0)).ok());
  EXPECT_TRUE(parse(file_of("{ } \n\t\r", 0)).ok());
}

TEST(SafetensorsParse, DecodesEscapes) {
  const std::string header =
      padded(R"({"__metadata__":{"k":"\"\\\/\b\f\n\r\tA\u00e9\u20ac\ud83d\ude00"}})");
  const Expected<Contents> contents = parse(file_of(header, 0));
  ASSERT_TRUE(contents.ok()) << contents.status().to_string();
  EXPECT_EQ(contents->metadata.at("k"), "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

TEST(SafetensorsParse, RefusesShortFilesAndHeaderLengths) {
  for (const std::size_t size : {0, 1, 7}) {
    const Expected<Contents> contents = parse(std::vector<std::byte>(size));
    ASSERT_FALSE(contents.ok());
    expect_has(contents.status().message(), {std::to_string(size) + " bytes", "at least 8"});
  }
  auto file = file_of("{}", 0);
  file[0] = std::byte{3};
  expect_has(parse(file).status().message(), {"length is 3 bytes", "at most 2"});
  file[7] = std::byte{0xff};  // 2^64 - something
  expect_has(parse(file).status().message(), {"18374686479671623683", "at most 100000000"});
  file = file_of("", 0);
  expect_has(parse(file).status().message(), {"the end of the header", "'{'"});
}

TEST(SafetensorsParse, RefusesOffsets) {
  expect_has(file_refusal(one("F32", "[2]", "[0,16]"), 8), {"'x'", "[0,16]", "<= 8"});
  expect_has(file_refusal(one("F32", "[2]", "[8,0]"), 8), {"'x'", "[8,0]", "begin <= end"});
  expect_has(file_refusal(one("F32", "[3]", "[0,8]"), 8), {"'x'", "[0,8]", "12 bytes", "F32[3]"});
  expect_has(file_refusal(one("F32", "[0]", "[0,8]"), 8), {"'x'", "0 bytes"});
  expect_has(file_refusal(one("F32", "[2]", "[0,8]"), 9), {"end at offset 8", "expected 9"});
  expect_has(file_refusal(one("F32", "[2]", "[4,12]"), 12), {"'x'", "offset 4", "hole"});
  expect_has(file_refusal(one("F32", "[2]", "[0]"), 8), {"1 data_offsets", "expected 2"});
  expect_has(file_refusal(one("F32", "[2]", "[0,4,8]"), 8), {"3 data_offsets", "expected 2"});
  const auto two = [](const std::string& a, const std::string& b) {
    return padded(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                  R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}");
  };
  EXPECT_TRUE(parse(file_of(two("[4,8]", "[0,4]"), 8)).ok()) << "header order is free";
  expect_has(file_refusal(two("[0,4]", "[2,6]"), 8), {"'b'", "offset 2", "expected 4", "overlaps"});
  expect_has(file_refusal(two("[0,4]", "[0,4]"), 4), {"'b'", "offset 0", "overlaps"});
  expect_has(file_refusal(two("[0,4]", "[5,9]"), 9), {"'b'", "offset 5", "hole"});
}

TEST(SafetensorsParse, RefusesMisalignedData) {
  // Byte 8 + 57 is odd.
  std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.append(57 - header.size(), ' ');
  expect_has(file_refusal(header, 4), {"'x'", "byte 65", "multiple of 4", "F32"});
  const std::string behind = padded(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                    R"("b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})");
  expect_has(file_refusal(behind, 9), {"'b'", "multiple of 8"});
}

TEST(SafetensorsParse, RefusesOverflow) {
  const StatusCode code = StatusCode::kOverflow;
  expect_has(file_refusal(one("F32", "[4611686018427387904]", "[0,4]"), 4, code), {"'x'", "2^63"});
  expect_has(file_refusal(one("U8", "[4294967296,4294967296]", "[0,0]"), 0, code), {"'x'", "2^63"});
  expect_has(file_refusal(one("F32", "[0,4611686018427387904]", "[0,0]"), 0, code),
             {"'x'", "2^63"});
  expect_has(file_refusal(one("F32", "[9223372036854775808]", "[0,4]"), 4, code),
             {"9223372036854775808", "9223372036854775807"});
  EXPECT_TRUE(parse(file_of(one("U8", "[0,9223372036854775807]", "[0,0]"), 0)).ok());
}

TEST(SafetensorsParse, RefusesNumbersThatAreNotSizes) {
  for (const std::string shape : {"[-1]", "[1.5]", "[1e3]", "[\"1\"]", "[null]", "[01]", "[,1]",
                                  "[1,]", "[1", "1", "[[1]]", "{}", "[+1]", "[0x1]", "[ ]]"}) {
    expect_has(file_refusal(one("F32", shape, "[0,4]"), 4), {"header, byte", "expected"});
  }
}

TEST(SafetensorsParse, RefusesDuplicates) {
  const std::string x = R"("x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_has(file_refusal("{" + x + "," + x + "}", 0), {"'x'", "twice"});
  expect_has(
      file_refusal(R"({"\u0078":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)" + x + "}", 0),
      {"'x'", "twice"});
  expect_has(file_refusal(R"({"__metadata__":{},"__metadata__":{}})", 0),
             {"__metadata__", "twice"});
  expect_has(file_refusal(R"({"__metadata__":{"a":"","a":""}})", 0), {"'a'", "twice"});
  expect_has(
      file_refusal(R"({"x":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
      {"'x'", "'dtype'", "twice"});
}

TEST(SafetensorsParse, RefusesWhatIsNotAHeader) {
  expect_has(file_refusal(" {}", 0), {"byte 8", "'{'"});
  expect_has(file_refusal("[]", 0), {"'['", "'{'"});
  expect_has(file_refusal("{}x", 0), {"'x'", "white space"});
  expect_has(file_refusal("{", 0), {"the end of the header"});
  expect_has(file_refusal(R"({"x":1})", 0), {"'1'", "'{' of a tensor"});
  expect_has(file_refusal(R"({"x":{}})", 0), {"'x'", "0 keys", "data_offsets"});
  expect_has(file_refusal(R"({"x":{"dtype":"U8","shape":[0]}})", 0), {"'x'", "2 keys"});
  expect_has(file_refusal(R"({"x":{"colour":"red"}})", 0), {"'x'", "'colour'", "expected dtype"});
  expect_has(file_refusal(R"({"__metadata__":{"a":1}})", 0), {"'1'", "a string"});
  expect_has(file_refusal(R"({"__metadata__":[]})", 0), {"'['", "'{' of __metadata__"});
  expect_has(file_refusal(one("I16", "[1]", "[0,2]"), 2), {"'x'", "'I16'", "BF16"});
  expect_has(file_refusal(one("f32", "[1]", "[0,4]"), 4), {"'f32'"});
}

TEST(SafetensorsParse, RefusesDeepJsonAtItsFirstBracket) {
  const std::string deep(1'000'000, '[');
  expect_has(file_refusal(R"({"x":)" + deep, 0), {"byte 13", "'['", "'{' of a tensor"});
  expect_has(file_refusal(R"({"x":{"shape":)" + deep, 0), {"'['", "an unsigned integer"});
}

TEST(SafetensorsParse, RefusesBadStrings) {
  const auto named = [](const std::string& name) {
    return R"({")" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  };
  for (const std::string name : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82",
                                 "\xf0\x80\x80\x80", "\xe0\x80\x80", "\x80"}) {
    expect_has(file_refusal(named(name), 0), {"expected UTF-8"});
  }
  expect_has(file_refusal(named("a\nb"), 0), {"'\\x0a'", "an escaped character"});
  expect_has(file_refusal(named(R"(\x)"), 0), {"'x'", "one of"});
  expect_has(file_refusal(named(R"(\u12g4)"), 0), {"'g'", "hexadecimal"});
  expect_has(file_refusal(named(R"(\ud800)"), 0), {"low half"});
  expect_has(file_refusal(named(R"(\ud800\u0041)"), 0), {"without a low one"});
  expect_has(file_refusal(named(R"(\udc00)"), 0), {"without a high one"});
  expect_has(file_refusal(R"({"abc)", 0), {"closing quote"});
  expect_has(file_refusal("{\"abc\\", 0), {"an escape"});
}

TEST(SafetensorsParse, MessagesHoldNoControlCharacters) {
  const std::string message = file_refusal(
      R"({"\u001b[31mred\u0000":{"dtype":"\u0007","shape":[0],"data_offsets":[0,0]}})", 0);
  expect_has(message, {R"('\x1b[31mred\x00')", R"('\x07')"});
  for (const char c : message) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << message;
  EXPECT_LT(file_refusal(one(std::string(5000, 'A'), "[0]", "[0,0]"), 0).size(), 400u);
}

TEST(SafetensorsView, RanksOneToFourHaveViews) {
  const std::vector<std::string> shapes = {"[]",      "[6]",       "[2,3]",
                                           "[1,2,3]", "[1,2,0,3]", "[1,1,1,2,3]"};
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    const std::size_t bytes = rank == 0 ? 1 : rank == 4 ? 0 : 6;
    const auto file = file_of(one("U8", shapes[rank], "[0," + std::to_string(bytes) + "]"), bytes);
    const Expected<Contents> contents = parse(file);
    ASSERT_TRUE(contents.ok()) << contents.status().to_string();
    const Expected<TensorView> view = view_of(contents->tensors[0]);
    if (rank == 0 || rank == 5) {
      expect_has(view.status().message(), {"rank " + std::to_string(rank), "1 to 4", shapes[rank]});
      continue;
    }
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->rank, static_cast<std::int32_t>(rank));
    EXPECT_EQ(view->strides[rank - 1], 1);
    EXPECT_EQ(view->data, contents->tensors[0].data);
  }
}

class SafetensorsFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  static std::string read(const std::string& name) {
    std::ifstream in(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put(const std::string& name, const std::string& text) {
    std::ofstream(name, std::ios::binary) << text;
  }
  /// Names in the directory: a temporary file that was left would show.
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  const test::TempFolder folder_;
  const fs::path& directory_ = folder_.path();
};

TEST_F(SafetensorsFile, WritesWhatItReads) {
  const std::vector<float> a = {1.0f, -2.5f, 3.0f, 0.0f, 5.0f, 6.0f};
  const std::vector<std::uint8_t> b = {1, 0, 1};
  const std::vector<double> c = {1e300};
  const std::vector<TensorToWrite> tensors = {{"b", Dtype::kBool, {3}, b.data()},
                                              {"a \"quoted\"\n", Dtype::kF32, {2, 3}, a.data()},
                                              {"c", Dtype::kF64, {}, c.data()},
                                              {"none", Dtype::kF64, {0, 4}, nullptr}};
  const Metadata metadata = {{"caf\xc3\xa9", "tab\there"}};
  const WriteOutcome outcome = write_file(path("x"), tensors, metadata);
  ASSERT_EQ(outcome.result, WriteResult::kWritten) << outcome.message;
  EXPECT_TRUE(outcome.message.empty());
  EXPECT_EQ(entries(), 1u);

  Expected<MappedFile> file = MappedFile::open(path("x"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const Contents& contents = file->contents();
  EXPECT_EQ(contents.metadata, metadata);
  ASSERT_EQ(contents.tensors.size(), 4u);
  const TensorEntry* entry = contents.find("a \"quoted\"\n");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(entry->data, a.data(), 24), 0);
  EXPECT_EQ(std::memcmp(contents.find("b")->data, b.data(), 3), 0);
  EXPECT_EQ(std::memcmp(contents.find("c")->data, c.data(), 8), 0);
  EXPECT_EQ(contents.find("none")->size_bytes, 0);
}

TEST_F(SafetensorsFile, TheMappingOutlivesTheReplacedFile) {
  const std::vector<float> values = {1.0f, 2.0f};
  const std::vector<TensorToWrite> tensors = {{"x", Dtype::kF32, {2}, values.data()}};
  ASSERT_EQ(write_file(path("x"), tensors, {}).result, WriteResult::kWritten);
  Expected<MappedFile> first = MappedFile::open(path("x"));
  ASSERT_TRUE(first.ok());
  MappedFile file = *std::move(first);
  const std::vector<float> other = {3.0f, 4.0f};
  const std::vector<TensorToWrite> replaced = {{"x", Dtype::kF32, {2}, other.data()}};
  ASSERT_EQ(write_file(path("x"), replaced, {}).result, WriteResult::kWritten);
  EXPECT_EQ(std::memcmp(file.contents().tensors[0].data, values.data(), 8), 0);
  Expected<MappedFile> second = MappedFile::open(path("x"));
  ASSERT_TRUE(second.ok());
  file = *std::move(second);
  EXPECT_EQ(std::memcmp(file.contents().tensors[0].data, other.data(), 8), 0);
}

TEST_F(SafetensorsFile, RefusesWhatIsNotARegularFile) {
  expect_has(MappedFile::open(path("missing")).status().message(), {"missing", "No such file"});
  expect_has(MappedFile::open(directory_.string()).status().message(), {"not a regular file"});
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  expect_has(MappedFile::open(path("fifo")).status().message(), {"not a regular file"});
  put(path("empty"), "");
  expect_has(MappedFile::open(path("empty")).status().message(),
             {"0 bytes", "at least 8", "empty"});
}

TEST_F(SafetensorsFile, RefusesTargets) {
  const auto refused = [&](const std::string& target, const std::string& why) {
    EXPECT_EQ(check_target(target).result, WriteResult::kRefused) << target;
    const WriteOutcome outcome = write_file(target, {}, {});
    EXPECT_EQ(outcome.result, WriteResult::kRefused) << target;
    expect_has(outcome.message, {why});
  };
  refused("", "a file's name");
  refused(directory_.string(), "directory");
  refused(path("missing/x"), "missing");
  refused(path("x/"), "No such file");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  refused(path("fifo"), "not a regular file");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(SafetensorsFile, RefusesTensorsThatNoFileCanHold) {
  const auto refused = [&](const std::vector<TensorToWrite>& tensors, const Metadata& metadata,
                           const std::string& why) {
    const WriteOutcome outcome = write_file(path("x"), tensors, metadata);
    EXPECT_EQ(outcome.result, WriteResult::kRefused);
    expect_has(outcome.message, {why});
  };
  refused({{"a", Dtype::kU8, {0}, nullptr}, {"a", Dtype::kU8, {0}, nullptr}}, {}, "'a' is taken");
  refused({{"__metadata__", Dtype::kU8, {0}, nullptr}}, {}, "is taken");
  refused({{"\xff", Dtype::kU8, {0}, nullptr}}, {}, "not UTF-8");
  refused({{"a", Dtype::kU8, {-1}, nullptr}}, {}, "-1");
  refused({{"a", Dtype::kF64, {INT64_MAX, 0}, nullptr}}, {}, "2^63");
  refused({}, {{"a", "\xff"}}, "not UTF-8");
  EXPECT_EQ(entries(), 0u);
}

TEST_F(SafetensorsFile, KeepsPermissionsAndFollowsLinks) {
  put(path("target"), "old");
  ASSERT_EQ(::chmod(path("target").c_str(), 0640), 0);
  fs::create_symlink("target", directory_ / "link");
  ASSERT_EQ(write_file(path("link"), {}, {}).result, WriteResult::kWritten);
  EXPECT_TRUE(fs::is_symlink(directory_ / "link"));
  EXPECT_TRUE(MappedFile::open(path("target")).ok());
  EXPECT_EQ(static_cast<unsigned>(fs::status(path("target")).permissions()), 0640u);
  EXPECT_EQ(entries(), 2u);
}

int questions = 0;
int answer_yes_at = 0;
bool interrupted() { return ++questions >= answer_yes_at; }

TEST_F(SafetensorsFile, AnInterruptionLeavesTheOldFile) {
  const std::vector<std::uint8_t> bytes(5 << 20, 7);
  const std::vector<TensorToWrite> tensors = {
      {"x", Dtype::kU8, {static_cast<std::int64_t>(bytes.size())}, bytes.data()}};
  put(path("x"), "old");
  // One piece of header, five of data, one question before the rename.
  for (answer_yes_at = 1; answer_yes_at <= 7; ++answer_yes_at) {
    questions = 0;
    const WriteOutcome outcome = write_file(path("x"), tensors, {}, interrupted);
    EXPECT_EQ(outcome.result, WriteResult::kInterrupted) << answer_yes_at;
    EXPECT_EQ(read(path("x")), "old");
    EXPECT_EQ(entries(), 1u);
  }
  questions = 0;
  EXPECT_EQ(write_file(path("x"), tensors, {}, interrupted).result, WriteResult::kWritten);
  EXPECT_EQ(questions, 7);
  EXPECT_TRUE(MappedFile::open(path("x")).ok());
}

TEST_F(SafetensorsFile, AFileSizeLimitLeavesTheOldFile) {
  const std::vector<std::uint8_t> bytes(1 << 20, 7);
  const std::vector<TensorToWrite> tensors = {
      {"x", Dtype::kU8, {static_cast<std::int64_t>(bytes.size())}, bytes.data()}};
  put(path("x"), "old");
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t bytes_allowed : {rlim_t{0}, rlim_t{10}, rlim_t{100'000}}) {
    rlimit limit = old_limit;
    limit.rlim_cur = bytes_allowed;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const WriteOutcome outcome = write_file(path("x"), tensors, {});
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
    EXPECT_EQ(outcome.result, WriteResult::kFailed);
    expect_has(outcome.message, {"File too large", "cannot write"});
    EXPECT_EQ(read(path("x")), "old");
    EXPECT_EQ(entries(), 1u);
  }
  std::signal(SIGXFSZ, old_handler);
}

}  // namespace
}  // namespace regard::safetensors
