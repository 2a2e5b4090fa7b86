#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/support/literals.h"

// Keys are mostly 0, so that weights are equal, and values powers of ten, so that an output says by
// its digits which keys were seen: 37 = (1 + 10 + 100) / 3.

namespace regard::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLn2 = 0.6931471805599453;
constexpr double kLn3 = 1.0986122886681098;
constexpr double kLn4 = 1.3862943611198906;

Values tensor(std::vector<double> numbers, std::vector<std::int64_t> shape) {
  return {std::move(numbers), std::move(shape)};
}

Values repeated(double number, std::int64_t count, std::vector<std::int64_t> shape) {
  return {std::vector<double>(static_cast<std::size_t>(count), number), std::move(shape)};
}

/// b sequences of one head, head_dim 1: q = 1, k = 0, v = `values` in each sequence; scale 1.
Literal uniform(std::string name, std::int64_t b, std::int64_t sq, std::vector<double> values) {
  Literal l;
  l.name = std::move(name);
  const auto skv = static_cast<std::int64_t>(values.size());
  l.q = repeated(1.0, b * sq, {b, 1, sq, 1});
  l.k = repeated(0.0, b * skv, {b, 1, skv, 1});
  l.v.shape = {b, 1, skv, 1};
  for (std::int64_t n = 0; n < b; ++n) {
    l.v.numbers.insert(l.v.numbers.end(), values.begin(), values.end());
  }
  l.options.softmax_scale = 1.0;
  return l;
}

const std::vector<double> kTens = {1, 10, 100, 1000};

Literal with(Literal l, std::vector<double> out, std::vector<double> lse) {
  l.out = std::move(out);
  l.lse = std::move(lse);
  return l;
}

Literal causal(std::string name, std::int64_t b, std::int64_t sq, std::vector<double> values,
               Diagonal diagonal) {
  Literal l = uniform(std::move(name), b, sq, std::move(values));
  l.options.is_causal = true;
  l.options.diagonal = diagonal;
  return l;
}

/// Scores 0.5 * (2, 4, 9) = (1, 2, 4.5); softcap 1: tanh; bias (1, 0, 0); the third key masked;
/// sink.
Literal edits(std::string name) {
  Literal l = uniform(std::move(name), 1, 1, {1, 2, 100});
  l.k.numbers = {2, 4, 9};
  l.options.softmax_scale = 0.5;
  l.options.softcap = 1.0;
  l.bias = tensor({1, 0, 0}, {1, 1, 1, 3});
  l.mask = tensor({1, 1, 0}, {1, 1, 1, 3});
  l.sinks = tensor({0.5}, {1});
  // tanh 1 + 1 = 1.76159, tanh 2 = 0.96403: (e^1.76159 + 2 e^0.96403) / (... + e^0.5)
  return with(l, {1.0964576644670472}, {2.3118092679477047});
}

void add_orders(std::vector<Literal>* all) {
  all->push_back(edits("order_of_edits"));
  all->push_back(edits("scores_scaled"));
  all->back().options.scores_kind = ScoresKind::kScaled;
  all->back().scores = {1.0, 2.0, 0.0};
  all->push_back(edits("scores_edited"));
  all->back().options.scores_kind = ScoresKind::kEdited;
  all->back().scores = {1.7615941559557649, 0.9640275800758169, -kInf};
  all->push_back(edits("scores_probs"));
  all->back().options.scores_kind = ScoresKind::kProbs;
  all->back().scores = {0.5768257149052174, 0.2598159747809149, 0.0};
  // Weights 1, 2, 3, 4: (1 + 20 + 300 + 4000) / 10, ln 10.
  Literal lse = uniform("lse_is_natural", 1, 1, kTens);
  lse.k.numbers = {0.0, kLn2, kLn3, kLn4};
  all->push_back(with(lse, {432.1}, {2.302585092994046}));
}

