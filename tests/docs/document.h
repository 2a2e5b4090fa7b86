#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

// What the tests of documents share.

namespace regard::test {

inline std::string path_of(const std::string& name) {
  return std::string(REGARD_SOURCE_DIR) + "/docs/" + name;
}

inline std::string read_document(const std::string& name) {
  std::ifstream file(path_of(name));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline bool names(const std::string& document, const std::string& word) {
  std::string code = "`";
  code.append(word).append("`");
  return document.find(code) != std::string::npos;
}

// What stands between <!-- mark --> and <!-- /mark --> must be `expected`. With UPDATE_DOCS set the
// document is rewritten instead.
inline void expect_block(const std::string& name, const std::string& mark,
                         const std::string& expected) {
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

}  // namespace regard::test
