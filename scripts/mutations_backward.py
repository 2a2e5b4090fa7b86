"""The faults of mutations.py in the backward's one pass over a head's blocks."""

from mutation import Mutation

GRADIENTS = ("conformance", "*GradCases*")
MORE_GRADIENTS = ("property", "*Nan.*:*Backward.*")
BLOCKS = ("property", "*Backward.*")
GRID = ("unit", "TaskGrid.*")

BACKWARD_MUTATIONS = [
    Mutation("gradients: blocks of rows are uneven", "src/cpu/backward/args.h",
             "divided(divided(rows, row_blocks), width) * width;", "most;", (GRID,)),
    Mutation("gradients: rows that see no key are not cleared", "src/cpu/backward/one_pass.inl",
             "    clear(own);\n", "", (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: rows past the length are not cleared, one pass",
             "src/cpu/backward/one_pass.inl",
             "clear({semantics::clamp(head.rows(), all.lo, all.hi), all.hi});", "clear({all.hi, all.hi});",
             (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: group not summed, one pass", "src/cpu/backward/one_pass.inl",
             "std::int64_t rows() const { return s.len_q * problem().group_size; }",
             "std::int64_t rows() const { return s.len_q; }", (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: softcap's slope missing, one pass", "src/cpu/backward/one_pass.inl",
             "    differentiate_edits(t, tile.begin);\n", "",
             (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: NaN of a hidden key in d_q, one pass", "src/cpu/backward/one_pass.inl",
             "{packed, V::is_finite(packed.keys, tile.size, depth<V>(p.head_dim_qk))};",
             "{packed, true};",
             (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: blocks before the diagonal's never meet", "src/cpu/backward/one_pass.inl",
             "if (!is_interrupted(head.a.interrupt)) {", "if (row >= key) {",
             (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: blocks meet themselves alone", "src/cpu/backward/one_pass.inl",
             "add_blocks(ranges, rows.lo + row, keys.lo + key);",
             "add_blocks(ranges, rows.lo + row, keys.lo + (row < key_count ? row : key));",
             (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: a block does not wait for the one behind", "src/cpu/backward/one_pass.inl",
             "wait_for_count(done + before, phase(row, before) + 1);", "",
             (BLOCKS,)),
    Mutation("gradients: last tile left out, one pass", "src/cpu/backward/one_pass.inl",
             "if (key < lo || key >= hi || (row", "if (key < lo || key + 1 >= hi || (row",
             (GRADIENTS, MORE_GRADIENTS)),
    Mutation("gradients: the first half's last count falls behind the second's",
             "src/cpu/backward/one_pass.inl",
             "if (read_count(done + key) < phases_done) set_count(", "set_count(", (BLOCKS,)),
]