void add_diagonals(std::vector<Literal>* all) {
  const auto diagonal = [&](const char* name, Diagonal d) { return causal(name, 1, 2, kTens, d); };
  all->push_back(with(diagonal("diagonal_top_left", Diagonal::kTopLeft), {1, 5.5}, {0, kLn2}));
  all->push_back(
      with(diagonal("diagonal_bottom_right", Diagonal::kBottomRight), {37, 277.75}, {kLn3, kLn4}));
  Literal offset = diagonal("diagonal_offset_1", Diagonal::kOffset);
  offset.diagonal_offset = 1;
  all->push_back(with(offset, {5.5, 37}, {kLn2, kLn3}));
  offset.name = "diagonal_offset_minus_1";
  offset.diagonal_offset = -1;
  all->push_back(with(offset, {0, 1}, {-kInf, 0}));
  offset.name = "diagonal_offset_extreme";
  offset.diagonal_offset = std::numeric_limits<std::int64_t>::max();
  all->push_back(with(offset, {277.75, 277.75}, {kLn4, kLn4}));

  Literal each = causal("diagonal_per_sequence", 2, 2, kTens, Diagonal::kOffset);
  each.offsets = tensor({0, 2}, {2});
  all->push_back(with(each, {1, 5.5, 37, 277.75}, {0, kLn2, kLn3, kLn4}));

  Literal lens = causal("diagonal_bottom_right_of_lengths", 2, 2, kTens, Diagonal::kBottomRight);
  lens.lens_q = tensor({2, 1}, {2});
  lens.lens_kv = tensor({4, 2}, {2});
  all->push_back(with(lens, {37, 277.75, 5.5, 0}, {kLn3, kLn4, kLn2, -kInf}));

  Literal more_queries =
      causal("diagonal_more_queries_than_keys", 1, 3, {1, 10}, Diagonal::kBottomRight);
  all->push_back(with(more_queries, {0, 1, 5.5}, {-kInf, 0, kLn2}));
  all->push_back(with(causal("diagonal_unnamed_where_all_agree", 1, 2, {1, 10}, Diagonal::kUnnamed),
                      {1, 5.5}, {0, kLn2}));
}

void add_windows(std::vector<Literal>* all) {
  const auto window = [&](const char* name, std::int64_t left, std::int64_t right) {
    Literal l = uniform(name, 1, 4, kTens);
    l.options.window_left = left;
    l.options.window_right = right;
    return l;
  };
  all->push_back(
      with(window("window_left_1_causal", 1, 0), {1, 5.5, 55, 550}, {0, kLn2, kLn2, kLn2}));
  all->push_back(
      with(window("window_left_0_right_1", 0, 1), {5.5, 55, 550, 1000}, {kLn2, kLn2, kLn2, 0}));
  all->push_back(with(window("window_left_2", 2, -1), {277.75, 277.75, 277.75, 370},
                      {kLn4, kLn4, kLn4, kLn3}));
  all->push_back(with(window("window_right_2", -1, 2), {37, 277.75, 277.75, 277.75},
                      {kLn3, kLn4, kLn4, kLn4}));
  Literal both = window("window_left_0_is_causal", 0, -1);
  both.options.is_causal = true;
  all->push_back(with(both, {1, 10, 100, 1000}, {0, 0, 0, 0}));
}

