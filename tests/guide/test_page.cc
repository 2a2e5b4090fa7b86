// The page: everything escaped, every table headed, and nothing read from elsewhere.

#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/guide/sample.h"
#include "tools/guide/html.h"
#include "tools/guide/page.h"
#include "tools/guide/svg_chart.h"

namespace regard::guide {
namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) {
    ++found;
  }
  return found;
}

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  std::vector<std::string> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator i(text.begin(), text.end(), expression), end; i != end; ++i) {
    found.push_back((*i)[1]);
  }
  return found;
}

/// Every element that is opened is closed in the right order.
void expect_nested(const std::string& text) {
  const std::set<std::string> kVoid = {"meta", "link"};
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z0-9]+)([^<>]*)>");
  for (std::sregex_iterator i(text.begin(), text.end(), tag), end; i != end; ++i) {
    const std::string name = (*i)[2], rest = (*i)[3];
    if (kVoid.count(name) != 0 || (!rest.empty() && rest.back() == '/')) continue;
    if ((*i)[1] == "") {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(Html, EscapesWhatMeansSomething) {
  EXPECT_EQ(escape("<a href=\"x\">'&</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&lt;/a&gt;");
  EXPECT_EQ(escape(std::string("a\x1b\0b\n", 5)),
            "a\xef\xbf\xbd\xef\xbf\xbd"
            "b\n");
}

TEST(Html, TablesHaveHeadsAndACaption) {
  const std::string text = to_html({"id", "A <caption>", {"x", "y"}, {{{"1"}, {"<2>"}}}});
  EXPECT_NE(text.find("<caption id=\"id\"><span>A &lt;caption&gt;</span></caption>"),
            std::string::npos);
  EXPECT_EQ(count(text, "<th scope=\"col\">"), 2);
  EXPECT_NE(text.find("<th scope=\"row\">1</th><td>&lt;2&gt;</td>"), std::string::npos);
  EXPECT_NE(text.find("tabindex=\"0\""), std::string::npos);
  expect_nested(text);
}

TEST(Chart, TicksCoverTheFigures) {
  EXPECT_EQ(axis_ticks(0, 10, false), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(0, 0.31, false).back(), 0.4);
  EXPECT_EQ(axis_ticks(0, 0, false).size(), 2u);
  EXPECT_EQ(axis_ticks(20, 3000, true), (std::vector<double>{10, 100, 1000, 10000}));
  EXPECT_EQ(axis_ticks(100, 100, true), (std::vector<double>{100, 1000}));
}

Chart two_lines() {
  Chart chart;
  chart.id = "c";
  chart.title = "T <1>";
  chart.ticks = {{1, "1"}, {1000, "1,000"}};
  chart.lines = {{"one <", {{1, 5, "a"}, {1000, 10, "b & c"}}}, {"two", {{1, 5, "d"}}}};
  return chart;
}

TEST(Chart, LinesDifferInMarkerAndHaveTheirNames) {
  const std::string text = to_svg(two_lines());
  expect_nested(text);
  EXPECT_NE(text.find("role=\"img\" aria-labelledby=\"c-t c-d\""), std::string::npos);
  EXPECT_EQ(count(text, "<circle"), 3);      // two points, and the name's
  EXPECT_EQ(count(text, "width=\"8\""), 2);  // squares
  EXPECT_NE(text.find(">one &lt;</text>"), std::string::npos);
  EXPECT_NE(text.find("<title>b &amp; c</title>"), std::string::npos);
}

TEST(Chart, PlacesAreWithinTheDrawing) {
  Chart chart = two_lines();
  for (int i = 0; i < 12; ++i) chart.lines.push_back({"line", {{1000, 10, "x"}}});
  const std::string text = to_svg(chart);
  for (const std::string& y : matches(text, " y=\"([-0-9.]+)\"")) {
    EXPECT_GE(std::stod(y), 0.0);
    EXPECT_LE(std::stod(y), 340.0);
  }
  EXPECT_EQ(text.find("nan"), std::string::npos);
}

TEST(Chart, FiguresThatCannotBeDrawnAreLeftOut) {
  Chart chart = two_lines();
  chart.log_y = true;
  chart.lines = {{"one", {{1, 0, "zero"}, {0, 1, "left"}, {2, NAN, "none"}, {4, 8, "drawn"}}}};
  const std::string text = to_svg(chart);
  EXPECT_EQ(count(text, "<title>"), 1);
  EXPECT_NE(text.find("drawn"), std::string::npos);
  chart.lines = {{"one", {}}};
  EXPECT_EQ(to_svg(chart), "");
}

TEST(Page, IsOneFileOfNestedElements) {
  const std::string page = to_page(sample::report());
  const std::size_t body = page.find("<body>");
  ASSERT_NE(body, std::string::npos);
  expect_nested(page.substr(body, page.find("</html>") - body));
  EXPECT_EQ(count(page, "src="), 0);
  EXPECT_EQ(count(page, "http"), 0);
  EXPECT_EQ(count(page, "<script"), 0);
}

TEST(Page, EveryLinkLeadsToAnId) {
  const std::string page = to_page(sample::report());
  const std::vector<std::string> ids = matches(page, " id=\"([^\"]*)\"");
  const std::set<std::string> known(ids.begin(), ids.end());
  EXPECT_EQ(ids.size(), known.size()) << "an id comes twice";
  const std::vector<std::string> links = matches(page, "href=\"#([^\"]*)\"");
  EXPECT_GT(links.size(), 5u);
  for (const std::string& link : links) EXPECT_EQ(known.count(link), 1u) << link;
  for (const std::string& id : matches(page, "aria-labelledby=\"([^\" ]*)")) {
    EXPECT_EQ(known.count(id), 1u) << id;
  }
}

TEST(Page, EscapesWhatTheMachineSays) {
  const std::string page = to_page(sample::report());
  EXPECT_EQ(page.find("& <others>"), std::string::npos);
  EXPECT_NE(page.find("A CPU of &quot;tests&quot; &amp; &lt;others&gt;"), std::string::npos);
  EXPECT_NE(page.find("needs &lt;more&gt;"), std::string::npos);
}

TEST(Page, AnswersComeBeforeFigures) {
  const std::string page = to_page(sample::report());
  const std::size_t answers = page.find("id=\"answers\""), figures = page.find("<svg");
  ASSERT_NE(answers, std::string::npos);
  ASSERT_NE(figures, std::string::npos);
  EXPECT_LT(answers, figures);
}

TEST(Page, TheFastestOfDifferentProblemsIsNotMarked) {
  Report report = sample::report();
  report.sweeps = {
      sample::sweep("threads", "Threads",
                    {sample::point(1, {sample::row("prompt", 1.0), sample::row("decode", 2.0)})})};
  EXPECT_EQ(count(to_page(report), " *</td>"), 0);
}

TEST(Page, TheFastestAndItsEqualsAreMarked) {
  const std::string page = to_page(sample::report());
  EXPECT_NE(page.find("<td class=\"number best\">1.00 ms, 1,000 GFLOP/s *</td>"),
            std::string::npos);
  EXPECT_NE(page.find("2.01 ms, 498 GFLOP/s *"), std::string::npos);
  EXPECT_EQ(page.find("9.00 ms, 111 GFLOP/s *"), std::string::npos);
}

}  // namespace
}  // namespace regard::guide
