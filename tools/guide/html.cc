#include "tools/guide/html.h"

#include <fmt/format.h>

namespace regard::guide {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
          out += "\xef\xbf\xbd";
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string to_html(const HtmlTable& table) {
  std::string out = fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"{0}\">\n<table>\n"
      "<caption id=\"{0}\"><span>{1}</span></caption>\n<thead><tr>",
      escape(table.id), escape(table.caption));
  for (const std::string& name : table.header) {
    out += fmt::format("<th scope=\"col\">{}</th>", escape(name));
  }
  out += "</tr></thead>\n<tbody>\n";
  constexpr const char* kClasses[] = {"", " class=\"number\"", " class=\"yes\"", " class=\"no\"",
                                      " class=\"number best\""};
  for (const std::vector<HtmlCell>& row : table.rows) {
    out += "<tr>";
    for (const HtmlCell& cell : row) {
      if (&cell == row.data()) {
        out += fmt::format("<th scope=\"row\">{}</th>", escape(cell.text));
      } else {
        out +=
            fmt::format("<td{}>{}</td>", kClasses[static_cast<int>(cell.style)], escape(cell.text));
      }
    }
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table>\n</div>\n";
}

std::string paragraph(std::string_view text) { return fmt::format("<p>{}</p>\n", escape(text)); }

}  // namespace regard::guide