void add_masks(std::vector<Literal>* all) {
  Literal keys = uniform("mask_over_keys", 1, 1, kTens);
  keys.mask = tensor({1, 0, 1, 0}, {1, 1, 1, 4});
  all->push_back(with(keys, {50.5}, {kLn2}));
  // A mask is not a bias of +1, and a bias of ln 3 weighs 3: (3 * 1 + 100) / 4.
  keys.name = "mask_and_bias";
  keys.bias = tensor({kLn3, 0, 0, 0}, {1, 1, 1, 4});
  all->push_back(with(keys, {25.75}, {kLn4}));

  Literal rows = uniform("mask_over_queries_with_a_dead_row", 1, 2, kTens);
  rows.mask = tensor({1, 0}, {1, 1, 2, 1});
  all->push_back(with(rows, {277.75, 0}, {kLn4, -kInf}));
  rows.name = "dead_row_with_a_sink";
  rows.sinks = tensor({0.75}, {1});
  // ln(4 + e^0.75), and 277.75 * 4 / (4 + e^0.75).
  all->push_back(with(rows, {181.62497907188546}, {1.8110717829762484}));
  all->back().out.push_back(0);
  all->back().lse.push_back(0.75);
  rows.name = "sink_of_plus_infinity";
  rows.sinks = tensor({kInf}, {1});
  all->push_back(with(rows, {0, 0}, {kInf, kInf}));

  Literal batch = uniform("mask_over_batch", 2, 1, {1, 10});
  batch.mask = tensor({1, 0}, {2, 1, 1, 1});
  all->push_back(with(batch, {5.5, 0}, {kLn2, -kInf}));

  Literal bias = uniform("bias_over_batch_and_queries", 2, 2, {1, 10});
  bias.bias = tensor({0.5, 1, 1.5, 2}, {2, 1, 2, 1});
  all->push_back(with(bias, {5.5, 5.5, 5.5, 5.5}, {kLn2 + 0.5, kLn2 + 1, kLn2 + 1.5, kLn2 + 2}));

  Literal both = causal("mask_and_causal_both_apply", 1, 2, {1, 10}, Diagonal::kUnnamed);
  both.mask = tensor({0, 1, 1, 1}, {1, 1, 2, 2});
  all->push_back(with(both, {0, 5.5}, {-kInf, kLn2}));

  Literal heads = uniform("mask_over_heads", 1, 1, {1, 10});
  heads.q = repeated(1.0, 2, {1, 2, 1, 1});
  heads.mask = tensor({1, 0, 0, 1}, {1, 2, 1, 2});
  all->push_back(with(heads, {1, 10}, {0, 0}));
}

void add_not_finite(std::vector<Literal>* all) {
  Literal mask = uniform("nan_and_inf_behind_a_mask", 1, 1, {1, kNan, 100, -kInf});
  mask.k.numbers = {0, kNan, 0, kInf};
  mask.mask = tensor({1, 0, 1, 0}, {1, 1, 1, 4});
  all->push_back(with(mask, {50.5}, {kLn2}));

  Literal diagonal = causal("nan_behind_the_diagonal", 1, 2, {1, 10}, Diagonal::kUnnamed);
  diagonal.k.numbers = {0, kNan};
  all->push_back(with(diagonal, {1, kNan}, {0, kNan}));

  Literal value = causal("nan_in_v_reaches_its_rows", 1, 2, {1, kNan}, Diagonal::kUnnamed);
  all->push_back(with(value, {1, kNan}, {0, kLn2}));

  Literal lens = uniform("nan_past_the_length", 1, 1, {1, 10, kNan, kNan});
  lens.k.numbers = {0, 0, kNan, -kInf};
  lens.lens_kv = tensor({2}, {1});
  all->push_back(with(lens, {5.5}, {kLn2}));

  Literal bias = uniform("bias_of_minus_inf_is_a_mask", 1, 1, {1, kNan, 100, kInf});
  bias.k.numbers = {0, kNan, 0, -kInf};
  bias.bias = tensor({0, -kInf, 0, -kInf}, {1, 1, 1, 4});
  all->push_back(with(bias, {50.5}, {kLn2}));

  constexpr double kLowest = -3.4028234663852886e38;
  Literal lowest = uniform("bias_of_finfo_min_is_a_number", 1, 2, kTens);
  lowest.bias = tensor({kLowest, kLowest, kLowest, kLowest, 0, kLowest, 0, kLowest}, {1, 1, 2, 4});
  all->push_back(with(lowest, {277.75, 50.5}, {kLowest, kLn2}));

  Literal dead = uniform("bias_of_minus_inf_everywhere", 1, 1, {1, 10});
  dead.bias = tensor({-kInf}, {1, 1, 1, 1});
  all->push_back(with(dead, {0}, {-kInf}));
}

