"""The faults of mutations.py in keys and values of 8 bits with scales."""

from mutation import Mutation

SCALES = ("property", "*Scales.*")
DATA = ("core", "Scales*")

SCALE_MUTATIONS = [
    Mutation("converted rows lose their scales", "src/cpu/kv_tiles.h",
             "static_cast<T>(*scale_at(x, tile.begin + j))", "T(1)", (SCALES,)),
    Mutation("decode rows lose the scales of keys", "src/cpu/decode/decode_tiles.inl",
             "if (self->keys_.scales.first != nullptr) {", "if (false) {", (SCALES,)),
    Mutation("decode rows lose the scales of values", "src/cpu/decode/decode_tiles.inl",
             "if (self->values_.scales.first != nullptr) {", "if (false) {", (SCALES,)),
    Mutation("scales of pages lie as in a batch", "src/cpu/kv_operand.h",
             "pages.stride = x.scales.page_stride;", "pages.stride = 0;", (SCALES,)),
    Mutation("given scales are written", "src/cpu/append.cc",
             "if (quantised.brings_scale) {", "if (quantised.scale != nullptr) {", (SCALES,)),
    Mutation("a scale of 0 passes", "src/core/describe/check_data.cc",
             "return code - 1u >= kCodes;", "return code > kCodes;", (DATA,)),
    Mutation("scales of entries that are not there are read", "src/core/describe/check_data.cc",
             "entry < entries ? entry : -1", "entry", (DATA,)),
    Mutation("rows that are quantised may be NaN", "src/core/describe/check_data.cc",
             "if (!has_scales(buffers, spec.like)) return {};", "return {};", (DATA,)),
]
