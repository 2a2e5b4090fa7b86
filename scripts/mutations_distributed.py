"""Faults of attention over ranks."""

from mutation import Mutation

RANKS = ("distributed", "Layout.*:Plan.*:Decode.*")
CASES = ("distributed", "*Attention.*:*Random*")
FAULTS = ("distributed", "Faults.*")
OVERLAP = ("distributed", "Activities.*")
NETWORK = ("distributed", "MeasureNetwork.*")
GRID = ("torch", "test_rank_grid.py")
LAUNCHES = ("distributed", "*EveryPartRunsAsTheLaunchSays")

DISTRIBUTED_MUTATIONS = [
    Mutation("a run of a layout is a row too long", "distributed/layout.cc",
             "each + (x < longer ? 1 : 0)};", "each + (x <= longer ? 1 : 0)};", (RANKS,)),
    Mutation("a pair's diagonal leaves out the document's shift", "distributed/pairs.cc",
             "query + document_.shift - key;", "query - key;", (CASES,)),
    Mutation("a window's last key is not sent", "distributed/schedule.cc",
             "first + q.length - 1 + v.right + 1);", "first + q.length - 1 + v.right);", (RANKS, CASES)),
    Mutation("sinks join on every rank of a decode", "distributed/plan_impl.cc",
             "states.push_back({zeros, logits});",
             "states.push_back({zeros, logits}); states.push_back({zeros, logits});", (RANKS, CASES)),
    Mutation("indices of keys stay a part's", "distributed/pairs.cc",
             "result += moved(word, origin.kv);", "result += word;", (CASES,)),
    Mutation("sequences of a batch share dropout's numbers", "distributed/pairs.cc",
             "b * call_.heads + run.head, documents * call_.heads};",
             "b * call_.heads + run.head, call_.heads};", (CASES,)),
    Mutation("a part's b counts documents alone", "distributed/pairs.cc",
             'origin.documents == 1 ? word', 'origin.documents != 0 ? word', (CASES,)),
    Mutation("gradients of parts leave out the launch", "distributed/pairs.cc",
             "attention_backward(context, *request, {}, launch);",
             "attention_backward(context, *request, {}, Launch{nullptr, launch.stream});", (LAUNCHES,)),
    Mutation("a rank's plan is that of rank 0", "distributed/plan.cc",
             "whole_of(request, options, {rank, ranks}, false, kWhere);",
             "whole_of(request, options, {0 * rank, ranks}, false, kWhere);", (RANKS,)),
    Mutation("gradients of keys replace those before", "distributed/ring.cc",
             "at = add(rows_of(gradients.d_v, s.local, s.length), at);",
             "at = unpack(rows_of(gradients.d_v, s.local, s.length), at);", (CASES,)),
    Mutation("ranks do not compare their keys", "distributed/agreement.cc",
             "if (differs && other == ranks) other = r;", "(void)differs;", (RANKS,)),
    Mutation("ranks do not compare their policies", "distributed/plan.cc",
             '" policy: " + policy_text(context)', '" policy: " + policy_text(context).substr(0, 0)', (RANKS,)),
    Mutation("an end is not reported", "distributed/thread_communicator.cc",
             "shared_->ended[static_cast<std::size_t>(rank_)] = true;", "", (FAULTS,)),
    Mutation("chunks are not counted", "distributed/communicator.cc",
             "record_->sent.messages += 1;", "record_->sent.messages += at == 0 ? 1 : 0;", (CASES,)),
    Mutation("a ring waits before it computes", "distributed/ring.cc",
             "if (Status s = compute(&held, name); !s.ok()) return s;",
             "if (Status s = messages_.wait(tag); !s.ok()) return s;\n"
             "      if (Status s = compute(&held, name); !s.ok()) return s;", (OVERLAP,)),
    Mutation("the slowest rank's messages are not measured", "distributed/measure_network.cc",
             "for (const BothSteps& of_rank : all) {\n    for", "for (const BothSteps& of_rank : {own}) {\n    for",
             (NETWORK,)),
    Mutation("links between nodes count within one", "distributed/arrangement.cc",
             "const bool crosses = options.topology.nodes > 1;", "const bool crosses = true;", (RANKS,)),
    Mutation("dropout's origin is ignored", "src/problem/make_problem.cc",
             "semantics::begin_dropout_at(&p.dropout, origin.position, origin.key, origin.head, origin.heads);",
             "(void)origin;", (CASES,)),
    # ---- TransformerEngine's grid ----
    Mutation("grid: windows have no left side", "python/regard/torch/_rank_call.py",
             "window_left=left, window_right=right, rng=None", "window_left=-1, window_right=right, rng=None", (GRID,)),
    Mutation("grid: a bias is left to the library to refuse", "python/regard/torch/_context_parallel.py",
             "if options.attn_mask is not None or options.attn_bias is not None:",
             "if options.attn_mask is not None:", (GRID,)),
    Mutation("grid: rows of a document count from the sequence's begin", "distributed/pairs.cc",
             "const std::int64_t query = part_.segment.begin - document_.q_begin;",
             "const std::int64_t query = part_.segment.begin;", (GRID,)),
    Mutation("grid: every rank of an all-to-all has the first heads' sinks", "distributed/run.cc",
             "{call.request().sinks, call.share().q_begin}", "{call.request().sinks, 0}", (GRID,)),
    Mutation("grid: gradients of sinks leave out a row's sum", "distributed/run.cc",
             "std::exp(sink - element(r.saved.stats, b, h, s)) * sum;", "std::exp(sink) * sum;", (GRID,)),
    Mutation("grid: ranks that share a key head do not add their gradients", "distributed/run.cc",
             "const bool sums = !to_heads && !x.of_queries;", "const bool sums = false;", (GRID,)),
    Mutation("grid: a rank's query heads are those of its key heads' numbers", "distributed/arrangement.cc",
             "share.q_begin = share.kv_begin * group;", "share.q_begin = share.kv_begin;", (GRID,)),
    Mutation("grid: causal queries see the next key", "python/regard/torch/_rank_call.py",
             "right = 0 if right < 0 else min(right, 0)", "right = 1 if right < 0 else min(right, 0)", (GRID,)),
]