void add_lengths(std::vector<Literal>* all) {
  Literal lens = uniform("padding", 1, 2, kTens);
  lens.lens_q = tensor({1}, {1});
  lens.lens_kv = tensor({2}, {1});
  all->push_back(with(lens, {5.5, 0}, {kLn2, -kInf}));
  lens.name = "padding_with_a_sink";  // a padding row has no sink either
  lens.sinks = tensor({0.0}, {1});
  all->push_back(with(lens, {11.0 / 3.0, 0}, {kLn3, -kInf}));
  Literal none = uniform("length_0", 1, 1, {1, kNan});
  none.lens_kv = tensor({0}, {1});
  all->push_back(with(none, {0}, {-kInf}));

  // Keys (1, 10), 100 and 1000; the last query is behind the last sequence.
  Literal packed = uniform("packed", 1, 4, kTens);
  packed.starts_q = tensor({0, 1, 1, 3}, {4});
  packed.starts_kv = tensor({0, 2, 3, 4}, {4});
  all->push_back(with(packed, {5.5, 1000, 1000, 0}, {kLn2, 0, 0, -kInf}));
  packed.name = "packed_without_keys";
  packed.starts_q = tensor({0, 2, 4}, {3});
  packed.starts_kv = tensor({0, 0, 2}, {3});
  all->push_back(with(packed, {0, 0, 5.5, 5.5}, {-kInf, -kInf, kLn2, kLn2}));
  packed.name = "packed_causal_bottom_right";  // of each sequence: queries (2, 2), keys (1, 3)
  packed.starts_kv = tensor({0, 1, 4}, {3});
  packed.options.is_causal = true;
  packed.options.diagonal = Diagonal::kBottomRight;
  all->push_back(with(packed, {0, 1, 55, 370}, {-kInf, 0, kLn2, kLn3}));

  // Sequences of 3 keys and 1, in pages of 2: (100, 1000), 1 and 100.
  Literal pages = uniform("pages", 1, 1, kTens);
  pages.q = tensor({0, 0}, {2, 1, 1, 1});
  for (Values* view : {&pages.k, &pages.v}) view->shape = {2, 1, 2, 1};
  pages.pages = tensor({1, 0, 1, -1}, {2, 2});
  pages.lens_kv = tensor({3, 1}, {2});
  all->push_back(with(pages, {367, 100}, {kLn3, 0}));
  pages.name = "page_that_nobody_sees";  // the last query sees key 2 alone
  pages.v.numbers = {1, kNan, kNan, kNan};
  pages.pages = tensor({-1, 0, -1, -1}, {2, 2});
  pages.lens_kv = tensor({3, 0}, {2});
  pages.options.window_left = 0;
  pages.options.diagonal = Diagonal::kBottomRight;
  all->push_back(with(pages, {1, 0}, {0, -kInf}));
  Literal entries = uniform("cache_entries", 1, 1, kTens);
  for (Values* view : {&entries.k, &entries.v}) view->shape = {2, 1, 2, 1};
  entries.entries = tensor({1}, {1});
  all->push_back(with(entries, {550}, {kLn2}));

  // A row behind the first of the cache; the query stands at it.
  Literal append = uniform("append", 1, 1, {1, kNan, kNan});
  append.k_new = tensor({0}, {1, 1, 1, 1});
  append.v_new = tensor({10}, {1, 1, 1, 1});
  append.lens_kv = tensor({1}, {1});
  append.options.is_causal = true;
  append.options.diagonal = Diagonal::kBottomRight;
  all->push_back(with(append, {5.5}, {kLn2}));

  // Keys 2 and 3 of rows 0 to 3.
  Literal leftpad = uniform("cache_leftpad", 1, 1, {kNan, kNan, 100, 1000});
  leftpad.leftpad = tensor({2}, {1});
  leftpad.lens_kv = tensor({4}, {1});
  all->push_back(with(leftpad, {550}, {kLn2}));

  // All see keys 0 and 1; the first query key 2, the second key 3.
  Literal tree = uniform("tree_mask", 1, 2, kTens);
  tree.tree = tensor({1, 0, 0, 1}, {1, 2, 2});
  all->push_back(with(tree, {37, 337}, {kLn3, kLn3}));

  Literal segments = uniform("segments", 1, 3, kTens);
  segments.segments_q = tensor({1, 2, 3}, {1, 3});
  segments.segments_kv = tensor({1, 1, 2, 2}, {1, 4});
  all->push_back(with(segments, {5.5, 550, 0}, {kLn2, kLn2, -kInf}));
  segments.name = "segments_on_top_of_lengths";
  segments.lens_kv = tensor({3}, {1});
  all->push_back(with(segments, {5.5, 100, 0}, {kLn2, 0, -kInf}));

  Literal empty = uniform("no_keys", 1, 2, {});
  all->push_back(with(empty, {0, 0}, {-kInf, -kInf}));
  empty.name = "no_keys_but_a_sink";
  empty.sinks = tensor({2.0}, {1});
  all->push_back(with(empty, {0, 0}, {2, 2}));
  all->push_back(uniform("no_queries", 1, 0, kTens));
  all->push_back(uniform("no_batch", 0, 2, kTens));
}

