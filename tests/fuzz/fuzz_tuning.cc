#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "regard/context.h"
#include "tests/fuzz/require.h"

// Any text is either refused with a line's number, or is a table whose text reads back as the same
// one and whose terms give finite times.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto table = regard::parse_tuning_table(text, "file");
  if (!table.ok()) {
    require(table.status().message().find("file:") != std::string::npos, "a line is named",
            table.status().message());
    return 0;
  }
  const std::string printed = regard::to_text(*table);
  const auto back = regard::parse_tuning_table(printed, "file");
  require(back.ok(), "what is printed can be read", printed);
  require(*back == *table, "it is the same table", printed);
  regard::AttentionParams params;
  params.batch = params.num_heads_q = params.num_heads_kv = 1;
  params.seqlen_q = params.seqlen_kv = params.head_dim_qk = params.head_dim_v = 64;
  for (const regard::CostEntry& entry : table->costs.entries) {
    const auto time = regard::predict_time(table->costs, entry.backend, params, false);
    require(!time.known() || time.seconds < 1e300, "times are finite", printed);
  }
  return 0;
}
