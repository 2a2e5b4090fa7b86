// The documents name what the library has: claims, refusal codes, features, variables, case words.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "regard/attention.h"
#include "tests/support/literals.h"

namespace regard {
namespace {

std::string path_of(const std::string& name) {
  return std::string(REGARD_SOURCE_DIR) + "/docs/" + name;
}

std::string read_document(const std::string& name) {
  std::ifstream file(path_of(name));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool names(const std::string& document, const std::string& word) {
  std::string code = "`";
  code.append(word).append("`");
  return document.find(code) != std::string::npos;
}

// What stands between <!-- mark --> and <!-- /mark --> must be `expected`. With UPDATE_DOCS set the
// document is rewritten instead.
void expect_block(const std::string& name, const std::string& mark, const std::string& expected) {
  const std::string document = read_document(name);
  const std::string open = "<!-- " + mark + " -->\n", close = "<!-- /" + mark + " -->";
  const std::size_t found = document.find(open), end = document.find(close);
  ASSERT_TRUE(found != std::string::npos && end != std::string::npos) << "no marks " << mark;
  const std::size_t begin = found + open.size();
  if (std::getenv("UPDATE_DOCS") != nullptr) {
    std::ofstream(path_of(name)) << document.substr(0, begin) << expected << document.substr(end);
    return;
  }
  EXPECT_EQ(document.substr(begin, end - begin), expected)
      << "run this test with UPDATE_DOCS=1 to write docs/" << name;
}

std::string types_text(const DtypeClaim& c) {
  if (c.q == c.kv && c.kv == c.out) return to_string(c.q);
  if (c.q == c.kv) return std::string(to_string(c.q)) + ", out " + to_string(c.out);
  return std::string(to_string(c.q)) + ", kv " + to_string(c.kv) + ", out " + to_string(c.out);
}

std::string head_dim_text(const HeadDimClaim& claim) {
  std::string text = std::to_string(claim.min) + " to " + std::to_string(claim.max);
  if (claim.max == std::numeric_limits<std::int64_t>::max()) {
    text = "any from " + std::to_string(claim.min);
  }
  if (claim.multiple_of != 1) text += ", multiple of " + std::to_string(claim.multiple_of);
  return text;
}

std::string layouts_text(const Claims& claims) {
  std::string text;
  for (std::size_t i = 0; i < claims.layouts.size(); ++i) {
    if (!claims.layouts[i]) continue;
    text += (text.empty() ? "" : ", ") + std::string(to_string(static_cast<Layout>(i)));
  }
  return text;
}

// A device's records as Markdown: one column for each backend that is built.
class ClaimsTable {
 public:
  ClaimsTable(const std::vector<BackendInfo>& infos, DeviceType device) {
    for (const BackendInfo& info : infos) {
      if (info.device != device) continue;
      const auto same = [&](const BackendInfo& other) {
        return other.ref == info.ref && other.device == info.device;
      };
      auto& list = info.built ? built_ : absent_;
      if (std::none_of(list.begin(), list.end(), same)) list.push_back(info);
    }
  }

  /// The rows in which the backends differ as a table, with one line for rows that are alike; the
  /// others folded into a list.
  std::string text() const {
    std::string table = line("", names()) + "|---|", same;
    for (std::size_t i = 0; i < built_.size(); ++i) table += "---|";
    table += "\n";
    for (const Section& section : sections()) {
      std::string folded;
      for (const Row& row : merged(section)) {
        if (!all_equal(row.cells)) {
          table += line(section.prefix + row.title, row.cells);
        } else {
          folded += (folded.empty() ? "" : section.separator) + row.title;
          if (row.cells.front() != "yes") folded += " " + row.cells.front();
        }
      }
      if (!folded.empty()) same += "* " + section.name + folded + "\n";
    }
    if (!same.empty()) table += "\nThe same for all of them:\n\n" + same;
    return table + absent();
  }

 private:
  struct Row {
    std::string title;
    std::vector<std::string> cells;  // one for each backend that is built
  };
  struct Section {
    std::string prefix, name, separator;  // before a row of the table; before and in the list
    std::vector<Row> rows;
  };

  /// The rows of a section, those with the same cells as one.
  static std::vector<Row> merged(const Section& section) {
    std::vector<Row> rows;
    for (const Row& row : section.rows) {
      const auto alike = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
        return other.cells == row.cells && !all_equal(row.cells);
      });
      if (alike == rows.end()) {
        rows.push_back(row);
      } else {
        alike->title += section.separator + row.title;
      }
    }
    return rows;
  }

