"""The functions of flash_attn.bert_padding, on tensors of any device, with gradients.

regard.unpad and regard.pad do the same with one descriptor for a batch, regard.Lengths.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..torch._scopes import ArgumentError

__all__ = ["index_first_axis", "pad_input", "unpad_input"]


def _check_tensor(name: str, tensor: Any, dims: int) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} ({type(tensor).__name__}) must be a torch.Tensor")
    if tensor.dim() < dims:
        raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must have at least {dims} "
                            "dimensions")


def _check_mask(name: str, mask: Any, hidden_states: Tensor) -> None:
    _check_tensor(name, mask, 2)
    if mask.shape != hidden_states.shape[:2]:
        raise ArgumentError(f"{name} (of shape {tuple(mask.shape)}) must be [batch, seqlen] of "
                            f"hidden_states, {tuple(hidden_states.shape[:2])}")


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """The rows of input [rows, ...] that indices, int64 [n], name: [n, ...]."""
    _check_tensor("input", input, 1)
    _check_tensor("indices", indices, 1)
    return input.index_select(0, indices)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor,
                unused_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The rows of hidden_states [batch, seqlen, ...] where attention_mask [batch, seqlen], bool or
    integers, is 1, and those where unused_mask is.

    Returns the rows [total, ...]; indices, int64 [total], their positions in the flat batch;
    cu_seqlens, int32 [batch + 1]; the longest length; and how many rows of each sequence
    attention_mask has, int32 [batch]. Raises ArgumentError where the masks hold other numbers than 0 and 1,
    or a position in both.
    """
    _check_tensor("hidden_states", hidden_states, 2)
    _check_mask("attention_mask", attention_mask, hidden_states)
    if unused_mask is not None:
        _check_mask("unused_mask", unused_mask, hidden_states)
    masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = masks.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = masks.flatten().nonzero().flatten()
    longest = int(lengths.max()) if len(lengths) else 0
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    if int(starts[-1]) != len(indices):
        raise ArgumentError(f"attention_mask and unused_mask (with a sum of {int(starts[-1])} at "
                            f"{len(indices)} positions) must be 1 where a position is used, at one of both "
                            "alone, and 0 elsewhere")
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """hidden_states [total, ...] at the positions `indices` of [batch, seqlen, ...]; zeros
    elsewhere."""
    _check_tensor("hidden_states", hidden_states, 1)
    _check_tensor("indices", indices, 1)
    positions = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    return positions.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
