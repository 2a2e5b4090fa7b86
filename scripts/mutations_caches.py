"""The faults of mutations.py in what a cache may have before and behind its keys: rows that are no
keys, and trees of drafts."""

from mutation import Mutation

PAGED = ("property", "*Paged.KeysBehind*")
TREE = ("property", "*Tree.*")

CACHE_MUTATIONS = [
    Mutation("pages begin with key 0", "src/cpu/kv_operand.h",
             "  j += pages.skipped;\n", "", (PAGED,)),
    Mutation("runs of keys end where pages without a leftpad do", "src/cpu/kv_operand.h",
             "(next + pages.skipped) % pages.size", "next % pages.size", (PAGED,)),
    Mutation("lengths do not count the leftpad", "src/problem/problem.h",
             "semantics::clamp(s.band.len_kv - s.leftpad, 0, s.rows_kv)",
             "semantics::clamp(s.band.len_kv, 0, s.rows_kv)", (PAGED,)),
    Mutation("rotary positions count from the first key", "src/problem/rotary.h",
             "s.leftpad + s.band.len_kv", "s.band.len_kv", (("core", "Leftpad*"),)),
    Mutation("a leftpad is not checked", "src/core/describe/check_data.cc",
             "if (rows >= 0 && rows <= max) continue;", "continue;", (("core", "Leftpad*"),)),
    Mutation("a tree hides nothing in tiles without another mask", "src/cpu/forward/visible_keys.h",
             "is_full && !p.bias.present && !has_tree", "is_full && !p.bias.present", (TREE,)),
    Mutation("a tree lies one key later", "src/cpu/forward/row_block.h",
             "s.band.len_kv - p.tree_keys", "s.band.len_kv - p.tree_keys + 1", (TREE,)),
    Mutation("all sequences have the first one's tree", "src/cpu/forward/edit_scores.h",
             "row_block.b * p.tree.stride[0]", "0 * p.tree.stride[0]", (TREE,)),
]
