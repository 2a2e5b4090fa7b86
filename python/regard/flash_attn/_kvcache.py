"""flash_attn_with_kvcache: attention on a cache, which new rows are appended to first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..torch._call import numbers_of_rows, require_type
from ..torch._inputs import check_alike, check_tensor
from ..torch._scopes import ArgumentError
from ._arguments import check_options, flash_lse, options_of


def _check_cache(q: Any, tensors: dict[str, Any]) -> None:
    check_tensor("q", q)
    require_type("q", q)
    if q.device.type != "cpu":
        raise ArgumentError(f"device of q ({q.device}) must be cpu: no CUDA backend reads a cache")
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
        check_alike(name, tensor, "q", q)
    for name, tensor in {"q": q, **tensors}.items():
        if tensor.dim() != 4:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must have 4 dimensions")


def _integers(name: str, tensor: Any, dims: int) -> Any:
    check_tensor(name, tensor)
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != dims:
        raise ArgumentError(f"{name} ({tensor.dtype}, of shape {tuple(tensor.shape)}) must be int32 of "
                            f"{dims} dimension{'s' if dims > 1 else ''}")
    return tensor.detach().cpu().numpy()


def _seqlens(cache_seqlens: Any, batch: int, rows: int) -> Any:
    if cache_seqlens is None:
        return [rows] * batch
    if isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool):
        return [cache_seqlens] * batch
    return _integers("cache_seqlens", cache_seqlens, 1)


def _rotary(q: Tensor, cos: Any, sin: Any, interleaved: bool, has_new: bool) -> dict[str, Any]:
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        if table is None:
            raise ArgumentError(f"{name} (None) must be given: rotary_cos and rotary_sin, or neither")
        check_tensor(name, table)
        if table.dim() != 2 or table.dtype not in (torch.float32, q.dtype):
            raise ArgumentError(f"{name} ({table.dtype}, of shape {tuple(table.shape)}) must be "
                                "[positions, rotary_dim / 2] in q's type or float32")
    if not has_new:
        raise ArgumentError("k (None) must be given with rotary_cos, which rotates new rows")
    return {"rotary_cos": cos.detach(), "rotary_sin": sin.detach(), "rotary_interleaved": interleaved}


def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
        cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None, num_splits: int = 0,
        return_softmax_lse: bool = False) -> Any:
    """flash_attn.flash_attn_with_kvcache on tensors of the CPU: out, or (out, softmax_lse) with
    return_softmax_lse.

    q is [batch, seqlen_q, heads, head_dim]; k_cache and v_cache are [batch_cache, seqlen_cache,
    heads_k, head_dim], or with a block_table, int32 [batch, blocks], pages [num_blocks, page_size,
    heads_k, head_dim]; page_size may be any number. All are of one type: float32, float16 or bfloat16.
    cache_seqlens, an int or int32 [batch], are the rows that each sequence has (all, without them).
    k and v [batch, seqlen_new, heads_k, head_dim] are written behind these rows, in place, and then
    seen; they need cache_seqlens. softmax_lse is [batch, heads, seqlen_q] in float32.

    Causal masks and windows count from the last row. num_splits changes nothing: keys are split by
    the length of each sequence. rotary_cos and rotary_sin [positions, rotary_dim / 2] rotate k, and q, by
    the rows before each; rotary_interleaved=False pairs elements that lie rotary_dim / 2 apart.
    Raises ArgumentError for cache_leftpad, which is not supported, and wherever a row does not fit, before anything is written. There is no
    backward: the result requires no gradients.

        >>> import torch
        >>> from regard.flash_attn import flash_attn_with_kvcache
        >>> cache = torch.zeros(2, 64, 2, 32)
        >>> new = torch.ones(2, 1, 2, 32)
        >>> flash_attn_with_kvcache(torch.ones(2, 1, 8, 32), cache, cache.clone(), new, new,
        ...                         cache_seqlens=5, causal=True).shape
        torch.Size([2, 1, 8, 32])

    More: `python -m regard docs pytorch`.
    """
    if cache_leftpad is not None:
        raise ArgumentError("cache_leftpad (given) must be None: it is not supported")
    new = {name: x for name, x in (("k", k), ("v", v)) if x is not None}
    _check_cache(q, {"k_cache": k_cache, "v_cache": v_cache, **new})
    if len(new) == 1:
        raise ArgumentError("k and v must both be given, or neither")
    if new and cache_seqlens is None:
        raise ArgumentError("cache_seqlens (None) must be given with k and v, which follow these rows")
    check_options(window_size, alibi_slopes, softcap, causal=causal,
                  return_softmax_lse=return_softmax_lse)
    options = options_of(q, softmax_scale, causal, window_size, softcap,
                         None if alibi_slopes is None else alibi_slopes.detach())
    cache: dict[str, Any] = {name: x.detach() for name, x in (("k_new", k), ("v_new", v))
                             if x is not None}
    if rotary_cos is not None or rotary_sin is not None:
        cache.update(_rotary(q, rotary_cos, rotary_sin, rotary_interleaved, has_new=bool(new)))
    pages = 1
    if block_table is not None:
        cache["page_table"] = _integers("block_table", block_table, 2)
        pages = block_table.shape[1]
    if cache_batch_idx is not None:
        cache["cache_batch_idx"] = _integers("cache_batch_idx", cache_batch_idx, 1)
    elif block_table is None:  # a cache may have room for more sequences
        k_cache, v_cache = k_cache[:q.shape[0]], v_cache[:q.shape[0]]
    made = numbers_of_rows(
        q.detach(), k_cache.detach(), v_cache.detach(), options, return_lse=return_softmax_lse,
        seqlens_kv=_seqlens(cache_seqlens, q.shape[0], k_cache.shape[1] * pages), **cache)
    return (made[0], flash_lse(made[1])) if return_softmax_lse else made
