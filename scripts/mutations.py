"""The faults that scripts/mutate.py plants: each a text that stands once in a file, what replaces it,
and the tests that ought to notice (a GoogleTest program and a filter, tried in order)."""

from typing import NamedTuple

BOUNDS = ("unit", "RowBounds.*:Tiles.*:ScoreEdits.*:Philox.*")
KERNELS = ("unit", "*Kernels.*:MergeStates.*")
CASES = ("unit", "*Describe*:*Overlap*:*Params*:*Case*:*Fix*")
READER = ("unit", "*Safetensors*")
DECISION = ("decision", "*")
CONFORMANCE = ("conformance", "*")


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple


MUTATIONS = [
    # ---- what a row sees ----
    Mutation("bottom-right diagonal off by one", "src/semantics/row_bounds.h",
             "return len_kv - len_q;", "return len_kv - len_q + 1;", (BOUNDS, KERNELS)),
    Mutation("causal sees one key less", "src/semantics/row_bounds.h",
             "saturating_add(saturating_add(i + 1, band.shift)",
             "saturating_add(saturating_add(i, band.shift)", (BOUNDS, KERNELS)),
    Mutation("window's left bound exclusive", "src/semantics/row_bounds.h",
             "saturating_add(i - band.window_left, band.shift)",
             "saturating_add(i - band.window_left + 1, band.shift)", (BOUNDS, KERNELS)),
    Mutation("tile with one visible key is EMPTY", "src/semantics/tiles.h",
             "if (last.hi <= j_begin ||", "if (last.hi <= j_begin + 1 ||", (BOUNDS, KERNELS)),
    Mutation("tile is FULL when its last row sees all", "src/semantics/tiles.h",
             "first.hi >= j_end) return TileClass::kFull",
             "last.hi >= j_end) return TileClass::kFull", (BOUNDS, KERNELS)),
    Mutation("last KV tile dropped", "src/cpu/strip.h",
             "(keys.hi - 1) / tile_kv + 1}", "(keys.hi - 1) / tile_kv}", (KERNELS,)),
    # ---- kernels ----
    Mutation("wrong head of a group", "src/cpu/strip.h",
             "const std::int64_t h = head_kv * p.group_size + row % p.group_size;",
             "const std::int64_t h = head_kv + row % p.group_size * p.num_heads_kv;", (KERNELS,)),
    Mutation("softcap after bias", "src/cpu/softmax.h",
             "  if (p.bias.present) add_bias<V>(p, strip, tile, scores, row);\n",
             "  if (p.bias.present) add_bias<V>(p, strip, tile, scores, row);\n"
             "  if (p.softcap > 0.0) cap_scores<V>(p, tile.size, scores);\n", (KERNELS,)),
    Mutation("sink ignored", "src/cpu/strip.h",
             "strip->row_sum[w] = sink == -infinity ? T(0) : T(1);", "strip->row_sum[w] = T(0);",
             (KERNELS,)),
    Mutation("masked keys count as one", "src/cpu/softmax.h",
             "V::select(masked, V::set(T(-0.0)), exp_nonpositive<V>(s - max))",
             "V::select(masked, V::set(T(1)), exp_nonpositive<V>(s - max))", (KERNELS,)),
    Mutation("bias of -inf added, not selected", "src/cpu/softmax.h",
             "score = row[j] == masked ? masked : score + row[j];", "score = score + row[j];",
             (KERNELS, CONFORMANCE)),
    Mutation("NaN in V behind a mask", "src/backends/cpu_efficient/forward.inl",
             "const bool select = tile_class == TileClass::kPartial && !loaded->finite;",
             "const bool select = false;", (KERNELS, CONFORMANCE)),
    Mutation("ALiBi adds", "src/cpu/softmax.h",
             "V::load(row + at) - V::load(strip.slope + at) * distance",
             "V::load(row + at) + V::load(strip.slope + at) * distance", (KERNELS,)),
    Mutation("segments see earlier ones", "src/cpu/softmax.h",
             "score = segment == strip.segment[w] ? score : masked;",
             "score = segment <= strip.segment[w] ? score : masked;", (KERNELS,)),
    Mutation("a mask byte of 2 hides", "src/cpu/softmax.h",
             "if (attend[j * p.mask.stride[3]] == 0)", "if (attend[j * p.mask.stride[3]] != 1)",
             (KERNELS, CONFORMANCE)),
    Mutation("old sum not rescaled", "src/cpu/softmax.h",
             "V::store(strip->row_sum + at, V::load(strip->row_sum + at) * factor);",
             "V::store(strip->row_sum + at, V::load(strip->row_sum + at));", (KERNELS,)),
    Mutation("lse without the maximum", "src/cpu/strip.h",
             "static_cast<double>(strip.row_max[w]) +", "0.0 +", (KERNELS,)),
    Mutation("dropout draws in the wrong half", "src/semantics/philox.h",
             ">> (16 * (j & 1))) & 0xffffu", ">> (16 * (~j & 1))) & 0xffffu", (BOUNDS, KERNELS)),
    Mutation("dropout does not scale up", "src/cpu/strip.h",
             "divisor[w] = strip.row_sum[w] * keep;", "divisor[w] = strip.row_sum[w];", (KERNELS,)),
    Mutation("dropout ignores the diagonal", "src/cpu/softmax.h",
             "semantics::dropout_row(strip.query[w], s.band.shift,",
             "semantics::dropout_row(strip.query[w], 0,", (KERNELS, CONFORMANCE)),
    # ---- the flow ----
    Mutation("field left out of the field list", "include/regard/params.h",
             '  f("window_left", p.window_left);\n', "", (CASES, DECISION)),
    Mutation("field left out of the JSON", "src/core/selection.cc",
             '  w.key("decided_by").value(selection.decided_by);\n', "", (DECISION,)),
    Mutation("refusal without its limit", "src/core/selection.cc",
             'w.key("limit").value(refusal.limit).key("actual")', 'w.key("actual")', (DECISION,)),
    Mutation("relation computed after rounding", "src/core/key.cc",
             "  key.hash_ = hash_value(p);",
             "  p.features.set(Feature::kSeqlenQGreaterKv, p.seqlen_q > p.seqlen_kv);\n"
             "  key.hash_ = hash_value(p);", (DECISION,)),
    Mutation("coarser extent classes", "src/core/key.cc",
             "constexpr std::int64_t kStepsPerOctave = 8;",
             "constexpr std::int64_t kStepsPerOctave = 4;", (DECISION,)),
    Mutation("scope not restored", "src/core/scope_stack.cc",
             "ScopedPolicy::~ScopedPolicy() { t_top = std::move(previous_); }",
             "ScopedPolicy::~ScopedPolicy() {}", (DECISION,)),
    Mutation("wrong source of policy wins", "src/core/resolve_policy.cc",
             '{{&call, "call policy"},\n                                       {&scopes, "scope"},',
             '{{&scopes, "scope"},\n                                       {&call, "call policy"},',
             (DECISION,)),
    Mutation("deny ignored", "src/core/select.cc",
             "if (contains(policy.deny, entry_.ref)) {", "if (false) {", (DECISION,)),
    Mutation("fallback error ignored", "src/core/select.cc",
             "if (rule != OnFallback::kError) return;", "if (rule != OnFallback::kAllow) return;",
             (DECISION,)),
    Mutation("tuning change keeps cached plans", "src/core/context.cc",
             "    ++settings.generations.tuning;\n", "", (DECISION,)),
    Mutation("foreign tuning table used", "src/core/tuning.cc",
             "  if (table.cpu_model != env.cpu_model) return differs", "  if (false) return differs",
             (DECISION,)),
    Mutation("lengths one past the end pass", "src/core/execute.cc",
             "if (length >= 0 && length <= limit) continue;",
             "if (length >= 0 && length <= limit + 1) continue;", (DECISION,)),
    Mutation("small workspace accepted", "src/core/execute.cc",
             "workspace.bytes < static_cast<std::size_t>(needed)",
             "workspace.bytes + 64 < static_cast<std::size_t>(needed)", (DECISION,)),
    Mutation("outputs may overlap inputs", "src/core/describe.cc",
             "if (proves_disjoint(output, other)) continue;", "continue;",
             (DECISION, CASES)),
    # ---- the reader ----
    Mutation("header longer than the file", "tools/regard/safetensors.cc",
             "if (length > file.size() - kLengthBytes) {", "if (false) {", (READER,)),
    Mutation("overlapping tensors accepted", "tools/regard/safetensors.cc",
             "if (entry->begin != next) {", "if (entry->begin > next) {", (READER,)),
    Mutation("offsets past the end accepted", "tools/regard/safetensors.cc",
             "if (entry.begin > entry.end || entry.end > total) {",
             "if (entry.begin > entry.end) {", (READER,)),
]
