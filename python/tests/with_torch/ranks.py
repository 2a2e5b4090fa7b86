"""Processes of a gloo group for tests. A server forks them, so that PyTorch is imported once."""

import multiprocessing
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

TESTS = pathlib.Path(__file__).resolve().parent
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "regard.torch", "transformers"])


def _run(rank, size, store, results, function, arguments):
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        results.put((rank, True, function(rank, size, *arguments)))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
    finally:
        results.close()
        results.join_thread()


def start(size, function, *arguments):
    """The processes of function(rank, size, *arguments), a function of a module, and the queue of its results: for
    collect()."""
    store = pathlib.Path(tempfile.mkdtemp(prefix="regard_ranks_")) / "store"
    results = _context.Queue()
    made = [_context.Process(target=_run, args=(rank, size, store, results, function, arguments), daemon=True)
            for rank in range(size)]
    for process in made:
        process.start()
    return made, results, store.parent


def collect(made, results, folder, expected, seconds):
    """{rank: (succeeded, result or traceback)} of the ranks that answer in that time; ends all."""
    found, end = {}, time.monotonic() + seconds
    try:
        while set(found) != set(expected) and time.monotonic() < end:
            try:
                rank, *answer = results.get(timeout=max(0.01, end - time.monotonic()))
            except Exception:  # queue.Empty
                break
            found[rank] = tuple(answer)
    finally:
        for process in made:
            process.kill()
            process.join()
        shutil.rmtree(folder, ignore_errors=True)
    return found


def run(size, function, *arguments, seconds=60):
    """What the function returned on each rank; raises the first failure."""
    found = collect(*start(size, function, *arguments), range(size), seconds)
    for rank in range(size):
        assert rank in found, f"rank {rank} has not answered in {seconds} s; answers: {found}"
        assert found[rank][0], f"rank {rank}:\n{found[rank][1]}"
    return [found[rank][1] for rank in range(size)]
