"""The faults of mutations.py in keys and values of 8 bits with scales."""

from mutation import Mutation

SCALES = ("property", "*Scales.*")
DATA = ("core", "Scales*")

SCALE_MUTATIONS = [
    Mutation("converted rows lose their scales", "src/cpu/kv_tiles.h",
             "static_cast<T>(*scale_at(x, tile.begin + j))", "T(1)", (SCALES,)),
    Mutation("decode rows lose the scales of keys", "src/cpu/decode/decode_tiles.inl",
             "if (has_row_scales(self->keys_)) {", "if (false) {", (SCALES,)),
    Mutation("decode rows lose the scales of values", "src/cpu/decode/decode_tiles.inl",
             "if (has_row_scales(self->values_)) {", "if (false) {", (SCALES,)),
    Mutation("scales of pages lie as in a batch", "src/cpu/kv_operand.h",
             "pages.stride = x.scales.page_stride;\n    at =", "pages.stride = 0;\n    at =", (SCALES,)),
    Mutation("given scales are written", "src/cpu/append.cc",
             "if (quantised.brings_scale) {", "if (quantised.scale != nullptr) {", (SCALES,)),
    Mutation("a scale of 0 passes", "src/core/describe/check_data.cc",
             "return code - 1u >= kPositiveCodes;",
             "return code > kPositiveCodes;", (DATA,)),
    Mutation("scales of entries that are not there are read", "src/core/describe/check_data.cc",
             "entry < entries ? entry : -1", "entry", (DATA,)),
    Mutation("rows that are quantised may be NaN", "src/core/describe/check_data.cc",
             "if (!has_scales(buffers, spec.like)) return {};", "return {};", (DATA,)),
    Mutation("codes of 4 bits begin with the high half", "src/problem/element.h",
             "(pair >> (x % 2 * 4)) & 15u", "(pair >> (4 - x % 2 * 4)) & 15u", (SCALES,)),
    Mutation("the minimum of the group before", "src/cpu/decode/decode_tiles.inl",
             "V::set(static_cast<T>(numbers[1]))", "V::set(static_cast<T>(numbers[0]))", (SCALES,)),
    Mutation("minima of copied rows stay behind", "src/cpu/decode/decode_tiles.inl",
             "return {first, bytes, 0};", "return {first, 0, 0};", (SCALES,)),
    Mutation("groups of 16 codes are quantised", "src/cpu/append.cc",
             "range / kMaxU4", "range / 16.0f", (SCALES,)),
    Mutation("an infinite minimum passes", "src/core/describe/check_data.cc",
             "(code & 0x7fffffffu) > kPositiveCodes", "(code & 0x7fffffffu) > kPositiveCodes + 1", (DATA,)),
    Mutation("a Hadamard matrix that is not orthonormal", "src/cpu/append.cc",
             "1.0 / std::sqrt(static_cast<double>(dim))", "1.0 / static_cast<double>(dim)",
             (("property", "*Hadamard.*"),)),
    Mutation("queries are not mixed", "src/cpu/append.cc",
             "return transform(p, p.q, position, p.num_heads_q, copy_of, scratch);",
             "if (p.rotary_cos.present) return transform(p, p.q, position, p.num_heads_q, copy_of, scratch);",
             (("property", "*Hadamard.*"),)),
]
