// Records of a program's calls: what is counted, by how many threads and processes, and files that
// are no records.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/plan/recorder.h"
#include "mock_backend.h"
#include "tests/support/temp_folder.h"

namespace regard::test {
namespace {

std::string file_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Record record_of(const std::string& path) {
  const Expected<Record> record = parse_record(file_text(path), path);
  EXPECT_TRUE(record.ok()) << record.status().to_string();
  return record ? *record : Record();
}

/// A forward of `rows` queries that this machine computes.
struct RecordedCall {
  explicit RecordedCall(std::int64_t rows) {
    request.q = request.k = request.v = make_view(data.data(), {1, 1, rows, 8});
    request.out = make_view(out.data(), {1, 1, rows, 8});
  }
  std::string words() const { return to_string(describe(request).value()); }
  std::vector<float> data = std::vector<float>(8192, 0.5f), out = std::vector<float>(8192);
  AttentionRequest request;
};

TEST(Record, CountsCasesOfEveryCallAndNoneThatFailed) {
  TempFolder folder;
  const std::string path = (folder.path() / "calls.record").string();
  RecordedCall a(4), b(9);
  {
    Context context;
    ASSERT_TRUE(context.set_record(path).ok());
    for (int n = 0; n < 3; ++n) ASSERT_TRUE(attention(context, a.request).ok());
    ASSERT_TRUE(attention(context, b.request).ok());
    const Plan made = plan(context, describe(b.request).value()).value();
    static char memory[1 << 20];
    Launch launch;
    launch.workspace = {
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64),
        sizeof(memory) - 64};
    for (int n = 0; n < 4; ++n) ASSERT_TRUE(execute(made, b.request, launch).ok());
    AttentionRequest wrong = a.request;
    wrong.out = {};
    ASSERT_FALSE(attention(context, wrong).ok());
  }
  const Record record = record_of(path);
  ASSERT_EQ(record.cases.size(), 2u);
  EXPECT_EQ(record.cases[0], (RecordedCase{b.words(), Direction::kForward, 5}));
  EXPECT_EQ(record.cases[1], (RecordedCase{a.words(), Direction::kForward, 3}));
  EXPECT_EQ(record.dropped, 0u);
}

TEST(Record, AddsToTheRecordThatIsThere) {
  TempFolder folder;
  const std::string path = (folder.path() / "calls.record").string();
  RecordedCall a(4), b(9);
  for (RecordedCall* call : {&a, &b, &a}) {
    Context context;
    ASSERT_TRUE(context.set_record(path).ok());
    ASSERT_TRUE(attention(context, call->request).ok());
    ASSERT_TRUE(context.set_record("").ok());
    ASSERT_TRUE(attention(context, call->request).ok());  // is not counted
  }
  const Record record = record_of(path);
  ASSERT_EQ(record.cases.size(), 2u);
  EXPECT_EQ(record.cases[0].count, 2u);
  EXPECT_EQ(record.cases[1].count, 1u);
}

TEST(Record, ThreadsAndContextsAddUp) {
  TempFolder folder;
  const std::string path = (folder.path() / "calls.record").string();
  {
    Context contexts[2];
    for (Context& context : contexts) ASSERT_TRUE(context.set_record(path).ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        RecordedCall call(4 + t % 2);
        for (int n = 0; n < 100; ++n) {
          EXPECT_TRUE(attention(contexts[t / 2], call.request).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const Record record = record_of(path);
  ASSERT_EQ(record.cases.size(), 2u);
  for (const RecordedCase& c : record.cases) EXPECT_EQ(c.count, 200u) << c.words;
}

TEST(Record, ProcessesAddUpAndAForkCountsItsOwnCallsAlone) {
  TempFolder folder;
  const std::string path = (folder.path() / "calls.record").string();
  RecordedCall call(4);
  Recorder recorder;
  ASSERT_TRUE(recorder.set_file(path).ok());
  const AttentionParams params = describe(call.request).value();
  for (int n = 0; n < 5; ++n) ASSERT_TRUE(recorder.add(params, Direction::kForward).ok());
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (int n = 0; n < 10; ++n) {
        static_cast<void>(recorder.add(params, Direction::kForward));
        if (!recorder.flush().ok()) ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  ASSERT_TRUE(recorder.flush().ok());
  const Record record = record_of(path);
  ASSERT_EQ(record.cases.size(), 1u);
  EXPECT_EQ(record.cases[0].count, 45u);
}

TEST(Record, MemoryIsBounded) {
  TempFolder folder;
  const std::string path = (folder.path() / "calls.record").string();
  Recorder recorder;
  ASSERT_TRUE(recorder.set_file(path).ok());
  AttentionParams params = case_params("b1 hq1 sq1 skv1 d8");
  constexpr std::int64_t kMore = 10;
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(Record::kMaxCases) + kMore; ++n) {
    params.seqlen_kv = n + 1;
    ASSERT_TRUE(recorder.add(params, Direction::kForward).ok());
  }
  ASSERT_TRUE(recorder.flush().ok());
  const Record record = record_of(path);
  EXPECT_EQ(record.cases.size(), Record::kMaxCases);
  EXPECT_EQ(record.dropped, static_cast<std::uint64_t>(kMore));
}

TEST(Record, AFileThatIsNoneIsNeverOverwritten) {
  TempFolder folder;
  const std::string path = (folder.path() / "notes.txt").string();
  std::ofstream(path) << "my notes\n";
  Context context;
  const Status refused = context.set_record(path);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("expected 'regard-record 1', got 'my notes'"), std::string::npos)
      << refused.message();
  EXPECT_EQ(file_text(path), "my notes\n");
  EXPECT_NE(context.set_record("/nonexistent/folder/x.record").message().find("no folder"),
            std::string::npos);

  // It becomes one while calls are recorded: they go on, with one warning.
  const std::string later = (folder.path() / "later.record").string();
  std::vector<std::string> lines;
  context.set_log_sink(
      [](void* user, LogLevel, std::string_view line) {
        static_cast<std::vector<std::string>*>(user)->emplace_back(line);
      },
      &lines);
  ASSERT_TRUE(context.set_record(later).ok());
  RecordedCall call(4);
  ASSERT_TRUE(attention(context, call.request).ok());
  std::ofstream(later) << "my notes\n";
  EXPECT_FALSE(context.set_record("").ok());
  EXPECT_EQ(file_text(later), "my notes\n");
}

TEST(Record, TextsThatAreNoRecords) {
  const auto error = [](const std::string& text) {
    const Expected<Record> record = parse_record(text, "x");
    return record ? std::string("accepted") : record.status().message();
  };
  const std::string head = "regard-record 1\n";
  const std::string line = "3 forward " + to_string(case_params("b1 hq1 sq4 d8")) + "\n";
  EXPECT_EQ(error(head + line), "accepted");
  EXPECT_EQ(error(head), "accepted");
  EXPECT_NE(error("").find("x:1: expected 'regard-record 1'"), std::string::npos);
  EXPECT_NE(error("regard-record 2\n").find("got 'regard-record 2'"), std::string::npos);
  EXPECT_NE(error(head + line.substr(0, line.size() - 4)).find("ends within a line"),
            std::string::npos);
  EXPECT_NE(error(head + "0" + line.substr(1)).find("x:2: [record] '0' must be a number of calls"),
            std::string::npos);
  EXPECT_NE(error(head + "-3" + line.substr(1)).find("must be a number"), std::string::npos);
  EXPECT_NE(error(head + "3 sideways b1\n").find("'sideways' must be forward or backward"),
            std::string::npos);
  EXPECT_NE(error(head + "3 forward\n").find("a case must follow"), std::string::npos);
  EXPECT_NE(error(head + "3 forward b1 colour\n").find("colour"), std::string::npos);
  EXPECT_NE(error(head + "3 forward d8 sq4\n").find("must be in canonical order"),
            std::string::npos);
  EXPECT_NE(error(head + line + line).find("two lines for forward"), std::string::npos);
  EXPECT_NE(error(head + "dropped many\n").find("must be a whole number"), std::string::npos);
  std::string many = head;
  for (std::size_t n = 0; n <= Record::kMaxCases; ++n) many += line;
  EXPECT_NE(error(many).find("more than 4096 cases"), std::string::npos);
}

TEST(Record, TheEnvironmentNamesAFile) {
  TempFolder folder;
  const std::string path = (folder.path() / "calls.record").string();
  ASSERT_EQ(::setenv("REGARD_RECORD", path.c_str(), 1), 0);
  RecordedCall call(4);
  {
    Context context;
    ASSERT_TRUE(attention(context, call.request).ok());
  }
  EXPECT_EQ(record_of(path).cases.size(), 1u);
  std::ofstream(path) << "no record\n";
  Context context;
  ASSERT_EQ(::unsetenv("REGARD_RECORD"), 0);
  const Status status = attention(context, call.request);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("REGARD_RECORD"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace regard::test