  std::vector<Section> sections() const {
    Section bounds{"error bound, ", "error bounds: ", "; ", {}};
    for (const std::string& types : all_types()) {
      bounds.rows.push_back(row(types, [&](const BackendInfo& i) { return bound(i, types); }));
    }
    const Section limits{
        "",
        "",
        "; ",
        {row("`head_dim_qk`", [](const auto& i) { return head_dim_text(i.forward.head_dim_qk); }),
         row("`head_dim_v`", [](const auto& i) { return head_dim_text(i.forward.head_dim_v); }),
         row("layouts", [](const auto& i) { return layouts_text(i.forward); }),
         row("alignment in bytes",
             [](const auto& i) { return std::to_string(1 << i.forward.min_align_log2); }),
         row("determinism", [](const auto& i) { return std::string(to_string(i.determinism)); }),
         row("gradients", [](const auto& i) { return yes(i.backward.offered); })}};
    Section given{"a backward given ", "a backward given ", ", ", {}};
    for (const Feature f : {Feature::kSavedStats, Feature::kLse, Feature::kDLse, Feature::kDelta}) {
      given.rows.push_back(row(code(to_string(f)), [&](const BackendInfo& i) {
        return yes(i.backward.features.has(f));
      }));
    }
    Section features{"", "features: ", ", ", {}};
    for (int f = 0; f < kFeatureCount; ++f) {
      const Feature feature = static_cast<Feature>(f);
      const auto claims = [&](const BackendInfo& i) { return i.forward.features.has(feature); };
      if (std::none_of(built_.begin(), built_.end(), claims)) continue;
      features.rows.push_back(
          row(code(to_string(feature)), [&](const BackendInfo& i) { return yes(claims(i)); }));
    }
    return {bounds, limits, given, features};
  }

  std::string absent() const {
    if (absent_.empty()) return "";
    std::string out = "\nNot built in this version:\n\n";
    for (const BackendInfo& info : absent_) {
      out += "* ";
      out += code(to_string(info.ref)) + " on " + to_string(info.device) + ": ";
      out += info.not_built_reason + "\n";
    }
    return out;
  }

  std::vector<std::string> names() const {
    return row("", [](const BackendInfo& i) { return code(to_string(i.ref)); }).cells;
  }

  static std::string code(const std::string& text) { return std::string("`").append(text) + "`"; }
  static std::string yes(bool value) { return value ? "yes" : "-"; }

  static bool all_equal(const std::vector<std::string>& cells) {
    return std::equal(cells.begin() + 1, cells.end(), cells.begin());
  }

  static std::string line(const std::string& title, const std::vector<std::string>& cells) {
    std::string text = "| " + title + " |";
    for (const std::string& cell : cells) text += " " + cell + " |";
    return text + "\n";
  }

  template <class Cell>
  Row row(const std::string& title, Cell cell) const {
    Row found{title, {}};
    for (const BackendInfo& info : built_) found.cells.push_back(cell(info));
    return found;
  }

  std::vector<std::string> all_types() const {
    std::vector<std::string> all;
    for (const BackendInfo& info : built_) {
      for (const DtypeClaim& c : info.forward.dtypes) {
        const std::string text = types_text(c);
        if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
      }
    }
    return all;
  }

  static std::string bound(const BackendInfo& info, const std::string& types) {
    std::string bounds, last;
    for (const DtypeClaim& c : info.forward.dtypes) {
      if (types_text(c) != types) continue;
      char text[32];
      std::snprintf(text, sizeof(text), "%.1e", c.error_bound);
      if (text == last && c.min_isa != Isa::kScalar) {
        bounds += std::string(" or ") + to_string(c.min_isa);
        continue;
      }
      last = text;
      bounds += (bounds.empty() ? "" : "; ") + last;
      if (c.min_isa != Isa::kScalar) bounds += std::string(" from ") + to_string(c.min_isa);
      if (c.min_sm != 0) bounds += " from sm" + std::to_string(c.min_sm);
    }
    return bounds.empty() ? "-" : bounds;
  }

