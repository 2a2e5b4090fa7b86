#include "function/recognise.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "function/node.h"

namespace regard::function {
namespace {

/// query * (q_idx or q_pos) + key * kv_idx + offset.
struct Linear {
  std::int64_t query = 0, key = 0, offset = 0;
  bool of_index = false;     // q_idx
  bool of_position = false;  // q_pos
};

Linear scaled(Linear x, std::int64_t by) {
  x.query *= by;
  x.key *= by;
  x.offset *= by;
  return x;
}

Linear sum(Linear a, const Linear& b) {
  a.query += b.query;
  a.key += b.key;
  a.offset += b.offset;
  a.of_index = a.of_index || b.of_index;
  a.of_position = a.of_position || b.of_position;
  return a;
}

/// None where it is more than sums of indices and small constants.
std::optional<Linear> linear(const Node& node) {
  Linear made;
  switch (node.op) {
    case FunctionOp::kConstant:
      if (node.type != ValueType::kInt || std::abs(node.value) > 1e9) return std::nullopt;
      made.offset = static_cast<std::int64_t>(node.value);
      return made;
    case FunctionOp::kQuery:
    case FunctionOp::kPosition:
      made.query = 1;
      (node.op == FunctionOp::kQuery ? made.of_index : made.of_position) = true;
      return made;
    case FunctionOp::kKey: made.key = 1; return made;
    case FunctionOp::kAdd:
    case FunctionOp::kSubtract: {
      const auto a = linear(*node.args[0]), b = linear(*node.args[1]);
      if (!a || !b) return std::nullopt;
      return sum(*a, scaled(*b, node.op == FunctionOp::kAdd ? 1 : -1));
    }
    default: return std::nullopt;
  }
}

/// Keys within `left` before and `right` after the query; kUnlimited as in params.
struct Window {
  std::int64_t left = kUnlimited, right = kUnlimited;
  bool of_position = false;
};

/// x <= 0.
std::optional<Window> window_of(const Linear& x) {
  if (x.of_index == x.of_position || x.offset > 0) return std::nullopt;
  Window window;
  window.of_position = x.of_position;
  if (x.query == 1 && x.key == -1) {
    window.left = -x.offset;
  } else if (x.query == -1 && x.key == 1) {
    window.right = -x.offset;
  } else {
    return std::nullopt;
  }
  return window;
}

/// a <= b, or a < b where `strict`.
std::optional<Window> window_of_order(const Node& a, const Node& b, bool strict) {
  const auto right = linear(b);
  if (!right) return std::nullopt;
  const auto at_most = [&](const Linear& x) {
    return window_of(sum(sum(x, scaled(*right, -1)), Linear{0, 0, strict ? 1 : 0}));
  };
  if (a.op != FunctionOp::kAbs) {
    const auto left = linear(a);
    return left ? at_most(*left) : std::nullopt;
  }
  const auto distance = linear(*a.args[0]);
  if (!distance || distance->offset != 0 || right->query != 0 || right->key != 0) {
    return std::nullopt;
  }
  const auto one = at_most(*distance), other = at_most(scaled(*distance, -1));
  if (!one || !other) return std::nullopt;
  return Window{std::max(one->left, other->left), std::max(one->right, other->right),
                one->of_position};
}

/// q - kv <= w, kv <= q and the like; |q - kv| <= w.
std::optional<Window> window_of(const Node& node) {
  const bool negates = node.op == FunctionOp::kNot;
  const Node& order = negates ? *node.args[0] : node;
  if (order.op != FunctionOp::kLess && order.op != FunctionOp::kLessEqual) return std::nullopt;
  const bool strict = order.op == FunctionOp::kLess;
  if (!negates) return window_of_order(*order.args[0], *order.args[1], strict);
  return window_of_order(*order.args[1], *order.args[0], !strict);  // !(a < b) is b <= a
}

std::int64_t narrower(std::int64_t a, std::int64_t b) {
  if (a == kUnlimited || b == kUnlimited) return std::max(a, b);
  return std::min(a, b);
}

/// A window counts from the top left, or from the params' own diagonal. It must not be the first
/// one of a call whose rotary positions ascend with windows alone (problem/rotary.h).
bool fits(const Window& window, const AttentionParams& p) {
  const bool turns = p.features.has(Feature::kRotary) && !p.features.has(Feature::kPositions) &&
                     p.window_left < 0 && p.window_right < 0;
  if (turns) return false;
  return window.of_position || p.diagonal == Diagonal::kUnnamed || p.diagonal == Diagonal::kTopLeft;
}

bool take_window(const Window& window, AttentionParams* p) {
  if (!fits(window, *p)) return false;
  p->window_left = narrower(p->window_left, window.left);
  p->window_right = narrower(p->window_right, window.right);
  if (!window.of_position) p->diagonal = Diagonal::kTopLeft;
  return true;
}

/// What is left of a mask of which windows became features; none: nothing. The rest stays as it was
/// written, so that a mask is the same one with and without the windows.
NodePtr take_windows(const NodePtr& node, AttentionParams* p) {
  if (node->op != FunctionOp::kAnd) {
    const auto window = window_of(*node);
    const bool is_true = is_constant(*node) && node->value != 0.0;
    return is_true || (window && take_window(*window, p)) ? nullptr : node;
  }
  NodePtr one = take_windows(node->args[0], p), other = take_windows(node->args[1], p);
  if (one == node->args[0] && other == node->args[1]) return node;
  if (one == nullptr || other == nullptr) return one != nullptr ? one : other;
  return make_node(FunctionOp::kAnd, {std::move(one), std::move(other)}).node;
}

/// softcap * tanh(score / softcap), or 0.
double softcap_of(const Node& node) {
  if (node.op != FunctionOp::kMultiply) return 0.0;
  const bool first = is_constant(*node.args[0]);
  const Node &cap = *node.args[first ? 0 : 1], &tanh = *node.args[first ? 1 : 0];
  if (!is_constant(cap) || tanh.op != FunctionOp::kTanh) return 0.0;
  const Node& ratio = *tanh.args[0];
  const bool fits = ratio.op == FunctionOp::kDivide && ratio.args[0]->op == FunctionOp::kScore &&
                    is_constant(*ratio.args[1]) && ratio.args[1]->value == cap.value;
  return fits && std::isfinite(cap.value) && cap.value > 0.0 ? cap.value : 0.0;
}

bool is_minus_infinity(const Node& node) {
  return is_constant(node) && std::isinf(node.value) && node.value < 0.0;
}

/// A score that is -inf under a condition of places is another one and a mask.
void split_masks(NodePtr* score, std::vector<NodePtr>* masks) {
  while ((*score)->op == FunctionOp::kWhere && !(*score)->args[0]->uses.score) {
    const Node& where = **score;
    NodePtr condition = where.args[0];
    const bool first = is_minus_infinity(*where.args[1]),
               second = is_minus_infinity(*where.args[2]);
    if (first == second) return;
    if (first) condition = make_node(FunctionOp::kNot, {condition}).node;
    masks->push_back(condition);
    NodePtr rest = where.args[first ? 2 : 1];
    *score = std::move(rest);
  }
}

const NodePtr& root_of(const Expression& expression) {
  static const NodePtr none;
  return expression.empty() ? none : expression.data()->root;
}

/// Whether some part of a mask becomes a feature, or nothing.
bool has_feature(const Node& mask, const AttentionParams& p) {
  if (mask.op == FunctionOp::kAnd) {
    return has_feature(*mask.args[0], p) || has_feature(*mask.args[1], p);
  }
  const auto window = window_of(mask);
  return (is_constant(mask) && mask.value != 0.0) || (window && fits(*window, p));
}

/// Allocates nothing: most calls have no such form, or had it before.
bool has_features(const AttentionParams& p) {
  const NodePtr &score = root_of(p.score_function), &mask = root_of(p.mask_function);
  if (mask != nullptr && has_feature(*mask, p)) return true;
  if (score == nullptr) return false;
  const bool may_mask = score->op == FunctionOp::kWhere &&
                        (is_minus_infinity(*score->args[1]) != is_minus_infinity(*score->args[2]));
  return score->op == FunctionOp::kScore || (may_mask && !score->args[0]->uses.score) ||
         (p.softcap == 0.0 && softcap_of(*score) > 0.0);
}

void recognise_score(AttentionParams* p, std::vector<NodePtr>* masks) {
  if (root_of(p->score_function) == nullptr) return;
  NodePtr score = root_of(p->score_function);
  split_masks(&score, masks);
  const double softcap = softcap_of(*score);
  const bool is_softcap = softcap > 0.0 && p->softcap == 0.0;
  if (is_softcap) p->softcap = softcap;
  if (is_softcap || score->op == FunctionOp::kScore) {
    p->score_function = {};
  } else if (score != root_of(p->score_function)) {
    p->score_function = make_expression(std::move(score));
  }
}

}  // namespace

void recognise_features(AttentionParams* params) {
  // A mask of blocks speaks of the mask function as it is.
  if (params->features.has(Feature::kBlockMask) || !has_features(*params)) return;
  std::vector<NodePtr> masks;
  recognise_score(params, &masks);
  const NodePtr& own = root_of(params->mask_function);
  if (own != nullptr) masks.push_back(own);
  if (masks.empty()) return;
  NodePtr rest;
  for (const NodePtr& mask : masks) {
    NodePtr left = take_windows(mask, params);
    if (left == nullptr) continue;
    rest = rest == nullptr ? left : make_node(FunctionOp::kAnd, {std::move(rest), left}).node;
  }
  params->mask_function = rest == nullptr ? Expression() : make_expression(std::move(rest));
}

}  // namespace regard::function
