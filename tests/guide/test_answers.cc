// What figures are said to mean.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/guide/sample.h"
#include "tools/guide/answers.h"

namespace regard::guide {
namespace {

using sample::point;
using sample::row;
using sample::sweep;

std::vector<std::string> sentences(const Report& report, const std::string& question) {
  for (const Answer& answer : answers(report)) {
    if (answer.question == question) return answer.sentences;
  }
  return {};
}

bool has(const std::vector<std::string>& sentences, const std::string& sentence) {
  return std::find(sentences.begin(), sentences.end(), sentence) != sentences.end();
}

TEST(Answers, TheFirstIsWhatRuns) {
  const std::vector<Answer> found = answers(sample::report());
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().question, "What runs here?");
  EXPECT_EQ(found.front().sentences.back(), "cudnn needs a CUDA device.");
}

TEST(Answers, ReignsBreakWhereAnotherIsFaster) {
  const Sweep found = sample::lengths();
  const std::vector<Reign> all = reigns(found);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].names, (std::vector<std::string>{"math"}));
  EXPECT_EQ(all[0].last->x, 64);
  EXPECT_EQ(all[1].names, (std::vector<std::string>{"flash"}));  // efficient ties at 1,024 alone
  EXPECT_EQ(all[1].first->x, 1024);
  EXPECT_EQ(all[1].last->x, 4096);
  EXPECT_EQ(
      sentences(sample::report(), "What is fastest here?").at(0),
      "Prompts in f32: math at 64 positions and flash from 1,024 to 4,096 positions. At 1,024 "
      "positions: flash 2.00 ms; efficient 2.01 ms, math 4.00 ms.");
}

TEST(Answers, FiguresWithinTheirSpreadAreEqual) {
  EXPECT_FALSE(differ(row("a", 1.0), row("b", 1.04)));
  EXPECT_TRUE(differ(row("a", 1.0), row("b", 1.06)));
  EXPECT_TRUE(differ(row("b", 1.06), row("a", 1.0)));
  const Measured wide = row("a", {0.5, 1.0, 1.5});
  EXPECT_FALSE(differ(wide, row("b", 1.2)));
  // Rounds of a machine whose speed changes: the ratio within each is the same.
  EXPECT_TRUE(differ(row("a", {1.0, 2.0, 4.0}), row("b", {1.2, 2.4, 4.8})));
  EXPECT_FALSE(differ(row("a", {1.0, 2.0, 4.0}), row("b", {1.2, 1.9, 3.9})));
  EXPECT_FALSE(differ(row("a", std::vector<double>{}), row("b", 1.0)));
}

TEST(Answers, ACrossingHoldsFromThereOn) {
  const Sweep found = sweep("padding", "",
                            {point(0, {row("padded", 1.0), row("packed", 0.5)}),
                             point(25, {row("padded", 1.0), row("packed", 2.0)}),
                             point(50, {row("padded", 1.0), row("packed", 0.9)}),
                             point(75, {row("padded", 1.0), row("packed", 0.5)})});
  ASSERT_NE(crossing(found, "packed", "padded"), nullptr);
  EXPECT_EQ(crossing(found, "packed", "padded")->x, 50);
  EXPECT_EQ(crossing(found, "padded", "packed"), nullptr);
  EXPECT_EQ(crossing(found, "packed", "absent"), nullptr);
  Report report = sample::report();
  report.sweeps.push_back(found);
  EXPECT_EQ(sentences(report, "Padded or packed?").at(0),
            "Pack such sequences from 50 % of padding on.");
  Sweep& own = report.sweeps.back();
  for (Point& at : own.points) at.rows.push_back(row("auto", 0.91));
  EXPECT_EQ(
      sentences(report, "Padded or packed?").at(2),
      "attention_padded() decides by itself: it is as fast as the better way at 2 of 4 shares of "
      "padding.");
}

TEST(Answers, HowExact) {
  EXPECT_TRUE(has(sentences(sample::report(), "How exact is it?"),
                  "f32: at most 4.0e-07 of the largest output (flash); it states 2.0e-06."));
}

TEST(Answers, WhyNotTheOthers) {
  Report report = sample::report();
  report.sweeps[0].points.pop_back();
  const std::vector<std::string> found = sentences(report, "Why not the others?");
  EXPECT_TRUE(has(found, "Prompts in f32, 1,024 positions: efficient is as fast as flash."));
  EXPECT_TRUE(
      has(found, "Prompts in f32, 1,024 positions: math takes 2.00 times as long as flash."));
}

