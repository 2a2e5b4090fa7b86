#pragma once

#include <string>
#include <string_view>
#include <vector>

// The parts of a page. Everything that is not written here is escaped.

namespace regard::guide {

/// Text as content or as the value of a quoted attribute. Control characters, which HTML forbids,
/// become the replacement character.
std::string escape(std::string_view text);

struct HtmlCell {
  std::string text;
  enum class Style { kText, kNumber, kYes, kNo, kBest } style = Style::kText;
};

struct HtmlTable {
  std::string id;  // of its caption
  std::string caption;
  std::vector<std::string> header;
  std::vector<std::vector<HtmlCell>> rows;  // the first cell of each heads the row
};

/// A table that scrolls sideways where it is too wide, also by keyboard.
std::string to_html(const HtmlTable& table);

/// A paragraph of escaped text.
std::string paragraph(std::string_view text);

}  // namespace regard::guide
