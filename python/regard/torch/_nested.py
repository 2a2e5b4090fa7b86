"""Nested tensors of the jagged layout: sequences of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._call import autocast
from ._inputs import Arguments, checked_numbers
from ._options import DROPOUT_STEPS, Options, kept_steps, seed_of
from ._packed import attend_packed, check_packed
from ._scopes import ArgumentError


def has_nested(*tensors: Any) -> bool:
    return any([isinstance(x, Tensor) and x.is_nested for x in tensors])


def is_jagged(tensor: Tensor) -> bool:
    """Whether it is a nested tensor of the layout that PyTorch recommends."""
    return tensor.is_nested and tensor.layout == torch.jagged


def _three(given: Arguments) -> tuple[Any, Any, Any]:
    """query, key and value, whose class PyTorch does not publish."""
    return given.query, given.key, given.value


def _check(given: Arguments) -> None:
    tensors = _three(given)
    for name, tensor in zip(("query", "key", "value"), tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} ({type(tensor).__name__}) must be a torch.Tensor")
        if not tensor.is_nested:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must be a nested tensor where "
                                "another of query, key and value is one")
        if not is_jagged(tensor):
            raise ArgumentError(f"layout of {name} (nested, {tensor.layout}) must be torch.jagged")
        if tensor.dim() not in (3, 4):
            raise ArgumentError(f"{name} (of {tensor.dim()} dimensions) must have 3 or 4, [batch, "
                                "heads, positions, head_dim] or [batch, positions, head_dim]")
    for name, tensor in zip(("query", "key", "value"), tensors):
        if tensor.dim() != given.query.dim() or tensor._ragged_idx != tensors[0]._ragged_idx:
            raise ArgumentError(f"{name} (of {tensor.dim()} dimensions, ragged in dimension "
                                f"{tensor._ragged_idx}) must be ragged where query is, in dimension "
                                f"{tensors[0]._ragged_idx} of {tensors[0].dim()}")
    if given.attn_mask is not None:
        raise ArgumentError("attn_mask must be None with nested tensors; is_causal=True is counted "
                            "within each sequence")


def _rows(x: Any) -> Any:
    """[total, heads, head_dim] of [batch, heads, positions, head_dim], or without heads."""
    return x.transpose(1, 2).values() if x.dim() == 4 else x.values().unsqueeze(1)


def _like(query: Any, values: Tensor) -> Any:
    """A nested tensor of these values, its sequences those of query."""
    return torch.nested.nested_tensor_from_jagged(
        values, query.offsets(), query.lengths(), min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen)


def _check_same_sequences(key: Any, value: Any) -> None:
    starts = key.offsets(), value.offsets()
    if starts[0] is starts[1] or torch.compiler.is_compiling():
        return
    if not torch.equal(*starts):
        raise ArgumentError("value must have key's sequences, of the same lengths")


def _options(given: Arguments, q: Tensor) -> Options:
    query, key, _ = _three(given)
    options = Options(softmax_scale=given.scale, is_causal=given.is_causal, diagonal="top_left",
                      seqlens_q=query.lengths(), seqlens_kv=key.lengths(),
                      cu_seqlens_q=query.offsets(), cu_seqlens_kv=key.offsets(),
                      max_seqlen_q=query._maybe_max_seqlen or 0,
                      max_seqlen_kv=key._maybe_max_seqlen or 0)
    if 0 < kept_steps(given.dropout_p) < DROPOUT_STEPS:
        options = options._replace(dropout_p=given.dropout_p, rng=seed_of(q))
    return options


def nested_attention(given: Arguments, dense: Callable[[Arguments], Tensor]) -> Any:
    """scaled_dot_product_attention of nested tensors. `dense` is that of others: for tensors whose
    batch is ragged, [batch, ragged, positions, head_dim], each of which is a batch of its own."""
    cast = autocast(*given[:3])
    given = checked_numbers(given._replace(query=cast[0], key=cast[1], value=cast[2]))
    _check(given)
    query, key, value = _three(given)
    _check_same_sequences(key, value)
    if query.dim() == 4 and query._ragged_idx == 1:
        return _like(query, dense(given._replace(query=query.values(), key=key.values(),
                                                 value=value.values())))
    if query._ragged_idx != query.dim() - 2:
        raise ArgumentError(f"query (ragged in dimension {query._ragged_idx}) must be ragged in its "
                            "positions, [batch, heads, positions, head_dim]")
    q, k, v = _rows(query), _rows(key), _rows(value)
    check_packed((q, k, v), (query.offsets(), key.offsets()),
                 ("query", "key", "value", "offsets of query", "offsets of key"))
    if q.shape[1] != k.shape[1] and not given.enable_gqa:
        raise ArgumentError(f"number of heads in key ({k.shape[1]}) must be query's ({q.shape[1]}); "
                            "enable_gqa=True lets it divide them")
    out, _ = attend_packed(q, k, v, _options(given, q))
    if kept_steps(given.dropout_p) == 0:
        out = out * 0.0
    return _like(query, out.squeeze(1)) if query.dim() == 3 else _like(query, out).transpose(1, 2)