void add_alibi(std::vector<Literal>* all) {
  // Scores (0, -0.5, -1) and (-0.5, 0, -0.5).
  Literal top = uniform("alibi_top_left", 1, 2, {1, 2, 4});
  top.alibi = tensor({0.5}, {1});
  top.options.diagonal = Diagonal::kTopLeft;
  all->push_back(with(top, {1.8661670553960412, 2.2740686190611967},
                      {0.6802696706417346, 0.7943767694176432}));
  // One query at the last key: (-1, -0.5, 0); no slope in the first sequence.
  Literal bottom = uniform("alibi_bottom_right_of_each_batch", 2, 1, {1, 2, 4});
  bottom.alibi = tensor({0.0, 0.5}, {2, 1});
  bottom.options.diagonal = Diagonal::kBottomRight;
  all->push_back(with(bottom, {7.0 / 3.0, 2.8266370588854604}, {kLn3, 0.6802696706417346}));
}

// Scores ln 3 and 0 give weights of 3/4 and 1/4, scores 0 and 0 the mean.
void add_descales(std::vector<Literal>* all) {
  Literal one;
  one.name = "descale_of_all";
  one.q = tensor({kLn3}, {1, 1, 1, 1});
  one.k = tensor({1, 0}, {1, 1, 2, 1});
  one.v = tensor({4, 8}, {1, 1, 2, 1});
  one.descale_q = tensor({2}, {1});
  one.descale_k = tensor({0.5}, {1});
  one.descale_v = tensor({0.5}, {1});
  one.options.softmax_scale = 1.0;
  all->push_back(with(one, {2.5}, {kLn4}));

  Literal of_v = one;
  of_v.name = "descale_of_v_alone";
  of_v.descale_q = of_v.descale_k = {};
  of_v.descale_v = tensor({10}, {1});
  all->push_back(with(of_v, {50}, {kLn4}));

  Literal heads;
  heads.name = "descale_of_each_kv_head";
  heads.q = repeated(kLn3, 8, {2, 4, 1, 1});
  heads.k = tensor({1, 0, 1, 0, 1, 0, 1, 0}, {2, 2, 2, 1});
  heads.v = tensor({4, 8, 4, 8, 4, 8, 4, 8}, {2, 2, 2, 1});
  heads.descale_k = tensor({0, 1, 1, 0}, {2, 2});
  heads.descale_v = tensor({1, 2, 0.5, 1}, {2, 2});
  heads.options.softmax_scale = 1.0;
  all->push_back(with(heads, {6, 6, 10, 10, 2.5, 2.5, 6, 6},
                      {kLn2, kLn2, kLn4, kLn4, kLn4, kLn4, kLn2, kLn2}));

  Literal negative = one;  // a negative scale turns the order of the scores over
  negative.name = "descale_with_a_negative_scale";
  negative.options.softmax_scale = -1.0;
  all->push_back(with(negative, {3.5}, {kLn4 - kLn3}));
}

