"""The faults of mutations.py in gradients of 8-bit floats."""

from mutation import Mutation

F8 = ("conformance", "*EightBit*:*RandomGradCases*")
PARAMS = ("unit", "Canonicalize.*:FieldList.*")

FP8_MUTATIONS = [
    Mutation("d_q without the descale of k", "src/cpu/backward/tile.inl",
             "g.problem.softmax_scale * descale_of(g.problem.descale_k, t.s.b, t.head_kv);",
             "g.problem.softmax_scale;", (F8,)),
    Mutation("dP without the descale of v", "src/cpu/backward/tile.inl",
             "V::set(keep_scale<T>(p) * g.rows.descale_v);", "V::set(keep_scale<T>(p));", (F8,)),
    Mutation("d_k without the descale of q", "src/cpu/backward/keys.inl",
             "p.softmax_scale * descale_of(p.descale_q, t.s.b, t.head_kv);", "p.softmax_scale;", (F8,)),
    Mutation("d_v without the descale of d_out", "src/cpu/backward/keys.inl",
             "keep_scale<T>(p) * descale_of(g.descale_d_out, t.s.b, t.head_kv);", "keep_scale<T>(p);",
             (F8,)),
    Mutation("d_sinks without the descale of d_out", "src/cpu/backward/bias.inl",
             "delta *= descale;", "", (F8,)),
    Mutation("delta of an output of 8 bits", "src/cpu/backward/tile.inl",
             "if (is_8_bit_float(out)) return true;", "", (F8,)),
    Mutation("amax of one key a tile", "src/cpu/backward/keys.inl",
             "for (std::int64_t x = 0; x < size * kColumns; ++x) {",
             "for (std::int64_t x = 0; x < kColumns; ++x) {", (F8,)),
    Mutation("pairs of bf16 with descales", "src/cpu/backward/run.cc",
             "p.dtype_out == Dtype::kBf16 && !p.features.has(Feature::kDescales);",
             "p.dtype_out == Dtype::kBf16;", (F8,)),
    Mutation("types of gradients without a backward", "src/core/describe/canonical.cc",
             "p.dtype_d_out = p.dtype_gradients = Dtype::kF32;", "", (PARAMS,)),
]
