"""The faults of mutations.py in what a cache may have before and behind its keys: rows that are no
keys, trees of drafts, and prefixes that sequences share."""

from mutation import Mutation

PAGED = ("property", "*Paged.KeysBehind*")
TREE = ("property", "*Tree.*")
PREFIX = ("property", "*SharedPrefix.*")

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
             "all_but_edits = is_full && !has_tree;", "all_but_edits = is_full;", (TREE,)),
    Mutation("a tree lies one key later", "src/cpu/forward/row_block.h",
             "s.band.len_kv - p.tree_keys", "s.band.len_kv - p.tree_keys + 1", (TREE,)),
    Mutation("all sequences have the first one's tree", "src/cpu/forward/edit_scores.h",
             "row_block.b * p.tree.stride[0]", "0 * p.tree.stride[0]", (TREE,)),
    Mutation("padding counts the prefix", "src/core/execute/attention_shared_prefix.cc",
             "  memory.hide_padding(p);\n  status = attention(", "  status = attention(", (PREFIX,)),
    Mutation("own keys begin with the prefix", "src/core/execute/shared_prefix.cc",
             "  request.cache_leftpad = memory.lengths(call.params.batch, call.shared);\n", "", (PREFIX,)),
    Mutation("prefixes that differ are read as one",
             "src/core/execute/shared_prefix.cc",
             "if (id_at(b, page) == id_at(0, page)) continue;", "continue;",
             (("core", "SharedPrefix*"),)),
    Mutation("a format is faster from where it is slower", "src/core/measure/cache_formats.cc",
             "if (seconds(dtype, at) >= seconds(Dtype::kBf16, at)) break;", "",
             (("core", "Costs.*"),)),
    Mutation("scales of rows are no bytes", "src/core/measure/mean_sequence.cc",
             "bytes_of(dtype, width) + floats * size_of(Dtype::kF32)", "bytes_of(dtype, width)",
             (("core", "Costs.*"),)),
    Mutation("explain appends rows to the prefix", "src/core/execute/shared_prefix.cc",
             "Feature::kSeqlensQ, Feature::kAppendKv,", "Feature::kSeqlensQ,",
             (("core", "SharedPrefix*"),)),
    Mutation("a plan's padding counts the prefix", "src/core/execute/attention_shared_prefix.cc",
             "  memory.hide_padding(p);\n  status = execute(", "  status = execute(", (PREFIX,)),
    Mutation("a plan's calls share memory", "src/core/execute/attention_shared_prefix.cc",
             "static_cast<char*>(launch.workspace.data) + impl->memory_bytes",
             "static_cast<char*>(launch.workspace.data)", (PREFIX,)),
    Mutation("new rows are quantised in the scratch that q and out need", "src/cpu/tiled_backend.cc",
             "std::max(layout.total(), append_scratch_bytes(params));", "layout.total();",
             (("conformance", "*EightBits*append*"),)),
]
