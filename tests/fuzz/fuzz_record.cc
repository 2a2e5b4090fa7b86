#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "regard/record.h"
#include "tests/fuzz/require.h"

// Any text is refused with a reason, or is a record whose print reads back as the same record.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const regard::Expected<regard::Record> record = regard::parse_record(text, "fuzz");
  if (!record) {
    require(!record.status().message().empty(), "a refusal says why", "");
    return 0;
  }
  require(regard::is_record(text), "what parses is a record", "");
  const std::string print = to_string(*record);
  const auto again = regard::parse_record(print, "print");
  require(again.ok(), "a printed record parses", print + again.status().message());
  require(*again == *record, "a printed record is the same record", print);
  return 0;
}
