#include "core/text/dropout_words.h"

#include <cstdint>
#include <vector>

#include "base/message.h"
#include "core/text/number_parse.h"

namespace regard {

bool print_dropout_origin(const Case& c, std::string* out) {
  const DropoutOrigin& o = c.data.dropout_origin;
  *out += concat(o.position, ",", o.key, ",", o.head, ",", o.heads);
  return c.params.features.has(Feature::kDropoutOrigin);
}

bool parse_dropout_origin(std::string_view value, Case* c) {
  std::vector<std::int64_t> numbers;
  if (!parse_numbers(value, &numbers) || numbers.size() != 4) return false;
  DropoutOrigin& origin = c->data.dropout_origin;
  origin = {numbers[0], numbers[1], numbers[2], numbers[3]};
  c->params.features.set(Feature::kDropoutOrigin);
  return origin != DropoutOrigin{} && origin.key >= 0 && origin.key % 8 == 0 && origin.heads >= 0 &&
         origin.heads <= UINT32_MAX;
}

}  // namespace regard
