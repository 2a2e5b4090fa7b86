"""Simulated times beside those of processes on this machine.

Kernels, messages, copies and the agreement are measured in all processes at once. Kernels and copies are a core's
time: where there are more ranks than cores, the simulation has them take turns. Messages are copied by the same cores
(overlap=False). Nothing is fitted to the calls. Of what is simulated with, the fastest of several rounds counts.

The processes run before other programs where the system permits it (real-time priority, as root has it): a program
that takes a core for 4 ms delays all ranks, since each exchange waits for the last of them.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from . import ranks

LIMIT = 1.3
PROBLEMS = (ranks.Problem(4096, 8, 8, 64, "f32"), ranks.Problem(1536, 8, 4, 64, "f32"),
            ranks.Problem(3072, 12, 12, 64, "f32", causal=False), ranks.Problem(2048, 6, 6, 128, "f32"))
SIZES = (2, 3, 4)
ROUNDS, REPEATS = 3, 5
SPELL = 0.25  # seconds of each kernel


def networks_of(size, **measured):
    """The network of each algorithm that `size` ranks have: groups of two for the one that needs groups."""
    cores = len(os.sched_getaffinity(0))
    plain = ranks.Network(node=size, overlap=False, shared=False, cores=cores, **measured)
    found = {comm: plain for comm in ("p2p", "all_gather", "a2a")}
    return {**found, "a2a+p2p": replace(plain, node=2)} if size == 4 else found


def shapes_of(problem, size):
    """The kernels that the simulations of a problem need."""
    needed = []

    def record(*shape):
        if shape not in needed:
            needed.append(shape)
        return 1.0

    for comm, network in networks_of(size).items():
        ranks.simulate(comm, problem, size, network, record)
    return needed


def _run_first():
    """Whether this process runs before all ordinary ones from now on."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, PermissionError):
        return False
    return True


def _times(call, barrier):
    """Seconds of each of some calls that all ranks begin together."""
    times = []
    for _ in range(REPEATS):
        barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def _median(call, barrier):
    return statistics.median(_times(call, barrier))


def _processor_time(call, barrier):
    """Seconds of a core that a call takes while all ranks make it; what other programs take of it does not count."""
    barrier()
    count, begin, used = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() < begin + SPELL or count < 3:
        call()
        count += 1
    return (time.thread_time() - used) / count


