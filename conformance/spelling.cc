#include "conformance/spelling.h"

#include <charconv>
#include <cstdint>
#include <string>
#include <utility>

namespace regard::conformance {
namespace {

using std::to_string;

/// The windows of a case as conditions, drawn among the ways to write one.
class WindowText {
 public:
  WindowText(const AttentionParams& params, Rng* rng) : rng_(*rng) {
    q_ = params.diagonal == Diagonal::kTopLeft && rng->chance(0.5) ? "q_idx" : "q_pos";
  }

  std::string right(std::int64_t width) {
    const std::string w = to_string(width);
    if (width > 0) return rng_.chance(0.5) ? "kv_idx-" + q_ + "<=" + w : q_ + "+" + w + ">=kv_idx";
    const std::string all[] = {"kv_idx<=" + q_, q_ + ">=kv_idx", "kv_idx<" + q_ + "+1",
                               "!(kv_idx>" + q_ + ")", q_ + "-kv_idx>-1"};
    return rng_.pick(all);
  }

  std::string left(std::int64_t width) {
    const std::string w = to_string(width);
    const std::string all[] = {q_ + "-kv_idx<=" + w, "kv_idx>=" + q_ + "-" + w,
                               q_ + "-kv_idx<" + to_string(width + 1),
                               "!(" + q_ + ">kv_idx+" + w + ")"};
    return rng_.pick(all);
  }

  std::string both(std::int64_t width) {
    return "abs(" + std::string(rng_.chance(0.5) ? "kv_idx-" + q_ : q_ + "-kv_idx") +
           ")<=" + to_string(width);
  }

 private:
  Rng& rng_;
  std::string q_;
};

std::string shortest_text(double value) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

/// Positions as functions have them, in 32 bits, are those of windows.
bool has_small_positions(const Case& c) {
  if (c.params.diagonal != Diagonal::kOffset) return true;
  constexpr std::int64_t kLarge = std::int64_t{1} << 30;
  return !c.params.features.has(Feature::kDiagonalPerSequence) && c.data.diagonal_offset < kLarge &&
         c.data.diagonal_offset > -kLarge;
}

/// Empty where a window keeps its own field: rotary positions ascend where there is one.
std::string spell_windows(const AttentionParams& p, Rng* rng, AttentionOptions* options) {
  if (p.features.has(Feature::kRotary) && !p.features.has(Feature::kPositions)) return "";
  WindowText text(p, rng);
  const bool spells_left = p.window_left >= 0 && rng->chance(0.8);
  const bool spells_right = p.window_right >= 0 && rng->chance(0.8);
  if (spells_right) {
    options->is_causal = false;
    options->window_right = kUnlimited;
  }
  if (spells_left) options->window_left = kUnlimited;
  if (spells_left && spells_right && p.window_left == p.window_right && rng->chance(0.7)) {
    return text.both(p.window_left);
  }
  std::string condition = spells_right ? text.right(p.window_right) : "";
  if (!spells_left) return condition;
  return text.left(p.window_left) + (condition.empty() ? "" : "&" + condition);
}

}  // namespace

void spell_as_functions(const Case& c, Rng* rng, AttentionOptions* options) {
  const AttentionParams& p = c.params;
  if (p.features.has(Feature::kBlockMask) || !has_small_positions(c)) return;
  AttentionOptions spelled = *options;
  std::string score = p.score_function.text(), mask = p.mask_function.text();
  const std::string condition = spell_windows(p, rng, &spelled);
  if (p.softcap > 0.0 && score.empty() && rng->chance(0.7)) {
    const std::string cap = shortest_text(p.softcap);
    score = rng->chance(0.5) ? cap + "*tanh(score/" + cap + ")" : "tanh(score/" + cap + ")*" + cap;
    spelled.softcap = 0.0;
  }
  if (!condition.empty() && rng->chance(0.4)) {
    score = "where(" + condition + "," + (score.empty() ? "score" : score) + ",-inf)";
  } else if (!condition.empty()) {
    mask = condition + (mask.empty() ? "" : "&(" + mask + ")");
  }
  for (auto [text, function] :
       {std::pair{&score, &spelled.score_function}, std::pair{&mask, &spelled.mask_function}}) {
    if (text->empty()) continue;
    const Expected<Expression> parsed = Expression::parse(*text);
    if (!parsed) return;  // too long
    *function = *parsed;
  }
  *options = spelled;
}

}  // namespace regard::conformance
