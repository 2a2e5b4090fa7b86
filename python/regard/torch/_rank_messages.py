"""Exchanges of tensors between ranks, with the rank and the step in every error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._group import Communicator

BLOCKS, GRADIENTS, HEADS = 0, 1, 2  # tags
CHUNK = 1 << 31  # bytes of a message at most; tests lower it


class Messages:
    """The messages of one call over some ranks of a group. Every wait ends `timeout` seconds after it begins."""

    def __init__(self, link: Communicator, comm: str, timeout: float) -> None:
        self.link, self.comm, self.timeout = link, comm, timeout
        self.step = 0
        self._sends: list[Any] = []

    def send(self, tag: int, peer: int, tensor: Tensor) -> None:
        """Begins to send a contiguous tensor; finish() waits. An empty one is no message."""
        data = _bytes(tensor)
        for begin in range(0, data.numel(), CHUNK):
            part = data[begin:begin + CHUNK]
            self._sends.append(self._begun(self.link.isend, peer, tag, part))

    def receive(self, tag: int, peer: int, tensor: Tensor) -> list[Any]:
        """Begins to receive into a contiguous tensor; wait() waits for what it returns. Messages of one tag and peer
        arrive in the order in which they were sent."""
        data, begun = _bytes(tensor), []
        for begin in range(0, data.numel(), CHUNK):
            part = data[begin:begin + CHUNK]
            begun.append(self._begun(self.link.irecv, peer, tag, part))
        return begun

    def _begun(self, begin: Callable[..., Any], peer: int, tag: int, part: Tensor) -> Any:
        """The message, its rank and its step, and its memory, which lives as long."""
        try:
            return begin(peer, tag, part.numpy()), peer, self.step, part
        except RuntimeError as error:  # the peer is known to have ended
            raise self._failed(peer, self.step, error) from error

    def _failed(self, peer: int, step: int, error: RuntimeError) -> RuntimeError:
        return RuntimeError(f"[context_parallel] rank {self.link.rank}, step {step} of {self.comm}: no message to or from "
                            f"rank {peer}; it ended, or took longer than {self.timeout:g} s: {error}")

    def wait(self, begun: list[Any]) -> None:
        end = time.monotonic() + self.timeout
        for work, peer, step, _ in begun:
            try:
                self.link.wait(work, end - time.monotonic())
            except RuntimeError as error:
                raise self._failed(peer, step, error) from error

    def finish(self) -> None:
        """Waits for everything that was sent."""
        self.wait(self._sends)
        self._sends = []


class Pair:
    """Two tensors in one message."""

    def __init__(self, shapes: Sequence[Sequence[int]], like: Tensor, dtype: torch.dtype | None = None) -> None:
        counts = [math.prod(shape) for shape in shapes]
        self.whole = torch.empty(sum(counts), dtype=dtype or like.dtype, device=like.device)
        self.first, self.second = (part.view(*shape) for part, shape in zip(self.whole.split(counts), shapes))


def _bytes(tensor: Tensor) -> Tensor:
    assert tensor.is_contiguous()
    return tensor.detach().reshape(-1).view(torch.uint8)
