"""flash_attn_with_kvcache: attention on a cache, which new rows are appended to first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..torch._inputs import check_alike
from ..torch._kvcache import CacheOptions, attend, check_integers, check_rotary, check_rows
from ..torch._scopes import ArgumentError
from ._arguments import check_options, flash_lse, options_of


def _seqlens(cache_seqlens: Any, q: Tensor, rows: int) -> Tensor:
    """int32 [batch]"""
    if isinstance(cache_seqlens, Tensor):
        check_integers("cache_seqlens", cache_seqlens, 1, q)
        return cache_seqlens
    given = rows if cache_seqlens is None else cache_seqlens
    if not isinstance(given, (int, torch.SymInt)) or isinstance(given, bool):
        raise TypeError(f"cache_seqlens ({given!r}) must be an integer, a torch.Tensor or None")
    length: Any = given  # a SymInt in a graph
    return torch.full((q.shape[0],), length, dtype=torch.int32, device=q.device)


def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
        cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None, num_splits: int = 0,
        return_softmax_lse: bool = False) -> Any:
    """flash_attn.flash_attn_with_kvcache on tensors of the CPU or, in a build with CUDA, of a CUDA device:
    out, or (out, softmax_lse) with return_softmax_lse.

    q is [batch, seqlen_q, heads, head_dim]; k_cache and v_cache are [batch_cache, seqlen_cache,
    heads_k, head_dim], or with a block_table, int32 [batch, blocks], pages [num_blocks, page_size,
    heads_k, head_dim]; page_size may be any number. All are of one type: float32, float16 or bfloat16.
    cache_seqlens, an int or int32 [batch], are the rows that each sequence has (all, without them).
    k and v [batch, seqlen_new, heads_k, head_dim] are written behind these rows, in place, and then
    seen; they need cache_seqlens. The first cache_leftpad rows of each sequence, int32 [batch], are no
    keys; cache_seqlens count them, and so do rotary positions. softmax_lse is [batch, heads, seqlen_q]
    in float32.

    Causal masks and windows count from the last row. num_splits changes nothing: keys are split by
    the length of each sequence. rotary_cos and rotary_sin [positions, rotary_dim / 2] rotate k, and q, by
    the rows before each; rotary_interleaved=False pairs elements that lie rotary_dim / 2 apart.
    torch.compile and torch.export record one operator, regard::kvcache_append_attention, or
    regard::kvcache_attention without k and v. There is no backward: the result requires no gradients.

    Raises ArgumentError wherever a row does not fit, before anything is written.

        >>> import torch
        >>> from regard.flash_attn import flash_attn_with_kvcache
        >>> cache = torch.zeros(2, 64, 2, 32)
        >>> new = torch.ones(2, 1, 2, 32)
        >>> flash_attn_with_kvcache(torch.ones(2, 1, 8, 32), cache, cache.clone(), new, new,
        ...                         cache_seqlens=5, causal=True).shape
        torch.Size([2, 1, 8, 32])

    More: `python -m regard docs pytorch`.
    """
    new = {name: x for name, x in (("k", k), ("v", v)) if x is not None}
    rows = {"k_cache": k_cache, "v_cache": v_cache, **new}
    check_rows(q, rows)
    for name, tensor in rows.items():
        check_alike(name, tensor, "q", q)
    if len(new) == 1:
        raise ArgumentError("k and v must both be given, or neither")
    if new and cache_seqlens is None:
        raise ArgumentError("cache_seqlens (None) must be given with k and v, which follow these rows")
    check_options(window_size, alibi_slopes, softcap, causal=causal,
                  return_softmax_lse=return_softmax_lse)
    options = options_of(q, softmax_scale, causal, window_size, softcap, alibi_slopes)
    check_rotary(q, rotary_cos, rotary_sin)
    if rotary_cos is not None and not new:
        raise ArgumentError("k (None) must be given with rotary_cos, which rotates new rows")
    pages = 1
    if block_table is not None:
        check_integers("block_table", block_table, 2, q)
        pages = block_table.shape[1]
    if cache_leftpad is not None:
        check_integers("cache_leftpad", cache_leftpad, 1, q)
    if cache_batch_idx is not None:
        check_integers("cache_batch_idx", cache_batch_idx, 1, q)
    elif block_table is None:  # a cache may have room for more sequences
        k_cache, v_cache = k_cache[:q.shape[0]], v_cache[:q.shape[0]]
    cache = CacheOptions(block_table, cache_batch_idx, cache_leftpad, None, None, rotary_cos, rotary_sin,
                         rotary_interleaved and rotary_cos is not None)
    lengths = _seqlens(cache_seqlens, q, k_cache.shape[1] * pages)
    with torch.no_grad():
        made = attend(q, k_cache, v_cache, {f"{name}_new": x for name, x in new.items()}, cache,
                      options._replace(seqlens_kv=lengths), "BSHD", return_softmax_lse)
    return (made[0], flash_lse(made[1])) if return_softmax_lse else made
