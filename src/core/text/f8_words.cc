#include "core/text/f8_words.h"

#include "base/message.h"

namespace regard {
namespace {

bool has_f8_gradients(const AttentionParams& p) {
  return is_f8(p.dtype_q) && p.features.has(Feature::kNeedsGrad);
}

/// False where the value is no layout of blocks.
bool parse_scale_layout(std::string_view value, Case* c) {
  for (const ScaleLayout layout :
       {ScaleLayout::k1x32, ScaleLayout::k1x128, ScaleLayout::k128x128}) {
    if (value != to_string(layout)) continue;
    c->params.features = with_scale_layout(c->params.features, layout);
    return true;
  }
  return false;
}

}  // namespace

Dtype dtype_of_d_out(const AttentionParams& p) {
  return has_f8_gradients(p) ? p.dtype_out : Dtype::kF32;
}
Dtype dtype_of_gradients(const AttentionParams& p) {
  return has_f8_gradients(p) ? default_dtype_out(p.dtype_q) : Dtype::kF32;
}
bool print_recipe(const Case& c, std::string* out) {
  append(*out, to_string(c.params.fp8_recipe));
  return c.params.fp8_recipe != Fp8Recipe::kNone;
}
bool parse_recipe(std::string_view value, Case* c) {
  for (const Fp8Recipe recipe :
       {Fp8Recipe::kDelayed, Fp8Recipe::kCurrent, Fp8Recipe::kMxfp8, Fp8Recipe::kBlock}) {
    if (value != to_string(recipe)) continue;
    c->params.fp8_recipe = recipe;
    return true;
  }
  return false;
}

bool print_descales(const Case& c, std::string* out) {
  append(*out, c.params.features.has(Feature::kDescalesPerHead) ? "head" : "all");
  return c.params.features.has(Feature::kDescales);
}
bool parse_descales(std::string_view value, Case* c) {
  c->params.features.set(Feature::kDescales);
  c->params.features.set(Feature::kDescalesPerHead, value == "head");
  return value.empty() || value == "all" || value == "head";
}

bool print_scales(const Case& c, std::string* out) {
  const ScaleLayout layout = scale_layout_of(c.params.features);
  append(*out, layout != ScaleLayout::kRows                      ? to_string(layout)
               : c.params.features.has(Feature::kScalesPerToken) ? "token"
                                                                 : "all");
  return c.params.features.has(Feature::kScales);
}
bool parse_scales(std::string_view value, Case* c) {
  c->params.features.set(Feature::kScales);
  if (parse_scale_layout(value, c)) return true;
  c->params.features.set(Feature::kScalesPerToken, value != "all");
  return value.empty() || value == "token" || value == "all";
}

bool print_scales_q(const Case& c, std::string* out) {
  const ScaleLayout layout = scale_layout_of(c.params.features);
  append(*out, layout != ScaleLayout::kRows ? to_string(layout) : "token");
  return c.params.features.has(Feature::kScalesQ);
}
bool parse_scales_q(std::string_view value, Case* c) {
  c->params.features.set(Feature::kScalesQ);
  return parse_scale_layout(value, c) || value.empty() || value == "token";
}

}  // namespace regard
