"""Simulated times beside those of processes on this machine.

Kernels and messages are measured in all processes at once, as a call has them: where there are more processes
than cores, each kernel takes so much longer, and messages are copied by the same cores (overlap=False).
"""

import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from . import ranks

LIMIT = 1.3
COMMS = ("p2p", "all_gather", "a2a")
PROBLEMS = (ranks.Problem(4096, 8, 8, 64, "f32"), ranks.Problem(1536, 8, 4, 64, "f32"))
SIZES = (2, 3, 4)
REPEATS = 5
SPELL = 0.25  # seconds of each kernel


def shapes_of(problem, size, network):
    """The kernels that the simulations of a problem need."""
    needed = []

    def record(*shape):
        if shape not in needed:
            needed.append(shape)
        return 1.0

    for comm in COMMS:
        ranks.simulate(comm, problem, size, network, record)
    return needed


def _median(call, barrier):
    times = []
    for _ in range(REPEATS):
        barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _mean(call, barrier):
    """Seconds of a call while all ranks make it, over long enough that ranks take turns on a core."""
    barrier()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + SPELL or count < 3:
        call()
        count += 1
    return (time.perf_counter() - begin) / count


def _measure(rank, size, store, queue, problem, shapes):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    import regard
    import regard.torch
    from regard.torch import _group

    regard.set_num_threads(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    link = _group.Communicator(dist.group.WORLD)

    def message(count):
        out, into = bytearray(count), bytearray(count)
        work = [link.isend((rank + 1) % size, 1, out), link.irecv((rank - 1) % size, 1, into)]
        for each in work:
            link.wait(each, 60)

    def call(q, k, v, words, is_partial):
        """Four times; partial results are merged, too."""
        states = []
        for _ in range(4):
            out = q.new_empty((*q.shape[:3], v.shape[3]))
            states.append(regard.attention(q, k, v, out=out, return_lse=True, **words))
        if is_partial:
            out.copy_(regard.merge_states(states)[0])

    kernels = {}
    for rows, keys, heads_q, heads_kv, causal in shapes:
        q, k, v = (torch.randn(1, heads, n, problem.dim) for heads, n in
                   ((heads_q, rows), (heads_kv, keys), (heads_kv, keys)))
        words = {"is_causal": True, "diagonal": "top_left"} if causal else {}
        kernels[rows, keys, heads_q, heads_kv, causal] = _mean(
            lambda: call(q, k, v, words, rows < problem.length), dist.barrier) / 4  # noqa: B023
    small, large = 64, 1 << 22
    messages = {count: _median(lambda: message(count), dist.barrier) for count in (small, large)}  # noqa: B023
    source = torch.ones(1 << 20)
    copying = _mean(lambda: source.clone(), dist.barrier)
    q, k, v = (regard.torch.context_parallel_shard(torch.randn(1, heads, problem.length, problem.dim),
                                                   dist.group.WORLD, 2, "zigzag")
               for heads in (problem.heads_q, problem.heads_kv, problem.heads_kv))
    calls = {}
    for comm in COMMS:
        if ranks.refusal(comm, problem, size, ranks.Network(node=size)):
            continue
        with regard.torch.context_parallel(dist.group.WORLD, comm=comm, layout="zigzag"):
            calls[comm] = _median(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                                  dist.barrier)
    queue.put((kernels, messages, calls, {"copies": source.numel() * 4 / copying}))
    dist.barrier()


def measured(problem, size, shapes):
    """Kernels, messages, calls and the rate of copies: means over ranks, of calls the longest."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "regard.torch"])
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        made = [context.Process(target=_measure, args=(rank, size, Path(folder) / "store", queue, problem, shapes))
                for rank in range(size)]
        for process in made:
            process.start()
        found = [queue.get(timeout=300) for _ in made]
        for process in made:
            process.join()

    def join(at, how):
        return {key: how([answer[at][key] for answer in found]) for key in found[0][at]}

    return join(0, statistics.mean), join(1, statistics.mean), join(2, max), join(3, statistics.mean)["copies"]


def run():
    """Prints a table; 1 where a prediction is farther than LIMIT from what ran."""
    worst = 1.0
    print("| ranks | positions | algorithm | simulated | measured | ratio |\n|---:|---:|---|---:|---:|---:|")
    for problem in PROBLEMS:
        for size in SIZES:
            plain = ranks.Network(node=size)
            kernels, messages, calls, copies = measured(problem, size, shapes_of(problem, size, plain))
            (small, quick), (large, slow) = messages.items()
            bandwidth = (large - small) / max(slow - quick, 1e-9)
            network = ranks.Network(size, (quick, quick), (bandwidth, bandwidth), False, copies)
            for comm in calls:
                made = ranks.simulate(comm, problem, size, network, lambda *shape: kernels[shape])  # noqa: B023
                ratio = calls[comm] / made.seconds
                worst = max(worst, ratio, 1 / ratio)
                print(f"| {size} | {problem.length} | {comm} | {made.seconds * 1e3:.2f} ms | {calls[comm] * 1e3:.2f} ms | "
                      f"{ratio:.2f} |", flush=True)
    print(f"worst {worst:.2f}, limit {LIMIT}")
    return 0 if worst <= LIMIT else 1
