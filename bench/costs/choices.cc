#include "bench/costs/choices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "conformance/problem.h"
#include "regard/attention.h"

namespace regard::bench {
namespace {

/// The medians of calls that take turns, in the order of the ways.
void measure_ways(const std::vector<std::function<Status()>>& calls, int rounds, Choice* choice) {
  Benchmark result;
  for (const Way& way : choice->ways) {
    BenchmarkRow row;
    row.name = way.name;
    result.rows.push_back(std::move(row));
  }
  BenchmarkOptions options;
  options.rounds = rounds;
  measure(&result, calls, options);
  for (std::size_t i = 0; i < choice->ways.size(); ++i) {
    if (!result.rows[i].reason.empty()) choice->error = result.rows[i].reason;
    choice->ways[i].seconds = result.rows[i].quantile(0.5);
  }
}

std::string word(const char* name, std::int64_t n) { return name + std::to_string(n) + " "; }

/// [batch, seqlen]: lengths that spread evenly round their mean.
std::vector<std::uint8_t> mask_of(std::int64_t batch, std::int64_t seqlen, double padding,
                                  bool is_left) {
  const double extent = static_cast<double>(seqlen), mean = (1.0 - padding) * extent;
  const double spread = std::max(0.0, std::min(mean - 1.0, extent - mean));
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(batch * seqlen));
  for (std::int64_t b = 0; b < batch; ++b) {
    const double at = (static_cast<double>(b) + 0.5) / static_cast<double>(batch) * 2.0 - 1.0;
    const auto length = std::clamp<std::int64_t>(std::llround(mean + spread * at), 1, seqlen);
    for (std::int64_t s = 0; s < length; ++s) {
      const std::int64_t position = is_left ? seqlen - 1 - s : s;
      mask[static_cast<std::size_t>(b * seqlen + position)] = 1;
    }
  }
  return mask;
}

TensorView view_of(std::vector<std::uint8_t>* mask, std::int64_t batch, std::int64_t seqlen) {
  TensorView view;
  view.data = mask->data();
  view.dtype = Dtype::kU8;
  view.rank = 2;
  view.shape[0] = batch;
  view.shape[1] = seqlen;
  view.strides[0] = seqlen;
  view.strides[1] = 1;
  return view;
}

double seconds_of(const std::vector<PathPrediction>& paths, PaddingPath path) {
  for (const PathPrediction& each : paths) {
    if (each.path == path) return each.seconds;
  }
  return -1.0;
}

}  // namespace

Choice measure_padded(Context& context, Draw* draw, int rounds) {
  constexpr int kHeads[] = {2, 4, 8, 12}, kHeadDims[] = {32, 64, 64, 128};
  constexpr const char* kTypes[] = {"f32", "f32", "bf16", "f16"};
  const std::int64_t batch = draw->logarithmic(1, 32), heads = draw->one_of(kHeads);
  std::int64_t seqlen = draw->logarithmic(16, 1024);
  while (batch * heads * seqlen * seqlen > (std::int64_t{1} << 25)) seqlen /= 2;
  const bool is_left = draw->whole(0, 1) == 0;
  const double padding = draw->whole(0, 5) == 0 ? 0.0 : 0.9 * draw->share();
  const std::string words = word("b", batch) + word("hq", heads) + word("sq", seqlen) +
                            word("d", draw->one_of(kHeadDims)) + draw->one_of(kTypes) +
                            (draw->whole(0, 1) == 0 ? " layout=bshd" : "");
  Choice choice;
  choice.words = words + (is_left ? ", padded on the left by " : ", padded on the right by ") +
                 std::to_string(std::lround(100.0 * padding)) + " %";
  const conformance::Problem problem =
      conformance::make_problem(parse_case(words).value(), {conformance::Guard::kNone, true});
  std::vector<std::uint8_t> mask = mask_of(batch, seqlen, padding, is_left);
  PaddedSequences sequences;
  sequences.q = sequences.kv = Lengths::from_mask(view_of(&mask, batch, seqlen)).value();
  const AttentionRequest& request = problem.request();
  const Expected<Selection> explained = explain_padded(context, request, sequences);
  if (!explained) {
    choice.error = explained.status().message();
    return choice;
  }
  choice.chosen = fastest_path(explained->paths) == PaddingPath::kPacked ? "packed" : "padded";
  const PaddingPath padded = is_left ? PaddingPath::kMask : PaddingPath::kLengths;
  choice.ways = {{"padded", seconds_of(explained->paths, padded)},
                 {"packed", seconds_of(explained->paths, PaddingPath::kPacked)}};
  std::vector<std::function<Status()>> calls;
  for (const PaddingPolicy policy : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
    PaddedSequences own = sequences;
    own.policy = policy;
    calls.emplace_back(
        [&context, &request, own] { return attention_padded(context, request, own); });
  }
  measure_ways(calls, rounds, &choice);
  return choice;
}

Choice measure_formats(Context& context, const std::string& words, int rounds) {
  Choice choice;
  choice.words = words;
  const Selection selection = explain(context, parse_case(words).value().params);
  double least = 0.0;
  std::deque<conformance::Problem> problems;
  std::vector<AttentionParams> params;
  std::vector<std::function<Status()>> calls;
  Policy only;
  only.only = {{selection.chosen}};
  for (const CacheFormatPrediction& format : selection.cache_formats) {
    std::string more = std::string(" kv=") + to_string(format.dtype);
    if (is_quantised(format.dtype) && format.dtype != Dtype::kU4) more += " scales=token";
    const Expected<Case> source = parse_case(words + more);
    if (!source) {
      choice.error = source.status().message();
      return choice;
    }
    params.push_back(source->params);
    problems.push_back(conformance::make_problem(*source, {conformance::Guard::kNone}));
    const AttentionRequest& request = problems.back().request();
    calls.emplace_back([&context, &request, only] { return attention(context, request, only); });
    choice.ways.push_back({to_string(format.dtype), format.seconds});
    if (choice.chosen.empty() || format.seconds < least) {
      choice.chosen = to_string(format.dtype);
      least = format.seconds;
    }
  }
  if (choice.ways.empty()) {
    choice.error = "has no predictions of formats";
    return choice;
  }
  measure_ways(calls, rounds, &choice);
  for (std::size_t i = 0; i < params.size(); ++i) {
    choice.times.push_back({selection.chosen.id, params[i], false, choice.ways[i].seconds});
  }
  return choice;
}

}  // namespace regard::bench
