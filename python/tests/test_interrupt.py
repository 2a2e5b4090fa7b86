"""Signals during a long call: Ctrl-C arrives within a second, other handlers run."""

import subprocess
import sys

import pytest

# One thread and MATH: each call takes 10 s and more without the signal, wherever it runs.
PROGRAM = """
import os, signal, sys, threading, time
os.environ["REGARD_NUM_THREADS"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have ignored it
import numpy as np
import regard

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 32, 16384, 64), dtype=np.float32) for _ in range(3))
zeros = np.zeros_like(v)
small = [x[:, :, :64] for x in (q, k, v)]
expected = regard.attention(*small)
policy = regard.Policy(only=sys.argv[2])

def forward():
    return regard.attention(q, k, v, policy=policy)

def paged():
    pages = [x.reshape(16384, 32, 1, 64) for x in (k, v)]  # one row each
    table = np.arange(16384, dtype=np.int32)[None]
    return regard.attention(q, *pages, page_table=table, seqlens_kv=[16384], policy=policy)

def backward():
    saved = regard.Saved(lse=np.zeros(q.shape[:3], np.float32), backend=sys.argv[2])
    return regard.attention_backward(v, q, k, v, zeros, saved)

def send(sent):
    time.sleep(0.5)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

sent = []
threading.Thread(target=send, args=(sent,)).start()
try:
    {"forward": forward, "paged": paged, "backward": backward}[sys.argv[1]]()
except KeyboardInterrupt:
    late = time.monotonic() - sent[0]
    print(f"{late:.2f} s after the signal", file=sys.stderr)
    assert late < 1
else:
    sys.exit("the call ended before the signal")
assert np.array_equal(regard.attention(*small), expected)

calls = []
signal.signal(signal.SIGALRM, lambda *_: calls.append(threading.current_thread()))
signal.setitimer(signal.ITIMER_REAL, 0.05)
out = regard.attention(*(x[:, :, :2048] for x in (q, k, v)), policy=policy)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert calls in ([], [threading.main_thread()])  # empty: a machine on which this is over before
again = regard.attention(*(x[:, :, :2048] for x in (q, k, v)), policy=policy)
assert np.array_equal(out, again)
print("done")
"""


@pytest.mark.parametrize("backend", ["math", "flash"])
@pytest.mark.parametrize("direction", ["forward", "paged", "backward"])
def test_ctrl_c_ends_a_long_call(direction, backend):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, direction, backend], capture_output=True,
                         text=True, timeout=120)
    assert ran.stdout == "done\n" and ran.returncode == 0, ran.stderr
