#include "tools/regard/run_input.h"

#include <fmt/format.h>

#include <utility>

#include "regard/tensors.h"
#include "tools/regard/output.h"

namespace regard::cli {
namespace {

using safetensors::quote;

Status invalid_run(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[run] " + message);
}

/// True when the last word `layout=...` of `words` is layout=bshd: files have no strides, so the
/// word states in which order q, k and v are stored.
bool is_bshd(const std::string& words) {
  const std::size_t at = words.rfind("layout=");
  return at != std::string::npos && words.compare(at, 11, "layout=bshd") == 0;
}

/// Every input that a request may hold; what no backend claims is refused with reasons, not
/// ignored.
Status bind_tensors(RunInput& input) {
  const safetensors::Contents& contents = input.file.contents();
  for (const TensorSpec& spec : kTensors) {
    if (spec.forward != TensorRole::kIn) continue;
    const safetensors::TensorEntry* entry = contents.find(spec.name);
    if (entry == nullptr) {
      if (!spec.required) continue;
      return invalid_run(
          fmt::format("the file has no tensor '{}', expected q, k and v", spec.name));
    }
    Expected<TensorView> view = safetensors::view_of(*entry);
    if (!view) return view.status();
    const bool has_rows = spec.layout != nullptr;
    if (has_rows && view->rank != kMaxRank) {
      return invalid_run(fmt::format("tensor '{}' is {}, expected rank 4: [B,{}]", spec.name,
                                     to_string(*view), input.bshd ? "S,H,D" : "H,S,D"));
    }
    input.request.*spec.buffer = has_rows && input.bshd ? exchange_heads_and_rows(*view) : *view;
  }
  return {};
}

AttentionOptions options_of(const AttentionParams& params) {
  AttentionOptions options;
  options.is_causal = params.window_right == 0;
  options.window_left = params.window_left;
  options.window_right = params.window_right;
  options.diagonal = params.diagonal;
  options.softmax_scale = params.softmax_scale;
  options.softcap = params.softcap;
  options.dropout_p = params.dropout_p;
  options.scores_kind = params.scores_kind;
  options.needs_grad = params.features.has(Feature::kNeedsGrad);
  options.d_lse = params.features.has(Feature::kDLse);
  options.delta = params.features.has(Feature::kDelta);
  if (options.needs_grad && is_f8(params.dtype_q)) {
    options.dtype_d_out = params.dtype_d_out;
    options.dtype_gradients = params.dtype_gradients;
  }
  options.fp8_recipe = params.fp8_recipe;
  options.scale_layout = scale_layout_of(params.features);
  options.allow_future_scales = params.features.has(Feature::kFutureScales);
  options.quantize_probs = params.features.has(Feature::kQuantizedProbs);
  return options;
}

/// What follows from the tensors alone. A diagonal that they need (ALiBi measures from it) is left
/// for the options to name.
Expected<AttentionParams> params_of_tensors(const RunInput& input) {
  Expected<RunOutputs> outputs = input.make_outputs();
  if (!outputs) return outputs.status();
  AttentionRequest request = input.with(*outputs);
  const bool offsets = request.diagonal_offsets.present();
  if (offsets) request.options.diagonal = Diagonal::kOffset;
  if (!offsets && request.alibi_slopes.present()) request.options.diagonal = Diagonal::kTopLeft;
  Expected<AttentionParams> params = describe(request);
  if (params && !offsets) params->diagonal = Diagonal::kUnnamed;
  return params;
}

Expected<Case> apply_words(const Case& base, const std::string& words, const char* source) {
  Expected<Case> changed = parse_case(words, base);
  if (changed) return changed;
  return Status(changed.status().code(),
                fmt::format("{} (from {})", changed.status().message(), source));
}

/// What `words` states and `tensors` do not, by name; empty where they agree.
std::string feature_difference(FeatureSet words, FeatureSet tensors) {
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (words.has(feature) == tensors.has(feature)) continue;
    return fmt::format("the options {} {}, the file's tensors {}",
                       words.has(feature) ? "ask for" : "leave out", to_string(feature),
                       words.has(feature) ? "do not" : "do");
  }
  return {};
}

/// Sizes, dtypes, layouts and which tensors there are come from the file: words that differ
/// would be dropped silently, so they are errors.
Status check_words(const Case& words, const AttentionParams& tensors) {
  AttentionParams said = words.params;
  said.features.set(Feature::kLse);  // always written
  const std::string difference = feature_difference(said.features, tensors.features);
  if (!difference.empty()) return invalid_run(difference);
  for (const TensorLayout& layout : kTensorLayouts) {  // of the mapping, not a choice
    said.*layout.align_log2 = tensors.*layout.align_log2;
  }
  const Json a = Json::parse(to_json(said));
  const Json b = Json::parse(to_json(tensors));
  for (const auto& [name, value] : a.items()) {
    if (value == b.at(name)) continue;
    return invalid_run(fmt::format("an option says {} {}, the file's tensors {}", name,
                                   value.dump(), b.at(name).dump()));
  }
  const DataSpec& data = words.data;
  if (data.kind == DataKind::kNormal && !data.poison && data.seqlens_q.empty() &&
      data.seqlens_kv.empty()) {
    return {};
  }
  return invalid_run(
      "an option says what tensors hold (data, poison, lens_q or lens_kv), but that is "
      "the file's");
}

}  // namespace

