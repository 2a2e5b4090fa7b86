#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "regard/case.h"
#include "tests/fuzz/require.h"

// Any text is either refused with a reason or is a case whose print reads back as the same case.
// A NUL byte in the input separates a base from changes to it, as options of a file and flags.

namespace {

using regard::Case;
using regard::Expected;

void check(const Expected<Case>& parsed) {
  if (!parsed) {
    require(!parsed.status().message().empty(), "a refusal says why", "");
    return;
  }
  const std::string text = to_string(*parsed);
  const Expected<Case> again = regard::parse_case(text);
  require(again.ok(), "a printed case parses", text + ": " + again.status().message());
  require(*again == *parsed, "a printed case is the same case", text);
  require(to_string(*again) == text, "printing has one order", text);
  require(regard::validate(parsed->params, "fuzz").ok(), "a parsed case is valid", text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t split = text.find('\0');
  const Expected<Case> base = regard::parse_case(text.substr(0, split));
  check(base);
  if (base && split != std::string_view::npos) {
    check(regard::parse_case(text.substr(split + 1), *base));
  }
  return 0;
}