def _copies(problem, size):
    """A call that copies as many tensors of a rank as an exchange does, each into memory of its own, and its bytes:
    memory that was used before, as the library keeps it."""
    import torch

    tensors = [torch.randn(problem.heads_q, problem.length // size, problem.dim) for _ in range(8)]

    def call():
        for source, target in zip(tensors, tensors[1:] + tensors[:1]):
            target.copy_(source)

    return call, len(tensors) * tensors[0].numel() * 4


def _message(link, count):
    """A call in which every rank sends to the next one."""
    out, peers = bytearray(b"x" * count), ((link.rank + 1) % link.size, (link.rank - 1) % link.size)

    def call():
        into = bytearray(count)
        for each in (link.isend(peers[0], 1, out), link.irecv(peers[1], 1, into)):
            link.wait(each, 60)

    return call


def _kernel(problem, shape):
    """Four calls; their partial results are merged."""
    import torch

    import regard

    rows, keys, heads_q, heads_kv, causal = shape
    q, k, v = (torch.randn(1, heads, n, problem.dim) for heads, n in
               ((heads_q, rows), (heads_kv, keys), (heads_kv, keys)))
    words = {"is_causal": True, "diagonal": "top_left"} if causal else {}
    out = torch.empty_like(q)

    def call():
        held = None
        for _ in range(4):
            made = regard.attention(q, k, v, out=out, return_lse=True, **words)
            held = made if held is None or rows == problem.length else regard.merge_states([held, made])

    return call


def _calls(problem, size):
    """{comm: call} of what the simulation predicts."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh

    import regard.torch

    layout = "zigzag" if problem.causal else "contiguous"
    q, k, v = (regard.torch.context_parallel_shard(torch.randn(1, heads, problem.length, problem.dim),
                                                   dist.group.WORLD, 2, layout)
               for heads in (problem.heads_q, problem.heads_kv, problem.heads_kv))

    def call_of(comm):
        mesh = init_device_mesh("cpu", (2, 2)) if comm == "a2a+p2p" else dist.group.WORLD
        scope = regard.torch.context_parallel(mesh, comm=comm, layout=layout)

        def call():
            with scope:
                F.scaled_dot_product_attention(q, k, v, is_causal=problem.causal,
                                               enable_gqa=problem.heads_q != problem.heads_kv)

        return call

    return {comm: call_of(comm) for comm in networks_of(size)}


def _measure(rank, size, store, queue, problem, shapes):
    runs_first = _run_first()  # threads that begin later do so, too
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    import regard
    import regard.torch
    from regard.torch import _group

    regard.set_num_threads(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    link, barrier = _group.Communicator(dist.group.WORLD), dist.barrier
    kernels = {shape: _kernel(problem, shape) for shape in shapes}
    block = 2 * problem.heads_kv * problem.dim * 4 * (problem.length // size)
    messages = {count: _message(link, count) for count in (64, block)}
    copy, count = _copies(problem, size)
    tiny = torch.randn(1, problem.heads_q, 1, 1)
    calls = _calls(problem, size)

    scope = regard.torch.context_parallel(dist.group.WORLD, comm="all_gather")

    def agree():
        with scope:
            F.scaled_dot_product_attention(tiny, tiny, tiny)

    rounds, taken = [], {comm: [] for comm in calls}
    for _ in range(ROUNDS):
        quick = {name: _median(call, barrier) for name, call in messages.items()}
        rounds.append(({shape: _processor_time(call, barrier) / 4 for shape, call in kernels.items()}, quick,
                       {"copying": _processor_time(copy, barrier) / count,
                        "agreement": max(_median(agree, barrier) - (size - 1) * quick[64], 1e-9)}))
        for comm, call in calls.items():
            taken[comm] += _times(call, barrier)
    fastest = [{name: min(one[at][name] for one in rounds) for name in rounds[0][at]} for at in range(3)]
    queue.put([*fastest, taken, runs_first])
    barrier()


def measured(problem, size, shapes):
    """Kernels, messages and rates, means over ranks; the times of each call, of the rank that took longest; and
    whether the ranks ran before other programs."""
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

    means = [{key: statistics.mean(answer[at][key] for answer in found) for key in found[0][at]} for at in range(3)]
    times = {comm: [max(each) for each in zip(*(answer[3][comm] for answer in found))] for comm in found[0][3]}
    return *means, times, all(answer[4] for answer in found)


def run():
    """Prints a table; 1 where a prediction is farther than LIMIT from what ran."""
    worst = 1.0
    print("| ranks | positions | algorithm | simulated ms | fastest | lower quartile | median | upper quartile | "
          "median / simulated |\n|---:|---:|---|" + "---:|" * 6)
    for problem in PROBLEMS:
        for size in SIZES:
            kernels, messages, rates, calls, runs_first = measured(problem, size, shapes_of(problem, size))
            (small, quick), (large, slow) = messages.items()
            bandwidth = (large - small) / max(slow - quick, 1e-9)
            networks = networks_of(size, latency=(quick, quick), bandwidth=(bandwidth, bandwidth),
                                   copies=1 / rates["copying"], agreement=rates["agreement"])
            for comm in calls:
                made = ranks.simulate(comm, problem, size, networks[comm], lambda *shape: kernels[shape])  # noqa: B023
                times = [made.seconds, min(calls[comm]), *statistics.quantiles(calls[comm], n=4)]
                ratio = times[3] / times[0]
                worst = max(worst, ratio, 1 / ratio)
                print(f"| {size} | {problem.length} | {comm} | {' | '.join(f'{each * 1e3:.2f}' for each in times)} | "
                      f"{ratio:.2f} |", flush=True)
    note = "" if runs_first else "; without real-time priority: other programs lengthen what is measured"
    print(f"worst {worst:.2f}, limit {LIMIT}{note}")
    return 0 if worst <= LIMIT else 1
