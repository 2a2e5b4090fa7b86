"""Which part of a sequence each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ._group import TIMEOUT, gather, ranks_of
from ._scopes import ArgumentError

LAYOUTS = ("contiguous", "zigzag", "per_document")
Pieces = list[tuple[int, int]]  # (first position, length), in the order of a rank's tensors


def check_layout(layout: Any, cu_seqlens: Any) -> list[int] | None:
    """cu_seqlens as numbers; raises where they or the layout cannot be."""
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout ({layout!r}) must be one of {', '.join(map(repr, LAYOUTS))}")
    if cu_seqlens is None:
        if layout == "per_document":
            raise ArgumentError("cu_seqlens (None) must state where documents begin with layout='per_document'")
        return None
    given = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens
    if not isinstance(given, Sequence) or not all(type(each) is int for each in given):
        raise TypeError(f"cu_seqlens ({cu_seqlens!r}) must be a list or a tensor of integers")
    if len(given) < 1 or given[0] != 0 or any(a > b for a, b in zip(given, given[1:])):
        raise ArgumentError(f"cu_seqlens ({list(given)}) must ascend from 0")
    return list(given)


def pieces_of(layout: str, length: int, ranks: int, starts: list[int] | None) -> list[Pieces]:
    """Of each rank the pieces (first position, length) of a sequence, in the order of its tensors."""
    if starts is not None and starts[-1] != length:
        raise ArgumentError(f"cu_seqlens (last {starts[-1]}) must end at the length of the sequence, {length}")
    return _core.rank_pieces(layout, length, ranks, starts or [])


def length_of(lengths: list[int], layout: str, starts: list[int] | None, what: str) -> int:
    """The whole sequence's length; raises where the ranks' lengths are not those of the layout."""
    length = sum(lengths)
    expected = [sum(n for _, n in own) for own in pieces_of(layout, length, len(lengths), starts)]
    if lengths != expected:
        raise ArgumentError(f"{what} of the ranks ({lengths}) must be those of layout={layout!r} for "
                            f"{length} positions, {expected}")
    return length


def _dim_of(tensor: Any, dim: Any) -> int:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor ({type(tensor).__name__}) must be a torch.Tensor")
    if type(dim) is not int or not -tensor.dim() <= dim < tensor.dim():
        raise ArgumentError(f"dim ({dim!r}) must be a dimension of tensor, of shape {tuple(tensor.shape)}")
    return dim % tensor.dim()


def context_parallel_shard(tensor: Tensor, mesh: Any, dim: int = 1, layout: str = "contiguous",
                           cu_seqlens: Any = None) -> Tensor:
    """This rank's part of a tensor that every rank has whole: of torch.arange(S) its positions.

    tensor [..., S, ...] has the sequence at `dim`, [batch, S] by default; the result has as many of its
    positions as the layout gives this rank, in ascending order within each piece, perhaps none.
    Nothing is sent. Gradients pass through. mesh is a DeviceMesh or a ProcessGroup.

    layout: "contiguous" gives rank r the r-th part; "zigzag" cuts into twice as many chunks and gives
    it chunk r and the r-th from the end, which balances causal attention; "per_document" balances the
    documents that cu_seqlens [documents + 1] states. Any length and any number of ranks will do.

        >>> import torch, torch.distributed as dist, regard.torch
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> regard.torch.context_parallel_shard(torch.arange(6), dist.group.WORLD, dim=0, layout="zigzag")
        tensor([0, 1, 2, 3, 4, 5])
        >>> dist.destroy_process_group()

    Raises TypeError or regard.torch.ArgumentError for an argument.

    More: `python -m regard docs distributed`.
    """
    dim, starts, group = _dim_of(tensor, dim), check_layout(layout, cu_seqlens), ranks_of(mesh).group
    own = pieces_of(layout, tensor.shape[dim], group.size(), starts)[group.rank()]
    parts = [tensor.narrow(dim, begin, length) for begin, length in own]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, dim) if parts else tensor.narrow(dim, 0, 0)


@torch.no_grad()
def context_parallel_unshard(tensor: Tensor, mesh: Any, dim: int = 1, layout: str = "contiguous",
                             cu_seqlens: Any = None) -> Tensor:
    """The whole tensor, on every rank, of the parts that ranks have: the inverse of
    context_parallel_shard, with the same arguments.

    tensor [..., S of this rank, ...] is on the CPU. The result needs no gradient, as PyTorch's
    context_parallel_unshard. Every rank of the group must call it.

        >>> import torch, torch.distributed as dist, regard.torch
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> regard.torch.context_parallel_unshard(torch.arange(6), dist.group.WORLD, dim=0)
        tensor([0, 1, 2, 3, 4, 5])
        >>> dist.destroy_process_group()

    Raises TypeError or regard.torch.ArgumentError for an argument or for parts that do not fit together,
    RuntimeError where a rank sends nothing for a minute.

    More: `python -m regard docs distributed`.
    """
    dim, starts, group = _dim_of(tensor, dim), check_layout(layout, cu_seqlens), ranks_of(mesh).group
    if tensor.device.type != "cpu":
        raise ArgumentError(f"device of tensor ({tensor.device}) must be cpu")
    parts = gather(group, tensor, dim, TIMEOUT)
    lengths = [part.shape[dim] for part in parts]
    length = length_of(lengths, layout, starts, f"lengths of dimension {dim}")
    shape = list(tensor.shape)
    shape[dim] = length
    whole = tensor.new_empty(shape)
    for part, own in zip(parts, pieces_of(layout, length, group.size(), starts)):
        at = 0
        for begin, count in own:
            whole.narrow(dim, begin, count).copy_(part.narrow(dim, at, count))
            at += count
    return whole