void add_heads(std::vector<Literal>* all) {
  Literal gqa;
  gqa.name = "gqa_heads_share_their_groups_keys";
  gqa.q = repeated(1.0, 4, {1, 4, 1, 1});
  gqa.k = tensor({0.5, 2}, {1, 2, 1, 1});
  gqa.v = tensor({1, 10}, {1, 2, 1, 1});
  gqa.options.softmax_scale = 1.0;
  all->push_back(with(gqa, {1, 1, 10, 10}, {0.5, 0.5, 2, 2}));

  // Dot products 4 and -2 of head_dim 4; values of head_dim 2.
  Literal scale;
  scale.name = "scale_default";
  scale.q = repeated(1.0, 4, {1, 1, 1, 4});
  scale.k = tensor({1, 1, 1, 1, -0.5, -0.5, -0.5, -0.5}, {1, 1, 2, 4});
  scale.v = tensor({1, 10, 3, 30}, {1, 1, 2, 2});
  all->push_back(with(scale, {1.0948517463551335, 10.948517463551335}, {2.048587351573742}));
  scale.name = "scale_negative";
  scale.options.softmax_scale = -1.0;
  all->push_back(with(scale, {2.99505475368673, 29.9505475368673}, {2.0024756851377306}));
  scale.name = "scale_zero";
  scale.options.softmax_scale = 0.0;
  all->push_back(with(scale, {2, 20}, {kLn2}));
}

/// Values 2^j of 16 keys: the output, unscaled, is the row's kept keys as a binary number. Those
/// numbers come from a Philox4x32-7 written in Python, checked against Random123's known answers.
void add_dropout(std::vector<Literal>* all) {
  std::vector<double> powers;
  for (int j = 0; j < 16; ++j) powers.push_back(std::ldexp(1.0, j));
  Literal drop = uniform("dropout", 2, 2, {});
  drop.q = repeated(1.0, 8, {2, 2, 2, 1});
  drop.k = repeated(0.0, 32, {2, 1, 16, 1});
  drop.v = tensor(powers, {2, 1, 16, 1});
  drop.v.numbers.insert(drop.v.numbers.end(), powers.begin(), powers.end());
  drop.seed = 0x0123456789abcdef;
  drop.rng_offset = 0xfedcba9876543210;
  const std::vector<double> half = {19749, 51702, 6442, 60046, 31268, 21583, 51488, 28820};
  const std::vector<double> quarter = {19749, 52734, 47403, 61438, 64255, 54623, 55733, 32661};
  const double kLn16 = 2.772588722239781;
  const auto scaled = [](std::vector<double> bits, double factor) {
    for (double& x : bits) x *= factor;
    return bits;
  };
  drop.options.dropout_p = 0.5;  // threshold 32768: kept ones count twice
  all->push_back(with(drop, scaled(half, 2.0 / 16), std::vector<double>(8, kLn16)));
  drop.name = "dropout_of_a_quarter";
  drop.options.dropout_p = 0.25;  // threshold 49152
  all->push_back(with(drop, scaled(quarter, 4.0 / 3 / 16), std::vector<double>(8, kLn16)));

  // Rows count from where the diagonal puts them: queries 5 and 6 of a chunk; -1 is 2^32 - 1.
  Literal chunk = uniform("dropout_of_a_chunk", 1, 2, powers);
  chunk.q = repeated(1.0, 4, {1, 2, 2, 1});
  chunk.k = repeated(0.0, 16, {1, 1, 16, 1});
  chunk.seed = drop.seed;
  chunk.rng_offset = drop.rng_offset;
  chunk.options.dropout_p = 0.5;
  chunk.options.diagonal = Diagonal::kOffset;
  chunk.diagonal_offset = 5;
  chunk.options.window_right = 100;  // so that a diagonal may be named; it hides nothing
  all->push_back(with(chunk, {25107 / 8.0, 47975 / 8.0, 29819 / 8.0, 15093 / 8.0}, {}));
  chunk.name = "dropout_before_the_start";
  chunk.diagonal_offset = -1;
  all->push_back(with(chunk, {43434 / 8.0, 19749 / 8.0, 35221 / 8.0, 6442 / 8.0}, {}));
}

