"""Whose threads compute."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import regard
import regard.torch as rt

# Prints the processor's time, in its ticks, of the calling thread and of all others, for calls on
# tensors and then for calls on arrays.
TICKS = """
import os, threading, torch, regard, regard.torch as rt
def ticks():
    spent = {}
    for task in os.listdir("/proc/self/task"):
        fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
        spent[int(task)] = int(fields[11]) + int(fields[12])
    mine = spent.pop(threading.get_native_id())
    return mine, sum(spent.values())
torch.set_num_threads(1)
q = torch.randn(1, 8, 1024, 64)
r = q[:, :, :512].clone().requires_grad_()
a = q.numpy()
def on_tensors():
    rt.scaled_dot_product_attention(q, q, q)
    rt.scaled_dot_product_attention(r, r, r).sum().backward()
for call in (on_tensors, lambda: regard.attention(a, a, a)):
    call()
    before = ticks()
    for _ in range(10):
        call()
    after = ticks()
    print(after[0] - before[0], after[1] - before[1])
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc")
def test_tensors_are_computed_on_pytorchs_threads():
    done = subprocess.run([sys.executable, "-c", TICKS], check=True, capture_output=True, text=True,
                          env=dict(os.environ, REGARD_NUM_THREADS="2"))
    tensors, arrays = ([int(word) for word in row.split()] for row in done.stdout.splitlines())
    assert tensors[1] <= tensors[0] / 20, "one thread was asked for"
    assert arrays[1] > arrays[0] / 4, "arrays are computed on regard's own"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_size_of_the_team_changes_no_bit(threads):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 4, 300, 40), dtype=np.float32) for _ in range(3)]
    expected = regard.attention(*arrays, is_causal=True)
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = rt.scaled_dot_product_attention(*map(torch.from_numpy, arrays), is_causal=True)
    finally:
        torch.set_num_threads(usual)
    assert np.array_equal(out.numpy(), expected)


FORK = """
import os, signal, torch, regard.torch as rt
q = torch.randn(1, 8, 512, 64)
(q @ q.mT).sum()  # PyTorch's team exists, regard has not computed yet
expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
child = os.fork()
if child == 0:
    signal.alarm(60)
    out = rt.scaled_dot_product_attention(q, q, q)
    same = abs(out.numpy() - expected.numpy()).max() < 1e-5  # not by the team that is gone
    os._exit(0 if same else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_wait_for_its_parents_team():
    assert subprocess.run([sys.executable, "-c", FORK], timeout=300, check=False).returncode == 0