Expected<RunOutputs> RunInput::make_outputs() const {
  const TensorView& q = request.q;
  const TensorView& v = request.v;
  const bool f64 = q.dtype == Dtype::kF64;
  const Dtype stats = f64 ? Dtype::kF64 : Dtype::kF32;
  std::vector<std::int64_t> out_shape = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  if (bshd) std::swap(out_shape[1], out_shape[2]);
  RunOutputs outputs;
  Expected<OwnedTensor> out = OwnedTensor::make(c.params.dtype_out, std::move(out_shape), "out");
  if (!out) return out.status();
  outputs.out = *std::move(out);
  Expected<OwnedTensor> lse = OwnedTensor::make(stats, {q.shape[0], q.shape[1], q.shape[2]}, "lse");
  if (!lse) return lse.status();
  outputs.lse = *std::move(lse);
  if (grad) {
    Expected<OwnedTensor> saved =
        OwnedTensor::make(stats, {q.shape[0], q.shape[1], q.shape[2], 2}, "saved_stats");
    if (!saved) return saved.status();
    outputs.saved = *std::move(saved);
  }
  if (c.params.scores_kind == ScoresKind::kNone) return outputs;
  Expected<OwnedTensor> scores = OwnedTensor::make(
      stats, {q.shape[0], q.shape[1], q.shape[2], request.k.shape[2]}, "scores_out");
  if (!scores) return scores.status();
  outputs.scores = *std::move(scores);
  return outputs;
}

AttentionRequest RunInput::with(const RunOutputs& outputs) const {
  AttentionRequest out = request;
  const TensorView view = outputs.out.view();
  out.out = bshd ? exchange_heads_and_rows(view) : view;
  out.lse = outputs.lse.view();
  if (!outputs.saved.shape.empty()) out.saved_stats = outputs.saved.view();
  if (!outputs.scores.shape.empty()) out.scores_out = outputs.scores.view();
  return out;
}

Expected<RunInput> load_input(const std::string& path, const std::string& words, bool grad) {
  Expected<safetensors::MappedFile> file = safetensors::MappedFile::open(path);
  if (!file) return file.status();
  const safetensors::Metadata& metadata = file->contents().metadata;
  const auto found = metadata.find("regard.options");
  const std::string options = found == metadata.end() ? std::string() : found->second;

  RunInput input{*std::move(file), {}, {}, is_bshd(options + " " + words), grad};
  if (Status status = bind_tensors(input); !status) return status;
  input.c.params.dtype_out = default_dtype_out(input.request.q.dtype);
  Expected<AttentionParams> params = params_of_tensors(input);
  if (!params) return params.status();
  Case base;
  base.params = *params;
  base.params.features.set(Feature::kNeedsGrad, grad);
  const bool d_lse = input.file.contents().find("d_lse") != nullptr;
  base.params.features.set(Feature::kDLse, grad && d_lse);

  Expected<Case> stated = apply_words(base, options, "the file's regard.options");
  if (!stated) return stated.status();
  Expected<Case> changed = apply_words(*stated, words, "--option");
  if (!changed) return changed.status();
  input.c = *std::move(changed);
  input.request.options = options_of(input.c.params);
  input.request.diagonal_offset = input.c.data.diagonal_offset;
  input.request.rng_seed = input.c.data.seed;
  input.request.dropout_origin = input.c.data.dropout_origin;
  Expected<RunOutputs> outputs = input.make_outputs();
  if (!outputs) return outputs.status();
  Expected<AttentionParams> whole = describe(input.with(*outputs));
  if (!whole) return whole.status();
  if (Status status = check_words(input.c, *whole); !status) return status;
  if (grad && !whole->features.has(Feature::kNeedsGrad)) {
    return invalid_run("--option grad=0 and --grad contradict each other; remove one");
  }
  input.c.params = *whole;
  return input;
}

}  // namespace regard::cli