/// One sequence of `sq` queries over kTens, or more values.
Literal edited(std::string name, std::int64_t sq, const char* score,
               std::vector<double> values = {1, 10, 100}) {
  Literal l = uniform(std::move(name), 1, sq, std::move(values));
  l.options.score_function = Expression::parse(score).value();
  return l;
}

Literal masked(std::string name, std::int64_t sq, const char* mask, std::vector<double> values) {
  Literal l = uniform(std::move(name), 1, sq, std::move(values));
  l.options.mask_function = Expression::parse(mask).value();
  return l;
}

/// Scores are 0: a function of j ln 2 gives the keys weights of 2^j.
void add_score_functions(std::vector<Literal>* all) {
  const double kLn6 = 1.791759469228055, kLn7 = 1.9459101490553132;
  all->push_back(with(edited("score_function_of_the_key", 1, "score+0.6931471805599453*kv_idx"),
                      {421 / 7.0}, {kLn7}));
  // Weights (1, 1, 2) / 2: of -2, -1 and 0 the halves are -1, -1 and 0, rounded down.
  all->push_back(with(
      edited("score_function_of_a_floor_division", 1, "score+0.6931471805599453*((kv_idx-2)//2)"),
      {211 / 4.0}, {kLn2}));
  // Remainders of -2, -1, 0, 1 by 2: 0, 1, 0, 1.
  all->push_back(with(
      edited("score_function_of_a_remainder", 1, "score+0.6931471805599453*((kv_idx-2)%2)", kTens),
      {2121 / 6.0}, {kLn6}));
  all->push_back(with(edited("score_function_of_an_int", 1, "kv_idx"), {69.06141086120056},
                      {2.40760596444438}));
  all->push_back(with(edited("score_function_wraps_at_32_bits", 1,
                             "where(kv_idx*1073741824*4==0&kv_idx*1073741824*2<0,score,-inf)"),
                      {10}, {0.0}));
  all->push_back(with(edited("score_function_masks", 2, "where(kv_idx==q_idx,-inf,score)"),
                      {55, 50.5}, {kLn2, kLn2}));
  all->push_back(
      with(edited("score_function_is_minus_inf_everywhere", 1, "score-inf"), {0}, {-kInf}));
  all->push_back(with(edited("score_function_is_nan", 2, "where(q_idx==1,0.0/0.0,score)"),
                      {37, kNan}, {kLn3, kNan}));
  all->push_back(with(edited("nan_behind_a_score_function", 1, "where(kv_idx==1,-inf,score)"),
                      {50.5}, {kLn2}));
  all->back().k.numbers[1] = all->back().v.numbers[1] = kNan;
  all->push_back(with(edited("score_function_of_its_score", 1, "where(score<1.0,-inf,0.0*score)"),
                      {55}, {kLn2}));
  all->back().k.numbers = {0.5, 1.0, 2.0};
  all->back().v.numbers = {1, 10, 100};
  // 2 tanh 1 + 1 and 2 tanh 2 beside a sink of 0.5.
  Literal order = edits("score_function_between_softcap_and_bias");
  order.options.score_function = Expression::parse("2.0*score").value();
  all->push_back(with(order, {1.2490053926550466}, {3.044195321521885}));
  all->push_back(edited("scores_edited_by_a_function", 1, "where(kv_idx==1,-inf,score+1.5)"));
  all->back().options.scores_kind = ScoresKind::kEdited;
  all->back().scores = {1.5, -kInf, 1.5};
  all->back() = with(all->back(), {50.5}, {kLn2 + 1.5});
}

