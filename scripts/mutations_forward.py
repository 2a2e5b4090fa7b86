"""The faults of mutations.py in the passes over a tile's scores, and in outputs that begin with a tile."""

from mutation import Mutation

CONFORMANCE = ("conformance", "*")
KERNELS = ("conformance", "All/Cases.*:All/Execute.*")

FORWARD_MUTATIONS = [
    Mutation("bias of -inf added, not selected", "src/cpu/forward/edit_scores.h",
             "V::select(x == minus_infinity<V>(), x, score * scales + x);",
             "score * scales + x;", (KERNELS, CONFORMANCE)),
    Mutation("a bias of -inf hides nothing", "src/cpu/forward/edit_scores.h",
             "hides = hides || least[lane] == static_cast<T>(-__builtin_inf());",
             "hides = false;", (KERNELS, CONFORMANCE)),
    Mutation("the first tile adds to what was there", "src/cpu/forward/tiled_forward.inl",
             "Tiles::kStartsOut && !row_block.has_out ? nullptr : rescale;", "rescale;",
             (KERNELS, CONFORMANCE)),
    Mutation("a vector's keys end with its first row's", "src/cpu/forward/tiled_forward.inl",
             "keys_in_tile(row_block, (v + 1) * V::kLanes - 1, visible).hi;",
             "keys_in_tile(row_block, v * V::kLanes, visible).hi;", (KERNELS, CONFORMANCE)),
    Mutation("the last stage of a product left out", "src/cpu/simd/product.h",
             "} else if constexpr (kAt < 2 * kVectors) {", "} else if constexpr (kAt < 2 * kVectors - 1) {",
             (KERNELS, CONFORMANCE)),
    Mutation("scores of a range not scaled beside sinks", "src/cpu/forward/tiled_forward.inl",
             "if (p.prescale_scores) scale_keys<V>", "if (p.negates_scores) scale_keys<V>",
             (KERNELS, CONFORMANCE)),
    Mutation("row blocks without a tile keep what was there", "src/cpu/forward/tiled_forward.inl",
             "if (!row_block.has_out) Tiles::Out::clear", "if (false) Tiles::Out::clear",
             (KERNELS, CONFORMANCE)),
    Mutation("output rows of a tile not rescaled", "src/cpu/forward/output_rows.h",
             "V::set(to.rescale[w + i])", "V::set(1)", (KERNELS, CONFORMANCE)),
    Mutation("hidden values added to output rows", "src/cpu/forward/output_rows.h",
             "Term::add_visible(sum[i][v], value, prob);", "Term::add(sum[i][v], value, prob);",
             (KERNELS, CONFORMANCE)),
    Mutation("output rows written by a tile before their last", "src/cpu/forward/tiled_forward.inl",
             "is_last = tile.begin + tile.size >= reach(row_block).hi;", "is_last = tile.begin >= 0;",
             (KERNELS, CONFORMANCE)),
    Mutation("output rows that no tile writes left out", "src/cpu/forward/tiled_forward.inl",
             "if (!row_block.is_written) write_output_rows", "if (false) write_output_rows",
             (KERNELS, CONFORMANCE)),
    Mutation("output rows multiply their first row's keys", "src/cpu/forward/tiled_forward.inl",
             "static_cast<int>(rows.end) - 1, visible).hi;", "static_cast<int>(rows.begin), visible).hi;",
             (KERNELS, CONFORMANCE)),
]
