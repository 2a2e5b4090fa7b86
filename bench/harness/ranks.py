"""Attention over many ranks, simulated: what each rank computes and sends at what time.

A rank computes one block at a time and sends at the same time, unless its processor is shared
(`overlap`). Kernel times are given; a message takes a latency and its bytes over a bandwidth, of
two levels: within a node, and between nodes, where the ranks of a node share one link. Passes over
memory are counted as distributed/run.cc and distributed/ring.cc make them, at one rate (`copies`).
Ranks that share cores take turns (`cores`): one that computes keeps its core until it waits for a
message, so three ranks on two cores take as long as four.
"""

from dataclasses import dataclass, field

import numpy as np

ALGORITHMS = ("p2p", "all_gather", "a2a", "a2a+p2p")
AGREEMENT = 768  # bytes in which every rank tells every other what it is about to do
SIZES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class Problem:
    """One attention over `length` positions; causal ones use the zigzag layout."""
    length: int
    heads_q: int = 32
    heads_kv: int = 8
    dim: int = 128
    dtype: str = "bf16"
    causal: bool = True
    backward: bool = False


@dataclass(frozen=True)
class Network:
    """Seconds and bytes a second of a message within a node and between nodes of `node` ranks."""
    node: int = 8
    latency: tuple[float, float] = (1e-6, 5e-6)
    bandwidth: tuple[float, float] = (50e9, 25e9)  # of a rank; of a node's link
    overlap: bool = True  # messages take no time of the processor
    copies: float = 20e9  # bytes a second at which a rank copies
    joins: float = 1.3e9  # bytes of sums a second that become results of another type
    shared: bool = True  # ranks of a node share its link; False where `bandwidth` is what each of them has
    agreement: float = 0.0  # seconds of what every call does beside: all ranks agree on it, and compute nothing
    cores: int = 0  # that all ranks share; 0: each rank has its own. Latency and bandwidth are those of shared cores

    def level(self, a, b):
        return np.asarray(np.asarray(a) // self.node != np.asarray(b) // self.node, int)

    def message(self, size, level, sharing=1):
        """Seconds of a message; `sharing` ranks of a node send between nodes at once."""
        latency, bandwidth = np.take(self.latency, level), np.take(self.bandwidth, level)
        sharing = sharing if self.shared else 1
        return latency + size * np.where(level == 1, sharing, 1) / bandwidth

    def crowd(self, ranks):
        """How many ranks there are for each core, at least 1: so many times as long all of them take together."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0


@dataclass
class Result:
    """What a simulated call takes; None of it where `refused` says why it cannot run."""
    seconds: float = 0.0
    compute: float = 0.0      # of the rank that computes longest
    balance: float = 1.0      # longest over mean
    messages: int = 0         # that the rank with most of them sends
    sent: int = 0             # bytes, likewise
    memory: int = 0           # bytes of a rank: its tensors, results and buffers
    refused: str = ""
    steps: list = field(default_factory=list)  # seconds at which each step of the slowest rank ends


def row_bytes(problem):
    """Bytes of one position of q, of k and v together, and of their gradients in f32."""
    size, wide = SIZES[problem.dtype], 8 if problem.dtype == "f64" else 4
    pair = 2 * problem.heads_kv * problem.dim
    return problem.heads_q * problem.dim * size, pair * size, pair * wide


def pair_counts(ranks, causal):
    """[rank, owner of the keys]: blocks that are computed whole, and on the diagonal; and into how many
    pieces a rank's rows are cut."""
    if not causal:
        return np.ones((ranks, ranks), int), np.zeros((ranks, ranks), int), 1
    head = np.arange(ranks)
    pieces = (head, 2 * ranks - 1 - head)  # zigzag
    whole = sum((q[:, None] > k[None, :]).astype(int) for q in pieces for k in pieces)
    diagonal = sum((q[:, None] == k[None, :]).astype(int) for q in pieces for k in pieces)
    return whole, diagonal, 2


def _blocks(problem, ranks, kernel, heads):
    """[rank, owner]: seconds that a rank computes with an owner's keys."""
    whole, diagonal, cut = pair_counts(ranks, problem.causal)
    rows = -(-problem.length // (cut * ranks))
    seconds = whole * kernel(rows, rows, *heads, False)
    return seconds + diagonal * kernel(rows, rows, *heads, True) if problem.causal else seconds


def _in_turns(seconds, cores):
    """When the last of some ranks has computed, each for its seconds, on cores that they keep until then; those that
    compute longest begin."""
    if not cores or len(seconds) <= cores:
        return float(np.max(seconds))
    free = np.zeros(cores)
    for each in sorted(seconds, reverse=True):
        free[free.argmin()] += each
    return float(free.max())


def _ring_in_turns(jobs, cores):
    """Ends of a ring's steps, [step, rank], of ranks that share `cores`. jobs[step, rank]: seconds of a core. A step
    needs the block that the rank before sends as it begins its own step before."""
    steps, ranks = jobs.shape
    begun, done = np.full((steps, ranks), np.inf), np.zeros((steps, ranks))
    free, last, next_step = np.zeros(cores), [-1] * cores, np.zeros(ranks, int)
    while next_step.min() < steps:
        ready = np.full(ranks, np.inf)
        for rank, step in enumerate(next_step):
            if step < steps:
                ready[rank] = max(done[step - 1, rank], begun[step - 1, rank - 1]) if step else 0.0
        core = int(free.argmin())
        keeps = last[core] if last[core] >= 0 and ready[last[core]] <= free[core] else int(ready.argmin())
        step = next_step[keeps]
        begun[step, keeps] = max(free[core], ready[keeps])
        done[step, keeps] = free[core] = begun[step, keeps] + jobs[step, keeps]
        last[core] = keeps
        next_step[keeps] += 1
    return done


def _ring(times, block, hop, network, cores=0):
    """Ends of a ring's steps: [step, rank]. hop: seconds of a block's way from each rank to the next; cores: that the
    ring's ranks share, where there are fewer.

    A rank has two buffers: it receives the block of the next step while it computes with this one. Before a step
    computes, its block is packed for the next rank.
    """
    ranks = len(times)
    at, packing = np.arange(ranks), block / network.copies
    if cores and ranks > cores:  # messages are copied by the ranks' cores, too
        step = at[:, None]
        moved = np.where(step > 0, np.roll(hop, 1) * cores / ranks, 0) + np.where(step + 1 < ranks, packing, 0)
        return _ring_in_turns(moved + times[at, (at - step) % ranks], cores)
    arrived, done, link = np.zeros(ranks), np.zeros((ranks, ranks)), np.zeros(ranks)
    for step in range(ranks):
        if step:
            free = done[step - 2] if step > 1 else np.zeros(ranks)
            begin = np.maximum(np.maximum(np.roll(arrived, 1) + packing, np.roll(link, 1)), free)
            if not network.overlap:  # the processor copies: after the step before, and for as long
                begin = np.maximum(begin, done[step - 1])
            arrived = begin + np.roll(hop, 1)
            link = np.roll(arrived, -1)
        before = done[step - 1] if step else np.zeros(ranks)
        packed = packing if step + 1 < ranks else 0.0
        done[step] = np.maximum(before, arrived) + packed + times[at, (at - step) % ranks]
    return done


def _all_to_all(size, ranks, network, stride=1):
    """Seconds in which each of `ranks` ranks, `stride` apart, sends `size` bytes to every other one."""
    if ranks == 1:
        return 0.0
    peers = np.arange(1, ranks) * stride
    level = network.level(0, peers)
    sharing = max(1, min(network.node // stride, ranks))
    return float(network.message(size, level, sharing).sum())


def simulate(algorithm, problem, ranks, network, kernel):
    """A Result. kernel(rows, keys, heads_q, heads_kv, causal): seconds of such a call of the problem's type and
    direction on one rank."""
    refused = refusal(algorithm, problem, ranks, network)
    if refused:
        return Result(refused=refused)
    run = {"p2p": _p2p, "all_gather": _gathered, "a2a": _heads, "a2a+p2p": _hybrid}[algorithm]
    made = run(problem, ranks, network, kernel)
    if not problem.backward:  # a backward relies on what its forward agreed on
        made.seconds += network.agreement or _all_to_all(AGREEMENT, ranks, network)
    return made


def refusal(algorithm, problem, ranks, network):
    groups = network.node if algorithm == "a2a+p2p" else ranks
    if algorithm == "a2a+p2p" and (ranks <= network.node or ranks % network.node):
        return f"needs several nodes of {network.node} ranks"
    if algorithm in ("a2a", "a2a+p2p") and problem.heads_q < groups:
        return f"divides query heads among {groups} ranks, got {problem.heads_q} heads"
    return ""


def _own_bytes(problem, rows):
    """Tensors and results of a rank with that many rows; out and its sums are f32."""
    q, pair, gradients = row_bytes(problem)
    wide = 8 if problem.dtype == "f64" else 4
    out = problem.heads_q * (problem.dim + 1) * wide
    own = rows * (2 * q + pair + out)
    return own + rows * (2 * q + gradients) if problem.backward else own


def _buffers(problem, ranks, rows, heads_q, heads_kv, gathers=False):
    """Bytes of messages, of a piece's partial result and of gradients on their way, as distributed/memory.cc counts
    them: a ring holds what arrived, what arrives and what is sent; a backward as many blocks of gradients."""
    if ranks == 1:
        return 0
    _, pair, gradients = row_bytes(problem)
    share, wide = heads_kv / problem.heads_kv, 8 if problem.dtype == "f64" else 4
    block = rows * pair * share
    piece = rows * heads_q * (problem.dim + 1) * wide  # a zigzag's two are adjacent on the last rank
    held = 2 * (ranks - 1) if gathers else min(ranks, 3)
    if problem.backward:
        return int(held * block + min(ranks, 3) * rows * gradients * share)
    return int(held * block) + piece


def _p2p(problem, ranks, network, kernel, heads=None, stride=1):
    heads = heads or (problem.heads_q, problem.heads_kv)
    times = _blocks(problem, ranks, kernel, heads)
    rows = -(-problem.length // ranks)
    _, pair, gradients = row_bytes(problem)
    share = heads[1] / problem.heads_kv
    block = int(rows * (pair + (gradients if problem.backward else 0)) * share)
    at = np.arange(ranks) * stride
    hop = network.message(block, network.level(at, np.roll(at, -1)), sharing=min(stride, network.node))
    done = _ring(times, block, hop, network, max(1, network.cores // stride) if network.cores else 0)
    home = float(hop.max()) if problem.backward and ranks > 1 else 0.0  # gradients return to their owner
    hops = ranks - 1 + (1 if problem.backward and ranks > 1 else 0)
    load = times.sum(axis=1)
    home += network.crowd(ranks * stride) * _result_passes(problem, rows * heads[0], network, copies=stride == 1)
    return Result(float(done[-1].max()) + home, float(load.max()), float(load.max() / load.mean()), hops,
                  hops * block, int(_own_bytes(problem, rows) * share) + _buffers(problem, ranks, rows, *heads),
                  steps=done[:, int(done[-1].argmax())].tolist())


def _gathered(problem, ranks, network, kernel):
    load = _blocks(problem, ranks, kernel, (problem.heads_q, problem.heads_kv)).sum(axis=1)
    rows = -(-problem.length // ranks)
    _, pair, gradients = row_bytes(problem)
    packed = (ranks - 1) * rows * pair / network.copies  # a message for each rank
    passes = packed + _result_passes(problem, rows * problem.heads_q, network)
    moved = _all_to_all(rows * pair, ranks, network) + network.crowd(ranks) * passes
    sent, messages = (ranks - 1) * rows * pair, ranks - 1
    if problem.backward:  # partial gradients go to the owner of the keys
        moved += _all_to_all(rows * gradients, ranks, network)
        sent += (ranks - 1) * rows * gradients
        messages += ranks - 1
    memory = _buffers(problem, ranks, rows, problem.heads_q, problem.heads_kv, gathers=True)
    return Result(moved + _in_turns(load, network.cores), float(load.max()), float(load.max() / load.mean()), messages,
                  sent, _own_bytes(problem, rows) + memory)


def _result_passes(problem, rows, network, copies=True):
    """Seconds in which a rank clears its sums of `rows`, of all heads together, and makes its results of them: passes
    of a forward that no kernel has. copies: also where they have one type."""
    if problem.backward:
        return 0.0
    wide = 8 if problem.dtype == "f64" else 4
    size = rows * problem.dim * wide
    if SIZES[problem.dtype] != wide:
        return size / network.copies + size / network.joins
    return (1 + copies) * size / network.copies


def _swapped(problem, ranks, rows):
    """Bytes to each other rank, before and after the kernel, where heads are divided among `ranks`: those of the rank
    with most heads."""
    size, wide = SIZES[problem.dtype], 8 if problem.dtype == "f64" else 4
    heads_q, heads_kv = max(_divided(problem, ranks))  # fewer heads of keys than ranks: each is sent to several
    q, pair = rows * heads_q * problem.dim * size, rows * 2 * heads_kv * problem.dim * size
    out = rows * heads_q * (problem.dim * size + wide)  # and lse
    if problem.backward:  # q, k, v, the gradient of out, lse and delta; then gradients of q, k and v
        return (2 * q + pair + 2 * rows * heads_q * wide,
                (rows * heads_q * problem.dim + rows * 2 * heads_kv * problem.dim) * wide)
    return q + pair, out


def _exchanged(before, after, ranks, network, all_ranks):
    """Seconds of both exchanges of groups of `ranks`, one message each to every other rank: each part is packed, and
    put where its rows belong."""
    copied = network.crowd(all_ranks) * 2 * ranks * (before + after) / network.copies if ranks > 1 else 0.0
    return _all_to_all(before, ranks, network) + _all_to_all(after, ranks, network) + copied


def _divided(problem, ranks):
    """(query heads, key heads) of each rank: groups of query heads stay together where there are as many key heads as
    ranks."""
    group = problem.heads_q // problem.heads_kv

    def parts(heads):
        return [heads * (rank + 1) // ranks - heads * rank // ranks for rank in range(ranks)]

    if problem.heads_kv >= ranks:
        return [(heads_kv * group, heads_kv) for heads_kv in parts(problem.heads_kv)]
    return [(heads_q, -(-heads_q // group)) for heads_q in parts(problem.heads_q)]


def _heads(problem, ranks, network, kernel):
    rows = -(-problem.length // ranks)
    before, after = _swapped(problem, ranks, rows)
    shares = _divided(problem, ranks)
    heads = max(shares)
    compute = kernel(problem.length, problem.length, *heads, problem.causal)
    moved = _exchanged(before, after, ranks, network, ranks) + network.crowd(ranks) * _result_passes(
        problem, problem.length * heads[0], network, copies=False)
    computed = _in_turns([compute * heads_q / heads[0] for heads_q, _ in shares], network.cores)
    return Result(moved + computed, compute, heads[0] * ranks / problem.heads_q, 2 * (ranks - 1),
                  (ranks - 1) * (before + after), 2 * _own_bytes(problem, rows))


def _hybrid(problem, ranks, network, kernel):
    inner, groups = network.node, ranks // network.node
    rows = -(-problem.length // ranks)
    before, after = _swapped(problem, inner, rows)
    heads = max(_divided(problem, inner))
    ring = _p2p(problem, groups, network, kernel, heads, stride=inner)
    ring.balance *= heads[0] * inner / problem.heads_q
    moved = _exchanged(before, after, inner, network, ranks)
    ring.seconds += moved
    ring.messages += 2 * (inner - 1)
    ring.sent += (inner - 1) * (before + after)
    ring.memory += _own_bytes(problem, rows)
    return ring