void add_captured(std::vector<Literal>* all) {
  const double kLn6 = 1.791759469228055;
  all->push_back(with(edited("captured_reals", 1, "score+r0[kv_idx]"), {321 / 6.0}, {kLn6}));
  all->back().reals = tensor({0.0, kLn2, kLn3}, {3});
  all->push_back(
      with(edited("captured_minus_inf_is_a_mask", 1, "score+r0[kv_idx]"), {50.5}, {kLn2}));
  all->back().reals = tensor({0.0, -kInf, 0.0}, {3});
  // Of head h and distance q - k, -1 to 1: head 0 adds ln 2 to the next key, head 1 to its own.
  Literal table = edited("captured_by_head_and_distance", 2, "score+r0[h,q_idx-kv_idx+1]", {1, 10});
  table.q = repeated(1.0, 4, {1, 2, 2, 1});
  table.reals = tensor({kLn2, 0, 0, 0, kLn2, 0}, {2, 3});
  all->push_back(with(table, {7, 5.5, 4, 7}, {kLn3, kLn2, kLn3, kLn3}));
  all->push_back(with(edited("captured_through_indices", 1, "score+r0[i1[kv_idx]]"), {111 / 3.0},
                      {kLn3 + kLn2}));
  all->back().reals = tensor({-5.0, kLn2}, {2});
  all->back().ints = tensor({1, 1, 1}, {3});
}

void add_mask_functions(std::vector<Literal>* all) {
  all->push_back(with(masked("mask_function", 2, "kv_idx!=q_idx+1", kTens),
                      {1101 / 3.0, 1011 / 3.0}, {kLn3, kLn3}));
  all->push_back(with(masked("mask_function_of_documents", 2, "i1[q_idx]==i1[kv_idx]", kTens),
                      {5.5, 5.5}, {kLn2, kLn2}));
  all->back().ints = tensor({3, 3, 7, 7}, {4});
  all->push_back(with(masked("mask_function_hides_all", 1, "kv_idx>9", kTens), {0}, {-kInf}));
  all->push_back(with(masked("mask_function_of_positions", 2, "kv_idx<=q_pos&kv_idx%2==0", kTens),
                      {50.5, 50.5}, {kLn2, kLn2}));
  all->back().options.diagonal = Diagonal::kBottomRight;
  all->push_back(
      with(masked("nan_behind_a_mask_function", 1, "kv_idx!=1", {1, 10, 100}), {50.5}, {kLn2}));
  all->back().k.numbers[1] = all->back().v.numbers[1] = kNan;
  Literal lengths = uniform("mask_function_of_lengths", 2, 2, kTens);
  lengths.options.mask_function = Expression::parse("kv_idx+b+1==kv_len-q_len+q_idx").value();
  lengths.lens_q = tensor({2, 1}, {2});
  lengths.lens_kv = tensor({4, 3}, {2});
  all->push_back(with(lengths, {10, 100, 1, 0}, {0, 0, 0, -kInf}));
  // One block of 2 x 2 is false, one true, and one of 2 x 1 either.
  Literal blocks =
      masked("block_mask", 2, "kv_idx>=2&(kv_idx<4|q_idx==1)", {1, 10, 100, 1000, 1e4});
  blocks.blocks = tensor({0, 2, 1}, {1, 1, 1, 3});
  blocks.options.block_size_q = blocks.options.block_size_kv = 2;
  all->push_back(with(blocks, {550, 3700}, {kLn2, kLn3}));
}

std::vector<Literal> make_literals() {
  std::vector<Literal> all;
  add_orders(&all);
  add_diagonals(&all);
  add_windows(&all);
  add_masks(&all);
  add_not_finite(&all);
  add_lengths(&all);
  add_alibi(&all);
  add_descales(&all);
  add_heads(&all);
  add_dropout(&all);
  add_score_functions(&all);
  add_captured(&all);
  add_mask_functions(&all);
  return all;
}

}  // namespace

const std::vector<Literal>& literals() {
  static const std::vector<Literal> all = make_literals();
  return all;
}

}  // namespace regard::test
