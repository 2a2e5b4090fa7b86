#include "core/text/function_words.h"

#include <cstdint>
#include <vector>

#include "base/message.h"
#include "core/text/number_parse.h"
#include "function/node.h"

namespace regard {
namespace {

bool print_function(const Expression& function, std::string* out) {
  *out += function.text();
  return !function.empty();
}

bool parse_function(std::string_view text, Expression* function) {
  Expected<Expression> parsed = Expression::parse(text);
  *function =
      parsed ? *std::move(parsed) : function::make_failed(std::string(text), parsed.status());
  return true;
}

}  // namespace

bool print_score_function(const Case& c, std::string* out) {
  return print_function(c.params.score_function, out);
}
bool parse_score_function(std::string_view value, Case* c) {
  return parse_function(value, &c->params.score_function);
}
bool print_mask_function(const Case& c, std::string* out) {
  return print_function(c.params.mask_function, out);
}
bool parse_mask_function(std::string_view value, Case* c) {
  return parse_function(value, &c->params.mask_function);
}

bool print_block_mask(const Case& c, std::string* out) {
  *out += concat(c.params.block_size_q, ",", c.params.block_size_kv);
  return c.params.features.has(Feature::kBlockMask);
}
bool parse_block_mask(std::string_view value, Case* c) {
  constexpr std::int64_t kUsual = 128;
  AttentionParams& p = c->params;
  p.features.set(Feature::kBlockMask);
  p.block_size_q = p.block_size_kv = kUsual;
  if (value.empty()) return true;
  std::vector<std::int64_t> sizes;
  if (!parse_numbers(value, &sizes) || sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1) {
    return false;
  }
  p.block_size_q = sizes[0];
  p.block_size_kv = sizes[1];
  return true;
}

}  // namespace regard
