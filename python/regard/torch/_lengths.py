"""unpad and pad of torch tensors: on any device, with gradients."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from .._core import Lengths

# A batch's indices on each device that it was used on: copied once, not for every layer.
_indices: weakref.WeakKeyDictionary[Lengths, dict[torch.device, Tensor]] = (
    weakref.WeakKeyDictionary())


def indices_on(lengths: Lengths, device: torch.device) -> Tensor:
    """int64 [total] on that device."""
    copies = _indices.setdefault(lengths, {})
    if device not in copies:
        copies[device] = torch.tensor(lengths.indices, device=device)
    return copies[device]


def unpad(x: Tensor, lengths: Lengths) -> Tensor:
    if tuple(x.shape[:2]) != (lengths.batch, lengths.seqlen):
        raise ValueError(f"shape of x ({tuple(x.shape)}) must begin with batch and seqlen of the "
                         f"lengths, {lengths.batch}, {lengths.seqlen}")
    return x.flatten(0, 1).index_select(0, indices_on(lengths, x.device))


def pad(packed: Tensor, lengths: Lengths) -> Tensor:
    if packed.dim() == 0 or packed.shape[0] != lengths.total:
        raise ValueError(f"shape of packed ({tuple(packed.shape)}) must begin with the rows of the "
                         f"lengths, {lengths.total}")
    positions = packed.new_zeros((lengths.batch * lengths.seqlen, *packed.shape[1:]))
    padded = positions.index_copy(0, indices_on(lengths, packed.device), packed)
    return padded.unflatten(0, (lengths.batch, lengths.seqlen))
