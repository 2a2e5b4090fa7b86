"""Threads, forks, spawned processes, memory."""

import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from test_attention import make

import regard


RUNS_NOTHING = "void GOMP_parallel(void (*body)(void*), void* data, unsigned n, unsigned flags) {}"

WITH_ANOTHER_RUNTIME = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import numpy as np, regard
from test_arrays import Exporter  # no NumPy array: such calls compute on the OpenMP runtime
q = Exporter(np.ones((1, 8, 256, 64), np.float32))
try:
    regard.attention(q, q, q)
except Exception as error:
    print(error)
"""


def test_an_openmp_runtime_that_runs_nothing_is_noticed(tmp_path):
    source, library = tmp_path / "gomp.c", tmp_path / "libgomp.so.1"
    source.write_text(RUNS_NOTHING)
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libgomp.so.1", "-o", library, source],
                   check=True, timeout=60)
    here = pathlib.Path(__file__).resolve().parent
    ran = subprocess.run([sys.executable, "-c", WITH_ANOTHER_RUNTIME, library], cwd=here, timeout=60,
                         capture_output=True, text=True)
    assert "executor" in ran.stdout and "worker" in ran.stdout, ran


def resident_kib():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_many_threads_at_once():
    q, k, v = make(b=1, hq=4, hkv=4, sq=96, skv=96, d=32)
    expected = regard.attention(q, k, v)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: regard.attention(q, k, v), range(100)):
            assert np.array_equal(out, expected)


def test_the_gil_is_released():
    q, k, v = make(b=1, hq=8, hkv=8, sq=2048, skv=2048, d=64)
    started, ended = threading.Event(), threading.Event()

    def compute():
        started.set()
        regard.attention(q, k, v)
        ended.set()

    ticks = 0
    thread = threading.Thread(target=compute)
    thread.start()
    started.wait(30)
    while not ended.is_set():
        time.sleep(0.0005)
        ticks += 1
    thread.join()
    assert ticks >= 5, "this thread must have run while the other computed"


def _child(pipe, q, k, v):
    with regard.use_policy(only=["efficient"]):
        pipe.send((regard.attention(q, k, v), regard.explain(q, k, v).chosen))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_computes_the_same(method):
    q, k, v = make(b=1, hq=4, hkv=4, sq=96, skv=96, d=32)
    with regard.use_policy(only=["efficient"]):
        expected = regard.attention(q, k, v)
    context = multiprocessing.get_context(method)
    for _ in range(2):
        receiver, sender = context.Pipe()
        child = context.Process(target=_child, args=(sender, q, k, v))
        child.start()
        assert receiver.poll(60), "the child must answer"
        out, chosen = receiver.recv()
        child.join(60)
        assert child.exitcode == 0 and chosen == "efficient" and np.array_equal(out, expected)


def test_a_fork_while_other_threads_compute():
    q, k, v = make(b=1, hq=4, hkv=4, sq=64, skv=64, d=32)
    expected = regard.attention(q, k, v)
    stop = threading.Event()

    def busy():
        n = 0
        while not stop.is_set():  # new keys, so that the plan cache's lock is taken all the time
            n += 1
            regard.attention(q[:, :, : 1 + n % 64], k, v)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            pid = os.fork()
            if pid == 0:
                same = np.array_equal(regard.attention(q, k, v), expected)
                os._exit(0 if same else 1)
            deadline = time.monotonic() + 60
            done = 0
            while not done and time.monotonic() < deadline:
                done, status = os.waitpid(pid, os.WNOHANG)
                time.sleep(0.002)
            if not done:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            assert done and os.waitstatus_to_exitcode(status) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _all_kinds_of_calls(q, k, v, turned):
    regard.attention(q, k, v, return_lse=True, return_scores="probs")
    regard.attention(q, turned, v, seqlens_kv=[5, 3], sinks=[0.0] * 4, window=(2, 2),
                     diagonal="top_left", policy=regard.Policy(prefer=["math"]))
    with regard.use_policy(only=["math"]):
        regard.attention(q, k, v, attn_mask=np.ones(13, bool), backends="math")
    try:
        regard.attention(q, k, v, backends="cudnn")
    except regard.NoBackendError:
        pass
    try:
        regard.attention(q, k, v, layout="HBSD")
    except ValueError:
        pass
    regard.explain(q, turned, v)


def test_memory_does_not_grow():
    q, k, v = make()
    turned = np.asfortranarray(k)

    def calls(count):
        for _ in range(count):
            _all_kinds_of_calls(q, k, v, turned)
        for _ in range(10 * count):
            regard.attention(q, k, v)
        gc.collect()
        return resident_kib()

    before = calls(1000)
    after = calls(6300)
    assert after - before < 1024, f"{before} KiB became {after} KiB over 100,800 calls"


def test_references_are_balanced():
    q, k, v = make()
    turned = np.asfortranarray(k)
    objects = [q, k, v, turned, "BHSD", regard.Policy]
    _all_kinds_of_calls(q, k, v, turned)
    before = [sys.getrefcount(x) for x in objects]
    for _ in range(200):
        _all_kinds_of_calls(q, k, v, turned)
    assert [sys.getrefcount(x) for x in objects] == before


def test_daemon_threads_in_calls_do_not_abort_the_end_of_the_process():
    code = """
import threading, numpy as np, regard
q = np.ones((1, 1, 8, 8), np.float32)
def spin():
    while True:
        regard.attention(q, q, q)
for _ in range(2):
    threading.Thread(target=spin, daemon=True).start()
regard.attention(q, q, q)
"""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
