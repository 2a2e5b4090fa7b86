#pragma once

#include <string>
#include <vector>

#include "tools/guide/report.h"

// What a report says to its reader, in words with their figures.

namespace regard::guide {

struct Answer {
  std::string question;
  std::vector<std::string> sentences;
  std::string section;  // the id of the section with the figures; "" for none
};

/// Each question that the report has figures for.
std::vector<Answer> answers(const Report& report);

/// The points in a row that one line is the fastest of: "flash from 64 to 512".
struct Reign {
  const Point* first = nullptr;
  const Point* last = nullptr;
  std::vector<std::string> names;  // the fastest, and those that tie with it all along
};
std::vector<Reign> reigns(const Sweep& sweep);

/// The first point from which on `name` is faster than `other` at every point; null for none.
const Point* crossing(const Sweep& sweep, const std::string& name, const std::string& other);

/// "a, b and c"
std::string list_words(const std::vector<std::string>& names);

}  // namespace regard::guide