  std::vector<BackendInfo> built_, absent_;
};

TEST(Documents, TheTensorsOfACallAreThoseOfTheTable) {
  expect_block("semantics.md", "tensors", "\n" + tensor_table() + "\n");
}

TEST(Documents, BackendsTableIsTheRecords) {
  const Context context;
  expect_block("backends.md", "claims", ClaimsTable(context.backends(), DeviceType::kCpu).text());
}

TEST(Documents, CudaBackendsTableIsTheRecords) {
  const Context context;
  if (!context.env().built_with_cuda) GTEST_SKIP() << "built without CUDA";
  for (const BackendInfo& info : context.backends()) {
    const bool is_cudnn = info.ref.id == BackendId::kCudnn;
    if (is_cudnn && !info.built) GTEST_SKIP() << info.not_built_reason;
  }
  expect_block("backends.md", "cuda claims",
               ClaimsTable(context.backends(), DeviceType::kCuda).text());
}

TEST(Documents, BackendsNameEveryBackend) {
  const std::string document = read_document("backends.md");
  const Context context;
  for (const BackendInfo& info : context.backends()) {
    EXPECT_TRUE(names(document, to_string(info.ref))) << to_string(info.ref);
  }
}

TEST(Documents, SelectionNamesEveryVariable) {
  const std::string document = read_document("selection.md");
  const Env env = read_env();
  EXPECT_EQ(env.variables.size(), 6u);
  for (const EnvVariable& variable : env.variables) {
    EXPECT_NE(document.find("| `" + variable.name + "` |"), std::string::npos) << variable.name;
  }
}

TEST(Documents, SelectionNamesEveryRefusalCode) {
  const std::string document = read_document("selection.md");
  for (int i = 0; i < static_cast<int>(RefusalCode::kCount); ++i) {
    const std::string code = to_string(static_cast<RefusalCode>(i));
    EXPECT_NE(document.find("| `" + code + "` |"), std::string::npos) << code;
  }
}

TEST(Documents, CasesNameEveryFeature) {
  const std::string document = read_document("cases.md");
  for (int i = 0; i < kFeatureCount; ++i) {
    const std::string feature = to_string(static_cast<Feature>(i));
    EXPECT_TRUE(names(document, feature)) << feature;
  }
}

TEST(Documents, SelectionNamesEveryPolicyField) {
  const std::string document = read_document("selection.md");
  const Policy policy;
  for_each_policy_field(policy, [&](const char* name, const auto&) {
    EXPECT_NE(document.find(std::string("| `") + name + "` |"), std::string::npos) << name;
  });
}

TEST(Documents, SelectionNamesEveryWordOfAValue) {
  const std::string document = read_document("selection.md");
  for (const Determinism level :
       {Determinism::kNone, Determinism::kRunToRun, Determinism::kThreadCountInvariant,
        Determinism::kBatchInvariant}) {
    EXPECT_TRUE(names(document, to_string(level))) << to_string(level);
  }
  for (const OnFallback value : {OnFallback::kAllow, OnFallback::kWarn, OnFallback::kError}) {
    EXPECT_TRUE(names(document, to_string(value))) << to_string(value);
  }
  for (const Isa& isa : named_isas()) {
    EXPECT_TRUE(names(document, to_string(isa))) << to_string(isa);
  }
}

// The last section of semantics.md lists exactly the problems of literals_table.cc.
TEST(Documents, SemanticsNamesEveryLiteralProblem) {
  const std::string document = read_document("semantics.md");
  const std::size_t begin = document.find("| rule | literal problems |");
  ASSERT_NE(begin, std::string::npos);
  const std::string table = document.substr(begin);
  for (const test::Literal& literal : test::literals()) {
    EXPECT_TRUE(names(table, literal.name)) << literal.name;
  }
  const auto ticks = std::count(table.begin(), table.end(), '`');
  EXPECT_EQ(ticks, 2 * static_cast<std::ptrdiff_t>(test::literals().size()))
      << "the table names a problem twice, or one that does not exist";
}

TEST(Documents, CasesHaveTheCaseSyntax) {
  std::string block = "```text\n";
  block.append(case_syntax_help()).append("```\n");
  expect_block("cases.md", "case words", block);
}

}  // namespace
}  // namespace regard
