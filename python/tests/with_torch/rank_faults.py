"""Ranks of which one fails in the middle of a call: what test_context_parallel_faults.py runs."""

import os
import signal
import time

import torch
import torch.distributed as dist

import regard.torch
from regard.torch._group import Communicator

TIMEOUT = 1.0


def _fail(kind):
    if kind == "raise":
        raise KeyError("planted")
    if kind == "exit":
        os._exit(3)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600 if kind == "sleep" else TIMEOUT / 4)  # "delay": the others wait for it


def attend(rank, size, comm, kind, victim, message):
    """Seconds until the error, and its text; None where the call succeeds. The victim fails before it begins to send
    or receive that message."""
    group = dist.group.WORLD
    q, k, v = (torch.randn(1, size, 3, 8, requires_grad=True) for _ in range(3))
    begun = 0

    def counted(begin):
        def counting(self, peer, tag, data):
            nonlocal begun
            begun += 1
            if rank == victim and begun == message:
                _fail(kind)
            return begin(self, peer, tag, data)

        return counting

    dist.barrier()
    Communicator.isend, Communicator.irecv = counted(Communicator.isend), counted(Communicator.irecv)
    start = time.monotonic()
    try:
        with regard.torch.context_parallel(group, comm=comm, timeout=TIMEOUT):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        out.sum().backward()
    except KeyError:
        time.sleep(3600)  # the process lives on without another message, as under a debugger
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return None if begun >= message else "too few messages"
