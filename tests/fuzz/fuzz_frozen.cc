#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "regard/frozen.h"
#include "tests/fuzz/require.h"

// Any text is refused with a reason, or is a file of decisions whose print reads back as the same
// ones. A NUL byte separates two files, whose differences are listed.

namespace {

using regard::Expected;
using regard::FrozenDecisions;

void check(const Expected<FrozenDecisions>& frozen) {
  if (!frozen) {
    require(!frozen.status().message().empty(), "a refusal says why", "");
    return;
  }
  const std::string print = to_string(*frozen);
  const auto again = regard::parse_frozen(print, "print");
  require(again.ok(), "a printed file parses", print + again.status().message());
  require(to_string(*again) == print, "a print is stable", print);
  const auto same = diff(*frozen, *again);
  require(same.empty(), "a printed file has the same decisions", to_string(same));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t split = text.find('\0');
  const auto a = regard::parse_frozen(text.substr(0, split), "a");
  check(a);
  if (split == std::string_view::npos) return 0;
  const auto b = regard::parse_frozen(text.substr(split + 1), "b");
  check(b);
  if (a && b) {
    require(diff(*a, *b).empty() == diff(*b, *a).empty(), "differences have no direction", "");
  }
  return 0;
}
