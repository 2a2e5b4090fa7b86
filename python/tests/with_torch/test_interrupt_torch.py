"""Ctrl-C during a long call on PyTorch's tensors, which computes on PyTorch's own threads."""

import subprocess
import sys

import pytest

# Each call takes 10 s and more on one thread.
PROGRAM = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have ignored it
import torch
import regard.torch

torch.set_num_threads(int(sys.argv[2]))
q, k, v = (torch.randn(1, 32, 16384, 64, requires_grad=True) for _ in range(3))
zeros = torch.zeros_like(v)
sent = []

def send():
    time.sleep(0.5)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

def forward():
    return regard.torch.scaled_dot_product_attention(q, k, v)

def backward():
    saved = regard.Saved(lse=torch.zeros(q.shape[:3]), backend="flash")
    with torch.no_grad():
        regard.attention_backward(v, q, k, v, zeros, saved)

threading.Thread(target=send).start()
try:
    {"forward": forward, "backward": backward}[sys.argv[1]]()
except KeyboardInterrupt:
    late = time.monotonic() - sent[0]
    print(f"{late:.2f} s")
    assert late < 1
else:
    sys.exit("the call ended before the signal")
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_ctrl_c_ends_a_long_call(direction, threads):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, direction, threads], capture_output=True,
                         text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
