"""Messages between the ranks of a torch.distributed process group."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ._scopes import ArgumentError

TIMEOUT = 60.0  # seconds, where the caller names none
_FIRST_TAG = 1 << 20  # messages of other code in the same group have smaller tags
_GATHER_TAG = 1 << 19  # of gather(), among regard's own
_MAX_DIMS = 8
MAX_MESSAGE = 1 << 30  # bytes; a longer message is sent in chunks. Tests lower it.


class Communicator:
    """What _core.attention_ranks requires of a transport, over a process group.

    Data are buffers of bytes in host memory. wait() raises RuntimeError where the peer ended or sent
    nothing in time; after that the group is of no use, as any gloo group with a failed message.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.size: int = group.size()

    def isend(self, peer: int, tag: int, data: Any) -> Any:
        """Begins to send the buffer, which must stay as it is until wait()."""
        return self.group.send([torch.frombuffer(data, dtype=torch.uint8)], peer, _FIRST_TAG + tag)

    def irecv(self, peer: int, tag: int, data: Any) -> Any:
        """Begins to receive into the buffer, whose length is that of the message."""
        return self.group.recv([torch.frombuffer(data, dtype=torch.uint8)], peer, _FIRST_TAG + tag)

    @staticmethod
    def wait(work: Any, seconds: float) -> None:
        """Returns once the message was sent or received. gloo takes 0 for no limit."""
        work.wait(timedelta(seconds=max(seconds, 0.001)))


class Ranks(NamedTuple):
    """The ranks that share a sequence."""

    group: dist.ProcessGroup
    topology: tuple[int, int]  # groups, and ranks of each; (1, size) where all are alike


def ranks_of(mesh: Any) -> Ranks:
    """Those of a DeviceMesh of one or two dimensions, or of a process group."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("torch.distributed must be initialised: call init_process_group('gloo') first")
    if isinstance(mesh, dist.ProcessGroup):
        group, topology = mesh, (1, mesh.size())
    elif isinstance(mesh, dist.device_mesh.DeviceMesh):
        if mesh.ndim > 2:
            raise ArgumentError(f"mesh (of {mesh.ndim} dimensions) must have 1, the ranks, or 2, groups "
                                "and the ranks of each; mesh['name'] chooses")
        group = mesh.get_group() if mesh.ndim == 1 else _flat_group(mesh)
        topology = (1, mesh.size()) if mesh.ndim == 1 else (mesh.size(0), mesh.size(1))
    else:
        raise TypeError(f"mesh ({type(mesh).__name__}) must be a torch.distributed DeviceMesh or ProcessGroup")
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        backend = None
    if backend is None:
        raise ArgumentError(f"mesh (a group of {group.name()}) must have a backend for CPU tensors: "
                            "init_process_group('gloo') or ('cpu:gloo,cuda:nccl')")
    return Ranks(group, topology)


def _flat_group(mesh: Any) -> dist.ProcessGroup:
    if mesh.mesh.flatten().tolist() == list(range(dist.get_world_size())):
        group = dist.group.WORLD
        assert group is not None
        return group
    flat: dist.ProcessGroup = mesh._flatten().get_group()  # the mesh keeps it
    return flat


def gather(group: dist.ProcessGroup, tensor: Tensor, dim: int, seconds: float) -> list[Tensor]:
    """The tensor of every rank, in the order of ranks. Extents of `dim` may differ, nothing else."""
    link, deadline = Communicator(group), time.monotonic() + seconds
    header = torch.zeros(_MAX_DIMS + 2, dtype=torch.int64)
    header[0], header[1] = _number_of(tensor.dtype), tensor.dim()
    header[2:2 + tensor.dim()] = torch.tensor(tensor.shape, dtype=torch.int64)
    headers = [header.clone() for _ in range(link.size)]
    _exchange(link, "shapes", header, headers, _GATHER_TAG, deadline)
    for rank, other in enumerate(headers):
        same = other.clone()
        same[2 + dim] = header[2 + dim]
        if not torch.equal(same, header):
            raise ArgumentError(f"tensor of rank {rank} ({_words(other)}) must be that of rank {link.rank} "
                                f"({_words(header)}) but for dimension {dim}")
    parts = []
    for other in headers:
        shape = list(tensor.shape)
        shape[dim] = int(other[2 + dim])
        parts.append(tensor.new_empty(shape))
    _exchange(link, "parts", tensor.detach().contiguous(), parts, _GATHER_TAG + 1, deadline)
    return parts


def _exchange(link: Communicator, what: str, own: Tensor, parts: list[Tensor], tag: int, deadline: float) -> None:
    """Sends `own` to every rank and receives theirs into `parts`."""
    work = []
    rank = link.rank
    try:
        for rank, part in enumerate(parts):
            if rank == link.rank:
                part.copy_(own)
                continue
            if own.numel():
                work.append((rank, link.isend(rank, tag, _bytes(own))))
            if part.numel():
                work.append((rank, link.irecv(rank, tag, _bytes(part))))
        for rank, each in work:
            link.wait(each, deadline - time.monotonic())
    except RuntimeError as error:
        raise RuntimeError(f"[context_parallel] rank {link.rank}: no message to or from rank {rank} in the exchange of "
                           f"{what}; it ended, or was late: {error}") from error


def _bytes(tensor: Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()


_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)


def _number_of(dtype: torch.dtype) -> int:
    if dtype not in _TYPES:
        raise ArgumentError(f"dtype of tensor ({dtype}) must be one of {[str(each) for each in _TYPES]}")
    return _TYPES.index(dtype)


def _words(header: Tensor) -> str:
    kind, dims, *shape = header.tolist()
    return f"{_TYPES[kind]} of shape {tuple(shape[:dims])}"