TEST(Answers, HowManyThreads) {
  Report report = sample::report();
  report.sweeps.push_back(sweep("threads", "Threads",
                                {point(1, {row("prompt", 4.0), row("decode", 1.0)}),
                                 point(2, {row("prompt", 2.0), row("decode", 0.99)}),
                                 point(4, {row("prompt", 1.98), row("decode", 1.2)})}));
  const std::vector<std::string> found = sentences(report, "How many threads?");
  EXPECT_TRUE(has(found, "prompt: 2 threads, 2.00 times as fast as one."));
  EXPECT_TRUE(has(found, "decode: more threads than one give nothing."));
}

TEST(Answers, OwnShapesComeBeforeTheGrid) {
  Report report = sample::report();
  report.sweeps.push_back(sweep("problems", "Your shapes",
                                {point(9, {row("flash", 2e-3), sample::refused("math", "no")})}));
  EXPECT_EQ(answers(report)[1].sentences.at(0),
            "b1 sq9 d64: flash, 2.00 ms, 2.00 KiB of workspace; math: no.");
}

TEST(Answers, OwnShapesHaveWhatTheyCostAndHowFarTheOthersAre) {
  Report report = sample::report();
  std::vector<Measured> rows = {row("flash", 2e-3), row("efficient", 2.01e-3), row("math", 5e-3)};
  rows[0].workspace_bytes = 3 << 10;
  rows[1].workspace_bytes = -1;  // not known
  rows[2].workspace_bytes = 2 << 20;
  report.sweeps.push_back(sweep("problems", "Your shapes", {point(9, rows)}));
  EXPECT_EQ(answers(report)[1].sentences.at(0),
            "b1 sq9 d64: flash, 2.00 ms, 3.00 KiB of workspace; efficient 2.01 ms, as fast; math "
            "5.00 ms, 2.50 times as long, 2.00 MiB of workspace.");
}

TEST(Answers, APeerIsNeverTheFastestOfRegard) {
  Report report = sample::report();
  report.peer = "torch 9";
  for (Point& at : report.sweeps[0].points) {
    at.rows.push_back(row("torch", 1e-4));
    at.rows.back().is_peer = true;
  }
  EXPECT_EQ(fastest(report.sweeps[0].points[0])->name, "math");
  EXPECT_EQ(sentences(report, "And torch 9?").at(0),
            "Prompts in f32: the fastest here is 0.03 to 0.10 times as fast.");
}

TEST(Answers, NothingMeasuredIsNoAnswer) {
  Report report = sample::report();
  for (Point& at : report.sweeps[0].points) at.rows.clear();
  EXPECT_TRUE(sentences(report, "What is fastest here?").empty());
}

TEST(ReportJson, HasEveryFigure) {
  const nlohmann::json json = nlohmann::json::parse(to_json(sample::report()));
  EXPECT_EQ(json["cpu_model"], "A CPU of \"tests\" & <others>");
  const auto& at = json["sweeps"][0]["points"][2];
  EXPECT_EQ(at["rows"][1]["reason"], "needs <more>");
  EXPECT_TRUE(at["rows"][1]["workspace_bytes"].is_null());
  EXPECT_EQ(at["rows"][0]["seconds"].size(), 3u);
  EXPECT_EQ(json["answers"][0]["question"], "What runs here?");
}

TEST(Words, Numbers) {
  EXPECT_EQ(count_words(65536), "65,536");
  EXPECT_EQ(count_words(-1234567), "-1,234,567");
  EXPECT_EQ(count_words(999), "999");
  EXPECT_EQ(short_words(1234.4), "1,234");
  EXPECT_EQ(short_words(99.96), "100");
  EXPECT_EQ(short_words(9.996), "10.0");
  EXPECT_EQ(short_words(0.0123), "0.012");
  EXPECT_EQ(seconds_words(0.99996e-3), "1.00 ms");
  EXPECT_EQ(seconds_words(0.9996), "1.00 s");
  EXPECT_EQ(bytes_words(1023.7), "1.00 KiB");
  EXPECT_EQ(bytes_words(512), "512 B");
}

}  // namespace
}  // namespace regard::guide
