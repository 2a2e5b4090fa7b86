#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "mock_backend.h"
#include "tests/support/temp_folder.h"

namespace regard::test {
namespace {

// Sets a variable for one test; the others see it as it was.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() {
    if (had_) {
      setenv(name_, old_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

const AttentionParams kSmall = case_params("sq8 d8 f32");

class TempFile {
 public:
  explicit TempFile(const std::string& text) { std::ofstream(path_) << text; }
  const std::string& path() const { return path_; }

 private:
  const TempFolder folder_;
  const std::string path_ = (folder_.path() / "file").string();
};

std::string table_text(const Env& env) {
  return "regard-tuning 1\nversion " + env.version + "\nisa " + to_string(env.isa) + "\ncpu " +
         env.cpu_model + "\nconcurrency " + std::to_string(env.concurrency) + "\norder : math\n";
}

TEST(Env, EachVariableIsRead) {
  {
    const ScopedVariable v("REGARD_BACKEND", "math");
    Context context;
    EXPECT_EQ(explain(context, kSmall).chosen, kMath);
  }
  {
    const ScopedVariable v("REGARD_DENY", "EFFICIENT_ATTENTION,flash");
    Context context;
    EXPECT_EQ(explain(context, kSmall).chosen, kMath);
  }
  {
    const ScopedVariable v("REGARD_MAX_ISA", "scalar");
    const Env env = read_env();
    EXPECT_EQ(env.isa, Isa::kScalar);
  }
  {
    const ScopedVariable v("REGARD_NUM_THREADS", "7");
    EXPECT_EQ(read_env().concurrency, 7);
  }
  {
    const TempFile file(table_text(read_env()));
    const ScopedVariable v("REGARD_TUNING", file.path());
    Context context;
    EXPECT_EQ(explain(context, kSmall).decided_by, "tuning table " + file.path());
  }
  {
    const ScopedVariable v("REGARD_LOG", "select");
    Context context;
    std::vector<std::string> lines;
    context.set_log_sink(
        [](void* user, LogLevel, std::string_view line) {
          static_cast<std::vector<std::string>*>(user)->emplace_back(line);
        },
        &lines);
    ASSERT_TRUE(plan(context, kSmall));
    EXPECT_EQ(lines.size(), 1u);
  }
}

TEST(Env, ATableOfTuneIsFoundForEachConcurrency) {
  const TempFolder cache;
  const ScopedVariable v("XDG_CACHE_HOME", cache.path().string());
  Env env = read_env();
  env.concurrency = 3;
  const std::filesystem::path folder = tuning_folder(env);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "table.txt") << table_text(env);

  const auto decided_by = [](Context& context) { return explain(context, kSmall).decided_by; };
  const std::string found = "tuning table " + (folder / "table.txt").string();
  Context context;
  ASSERT_TRUE(context.set_concurrency(2).ok());
  EXPECT_EQ(decided_by(context), "built-in order");
  ASSERT_TRUE(context.set_concurrency(3).ok());
  EXPECT_EQ(decided_by(context), found);
  ASSERT_TRUE(context.set_concurrency(2).ok());
  EXPECT_EQ(decided_by(context), "built-in order");
  context.set_tuning({});  // from now on nothing is looked for
  ASSERT_TRUE(context.set_concurrency(3).ok());
  EXPECT_EQ(decided_by(context), "built-in order");

  const ScopedVariable threads("REGARD_NUM_THREADS", "3");
  Context of_three;
  EXPECT_EQ(decided_by(of_three), found);
  env.variables.clear();  // as a program makes one up
  Context made_up(env);
  EXPECT_EQ(decided_by(made_up), "built-in order");
  const ScopedVariable none("REGARD_TUNING", "none");
  Context without;
  EXPECT_EQ(decided_by(without), "built-in order");
}

TEST(Env, TheListOfVariablesIsComplete) {
  // tests/checks shows that nothing outside src/platform calls getenv; these are what it asks for.
  std::set<std::string> names;
  for (const EnvVariable& v : read_env().variables) {
    names.insert(v.name);
    EXPECT_FALSE(v.meaning.empty()) << v.name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"REGARD_BACKEND", "REGARD_DENY", "REGARD_MAX_ISA",
                                          "REGARD_NUM_THREADS", "REGARD_TUNING", "REGARD_REPLAY",
                                          "REGARD_RECORD", "REGARD_LOG"}));
}

TEST(Env, UnknownNamesWarnOnceWithTheNearestName) {
  const std::pair<const char*, const char*> rows[] = {{"REGARD_BACKENDS", "REGARD_BACKEND"},
                                                      {"REGARD_THREADS", "REGARD_NUM_THREADS"},
                                                      {"REGARD_MAXISA", "REGARD_MAX_ISA"},
                                                      {"REGARD_TUNINGS", "REGARD_TUNING"}};
  for (const auto& [name, nearest] : rows) {
    SCOPED_TRACE(name);
    const ScopedVariable v(name, "math");
    const std::string expected = std::string("'") + name +
                                 "' is not a variable that regard reads; the nearest is " + nearest;
    const Env env = read_env();
    EXPECT_NE(std::find(env.warnings.begin(), env.warnings.end(), expected), env.warnings.end());
    Context context(env);
    std::vector<std::string> lines;
    context.set_log_sink(
        [](void* user, LogLevel, std::string_view line) {
          static_cast<std::vector<std::string>*>(user)->emplace_back(line);
        },
        &lines);
    ASSERT_TRUE(plan(context, kSmall));
    ASSERT_TRUE(plan(context, case_params("sq8 d16 f32")));
    EXPECT_EQ(lines.size(), env.warnings.size());
    EXPECT_EQ(std::count(lines.begin(), lines.end(),
                         "{\"event\":\"warning\",\"message\":\"" + expected + "\"}"),
              1);
  }
  const ScopedVariable own("REGARD_DEV_JOBS", "2");
  for (const std::string& warning : read_env().warnings) {
    EXPECT_EQ(warning.find("REGARD_DEV_"), std::string::npos) << warning;
  }
  for (const EnvVariable& known : read_env().variables) {
    for (const std::string& warning : read_env().warnings) {
      EXPECT_EQ(warning.find("'" + known.name + "'"), std::string::npos);
    }
  }
}

TEST(Env, AnUnusableValueFailsEveryPlanByName) {
  const std::pair<const char*, const char*> rows[] = {
      {"REGARD_BACKEND", "flesh"},   {"REGARD_DENY", "math,"},     {"REGARD_MAX_ISA", "avx9"},
      {"REGARD_NUM_THREADS", "0"},   {"REGARD_NUM_THREADS", "2x"}, {"REGARD_NUM_THREADS", "9999"},
      {"REGARD_TUNING", "/no/file"}, {"REGARD_LOG", "everything"},
  };
  for (const auto& [name, value] : rows) {
    SCOPED_TRACE(std::string(name) + "=" + value);
    const ScopedVariable v(name, value);
    Context context;
    const auto made = plan(context, kSmall);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(made.status().message().find(std::string(name) + "=" + value), std::string::npos);
    const Selection selection = explain(context, kSmall);  // what the program would get: nothing
    EXPECT_FALSE(selection.ok());
    EXPECT_EQ(selection.decided_by, "environment");
    ASSERT_FALSE(selection.warnings.empty());
    EXPECT_EQ(selection.warnings.back(), made.status().message());
  }
}

TEST(Env, AnEmptyValueIsUnset) {
  const ScopedVariable v("REGARD_BACKEND", "");
  Context context;
  EXPECT_TRUE(plan(context, kSmall));
  EXPECT_TRUE(explain(context, kSmall).environment.empty());
}

TEST(Env, IsReadOnceByAContext) {
  Context context(described_env());
  const ScopedVariable v("REGARD_BACKEND", "math");
  EXPECT_EQ(explain(context, kSmall).chosen, kFlash);
}

TEST(Env, EveryFieldShowsInFingerprintJsonAndText) {
  const Env base = described_env();
  std::vector<Env> changed(18, base);
  changed[0].device = DeviceType::kCuda;
  changed[1].sm_version = 90;
  changed[2].isa = Isa::kScalar;
  changed[3].isa_available = Isa::kAvx512;
  changed[4].cpu_model = "x";
  changed[5].l1d_bytes = 1;
  changed[6].l2_bytes = 1;
  changed[7].l3_bytes = 1;
  changed[8].concurrency = 9;
  changed[9].version = "x";
  changed[10].compiler = "x";
  changed[11].built_with_cuda = true;
  changed[12].device_name = "x";
  changed[13].cuda_driver = 13000;
  changed[14].cudnn_version = 91900;
  changed[15].variables.push_back({"REGARD_LOG", "select", true, "", ""});
  changed[16].cuda_devices.push_back({"x", 90});
  changed[17].warnings.emplace_back("x");
  std::size_t fields = 0;
  for_each_env_field(base, [&](const char*, const auto&) { ++fields; });
  ASSERT_EQ(fields, changed.size()) << "a field without a row here";
  for (const Env& env : changed) {
    EXPECT_NE(env, base);
    EXPECT_NE(fingerprint(env), fingerprint(base));
    EXPECT_NE(to_json(env), to_json(base));
    EXPECT_NE(to_string(env), to_string(base));
  }
}

struct LogLines {
  std::vector<std::string> lines;
  std::vector<LogLevel> levels;
  static void sink(void* user, LogLevel level, std::string_view line) {
    static_cast<LogLines*>(user)->lines.emplace_back(line);
    static_cast<LogLines*>(user)->levels.push_back(level);
  }
};

Env logging_env(const char* level) {
  Env env = described_env();
  env.variables.push_back({"REGARD_LOG", level, true, "", ""});
  return env;
}

Status small_attention(Context& context) {
  std::vector<float> data(64), out(64);
  AttentionRequest request;
  request.q = request.k = request.v = make_view(data.data(), Dtype::kF32, {1, 1, 8, 8});
  request.out = make_view(out.data(), Dtype::kF32, {1, 1, 8, 8});
  return attention(context, request);
}

TEST(Log, OneLinePerDistinctDecision) {
  Context context(logging_env("select"));
  LogLines log;
  context.set_log_sink(LogLines::sink, &log);
  ASSERT_TRUE(plan(context, kSmall));
  ASSERT_TRUE(plan(context, kSmall));
  ASSERT_FALSE(plan(context, kSmall, only({kCudnn})));
  ASSERT_FALSE(plan(context, kSmall, only({kCudnn})));
  ASSERT_EQ(log.lines.size(), 2u);
  EXPECT_EQ(log.lines[0].rfind("{\"event\":\"select\"", 0), 0u);
  EXPECT_EQ(log.lines[0].find('\n'), std::string::npos);
  EXPECT_NE(log.lines[1].find("\"chosen\":\"error\""), std::string::npos);
  EXPECT_EQ(log.levels, (std::vector<LogLevel>{LogLevel::kSelect, LogLevel::kSelect}));
}

TEST(Log, TraceAddsALineForEachCall) {
  Context context(logging_env("trace"));
  LogLines log;
  context.set_log_sink(LogLines::sink, &log);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(small_attention(context).ok());
  ASSERT_EQ(log.lines.size(), 4u);
  EXPECT_EQ(log.levels[0], LogLevel::kSelect);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(log.levels[i], LogLevel::kTrace);
    EXPECT_EQ(log.lines[i].rfind("{\"event\":\"trace\",\"call\":{\"direction\":\"forward\"", 0), 0u)
        << log.lines[i];
  }
}

TEST(Log, TheLevelCanBeChangedLater) {
  Context context(described_env());
  LogLines log;
  context.set_log_sink(LogLines::sink, &log);
  ASSERT_TRUE(small_attention(context).ok());
  EXPECT_TRUE(log.lines.empty());  // silent unless it is switched on
  context.set_log_level(LogLevel::kTrace);
  ASSERT_TRUE(small_attention(context).ok());
  EXPECT_EQ(log.levels, (std::vector<LogLevel>{LogLevel::kTrace}));  // the plan was cached
  context.set_log_level(LogLevel::kSelect);
  ASSERT_TRUE(small_attention(context).ok());
  ASSERT_TRUE(plan(context, case_params("sq8 d16 f32")));
  EXPECT_EQ(log.levels, (std::vector<LogLevel>{LogLevel::kTrace, LogLevel::kSelect}));
  context.set_log_level(LogLevel::kWarning);
  ASSERT_TRUE(plan(context, case_params("sq8 d24 f32")));
  EXPECT_EQ(log.lines.size(), 2u);
}

}  // namespace
}  // namespace regard::test
