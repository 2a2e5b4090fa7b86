"""The functions of the flash_attn package, on tensors of the CPU or a CUDA device.

Tensors are [batch, positions, heads, head_dim], and [total, heads, head_dim] in the varlen forms,
whose sequences lie one behind another. Causal masks and windows count from the bottom right corner
of each sequence, where its last query stands at its last key.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from ..torch import _call
from ..torch._formula import dropout_factors, formula
from ..torch._inputs import check_alike, check_tensor
from ..torch._options import Options
from ..torch._scopes import ArgumentError
from ._arguments import check_options, flash_lse, options_of
from ._kvcache import flash_attn_with_kvcache

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

WithLse: TypeAlias = "tuple[Tensor, Tensor, Tensor | None]"  # out, softmax_lse, S_dmask
_PADDED = "[batch, positions, heads, head_dim]"
_PACKED = "[total, heads, head_dim]"


def _check(q: Any, k: Any, v: Any, shape: str) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor)
        if tensor.dim() != shape.count(",") + 1:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must be {shape}")
        check_alike(name, tensor, "q", q)
    _call.require_type("q", q)


def _results(out: Tensor, lse: Tensor | None, probs: Tensor | None) -> Any:
    """out alone without lse."""
    return out if lse is None else (out, flash_lse(lse), probs)


def _probs(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor | None:
    """flash_attn's S_dmask: probabilities, negative where dropped; None without dropout."""
    if not options.dropout_p:
        return None
    factors = dropout_factors(q, k, options)
    assert factors is not None
    with torch.no_grad():
        probs = formula(q, k, v, options, factors).probs
    return torch.where(factors == 0, -probs, probs).to(q.dtype)


@overload
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                    softmax_scale: float | None = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: Literal[False] = False) -> Tensor: ...
@overload
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                    softmax_scale: float | None = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False, *,
                    return_attn_probs: Literal[True]) -> WithLse: ...
@overload
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                    softmax_scale: float | None = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Tensor | WithLse: ...
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                    softmax_scale: float | None = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Any:
    """flash_attn.flash_attn_func: out, or (out, softmax_lse, S_dmask) with return_attn_probs.

    q [batch, seqlen_q, heads, head_dim], k and v [batch, seqlen_k, heads_k, head_dim] of one type:
    float16, bfloat16, float32, or float64 on MATH; any head_dim. softmax_lse is [batch, heads,
    seqlen_q].

    Results are always deterministic, so `deterministic` changes nothing. With alibi_slopes
    softmax_lse contains the biases as flash_attn documents them, -slope * |i + seqlen_k - seqlen_q
    - j|; flash_attn's own is shifted by a constant for each row. The softmax_lse of a row without
    keys is inf, as in flash_attn 2.
    """
    q, k, v = _call.autocast(q, k, v)
    _check(q, k, v, _PADDED)
    check_options(window_size, alibi_slopes, softcap, dropout_p, causal=causal,
                  deterministic=deterministic, return_attn_probs=return_attn_probs)
    options = options_of(q, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    if not return_attn_probs and alibi_slopes is None and not dropout_p and (
            _call.kind_of(q, k, v) is _call.NUMBERS):
        return _call.numbers_of_rows(q, k, v, options)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out, lse = _call.attend(q, k, v, options, return_lse=return_attn_probs)
    out = out.transpose(1, 2)
    if not return_attn_probs or lse is None:
        return out
    return _results(out, lse, _probs(q, k, v, options))


@overload
def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0,
                              softmax_scale: float | None = None, causal: bool = False,
                              window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: Literal[False] = False) -> Tensor: ...
@overload
def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0,
                              softmax_scale: float | None = None, causal: bool = False,
                              window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False, *,
                              return_attn_probs: Literal[True]) -> WithLse: ...
@overload
def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0,
                              softmax_scale: float | None = None, causal: bool = False,
                              window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Tensor | WithLse: ...
def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0,
                              softmax_scale: float | None = None, causal: bool = False,
                              window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Any:
    """flash_attn_func of q, k and v in one tensor: qkv [batch, seqlen, 3, heads, head_dim]."""
    q, k, v = _parts("qkv", qkv, 3, "[batch, positions, 3, heads, head_dim]")
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs)


@overload
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0,
                             softmax_scale: float | None = None, causal: bool = False,
                             window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: Literal[False] = False) -> Tensor: ...
@overload
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0,
                             softmax_scale: float | None = None, causal: bool = False,
                             window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False, *,
                             return_attn_probs: Literal[True]) -> WithLse: ...
@overload
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0,
                             softmax_scale: float | None = None, causal: bool = False,
                             window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Tensor | WithLse: ...
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0,
                             softmax_scale: float | None = None, causal: bool = False,
                             window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Any:
    """flash_attn_func of k and v in one tensor: kv [batch, seqlen_k, 2, heads_k, head_dim]."""
    k, v = _parts("kv", kv, 2, "[batch, positions, 2, heads, head_dim]")
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs)


@overload
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                           cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                           deterministic: bool = False, return_attn_probs: Literal[False] = False,
                           block_table: Tensor | None = None) -> Tensor: ...
@overload
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                           cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                           deterministic: bool = False, *, return_attn_probs: Literal[True],
                           block_table: Tensor | None = None) -> WithLse: ...
@overload
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                           cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                           deterministic: bool = False, return_attn_probs: bool = False,
                           block_table: Tensor | None = None) -> Tensor | WithLse: ...
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
                           cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                           dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                           deterministic: bool = False, return_attn_probs: bool = False,
                           block_table: Tensor | None = None) -> Any:
    """flash_attn.flash_attn_varlen_func: sequences that lie one behind another.

    q [total_q, heads, head_dim], k and v [total_k, heads_k, head_dim]. cu_seqlens_q and
    cu_seqlens_k, int32 (or int64) [batch + 1], say with which row each sequence begins, from 0 on;
    max_seqlen_q and max_seqlen_k are the longest lengths, or more. Rows past the last sequence are
    0. Returns out [total_q, heads, head_dim], or (out, softmax_lse, S_dmask) with
    return_attn_probs: softmax_lse is [heads, total_q], S_dmask of the padded call.

    A block_table, the pages of a cache, is refused. The rest is flash_attn_func's.
    """
    if block_table is not None:
        raise ArgumentError(f"block_table ({type(block_table).__name__}) must be None: paged keys and "
                            "values are not supported here")
    q, k, v = _call.autocast(q, k, v)
    _check(q, k, v, _PACKED)
    check_options(window_size, alibi_slopes, softcap, dropout_p, causal=causal,
                  deterministic=deterministic, return_attn_probs=return_attn_probs)
    longest = [_longest(name, value) for name, value in (("max_seqlen_q", max_seqlen_q),
                                                         ("max_seqlen_k", max_seqlen_k))]
    for name, starts in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        _check_starts(name, starts, q)
    options = options_of(q, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    options = options._replace(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k,
                               max_seqlen_q=longest[0], max_seqlen_kv=longest[1])
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out, lse = _call.attend(q, k, v, options, return_lse=return_attn_probs)
    out = out[0].transpose(0, 1)
    if not return_attn_probs or lse is None:
        return out
    return _results(out, lse[0], _probs(q, k, v, options))


@overload
def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                     dropout_p: float = 0.0, softmax_scale: float | None = None,
                                     causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                     softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                     deterministic: bool = False,
                                     return_attn_probs: Literal[False] = False) -> Tensor: ...
@overload
def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                     dropout_p: float = 0.0, softmax_scale: float | None = None,
                                     causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                     softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                     deterministic: bool = False, *,
                                     return_attn_probs: Literal[True]) -> WithLse: ...
@overload
def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                     dropout_p: float = 0.0, softmax_scale: float | None = None,
                                     causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                     softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                     deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Tensor | WithLse: ...
def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                     dropout_p: float = 0.0, softmax_scale: float | None = None,
                                     causal: bool = False,
                                     window_size: tuple[int, int] = (-1, -1),
                                     softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                     deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Any:
    """flash_attn_varlen_func of q, k and v in one tensor: qkv [total, 3, heads, head_dim]."""
    q, k, v = _parts("qkv", qkv, 3, "[total, 3, heads, head_dim]")
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                  dropout_p, softmax_scale, causal, window_size, softcap,
                                  alibi_slopes, deterministic, return_attn_probs)


@overload
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor,
                                    cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: float | None = None,
                                    causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                    softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                    deterministic: bool = False,
                                    return_attn_probs: Literal[False] = False) -> Tensor: ...
@overload
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor,
                                    cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: float | None = None,
                                    causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                    softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                    deterministic: bool = False, *,
                                    return_attn_probs: Literal[True]) -> WithLse: ...
@overload
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor,
                                    cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: float | None = None,
                                    causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                    softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                    deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Tensor | WithLse: ...
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor,
                                    cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: float | None = None,
                                    causal: bool = False,
                                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: Tensor | None = None,
                                    deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Any:
    """flash_attn_varlen_func of k and v in one tensor: kv [total_k, 2, heads_k, head_dim]."""
    k, v = _parts("kv", kv, 2, "[total, 2, heads, head_dim]")
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                  dropout_p, softmax_scale, causal, window_size, softcap,
                                  alibi_slopes, deterministic, return_attn_probs)


def _parts(name: str, packed: Any, count: int, shape: str) -> tuple[Tensor, ...]:
    """The tensors that lie in one, as views of it."""
    check_tensor(name, packed)
    at = packed.dim() - 3
    if packed.dim() != shape.count(",") + 1 or packed.shape[at] != count:
        raise ArgumentError(f"{name} (of shape {tuple(packed.shape)}) must be {shape}")
    return packed.unbind(at)


def _longest(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} ({value!r}) must be an integer, the longest length or more")
    if not isinstance(value, (torch.SymInt, Tensor)) and value < 0:
        raise ArgumentError(f"{name} ({value}) must be at least 0")
    return value if isinstance(value, torch.SymInt) else int(value)


def _check_starts(name: str, starts: Any, q: Tensor) -> None:
    if not isinstance(starts, Tensor):
        raise TypeError(f"{name} ({type(starts).__name__}) must be a torch.Tensor, int32 "
                        "[batch + 1]")
    if starts.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"dtype of {name} ({starts.dtype}) must be torch.int32 or torch.int64")
    if starts.dim() != 1:
        raise ArgumentError(f"{name} (of shape {tuple(starts.shape)}) must be [batch + 1]")
    if starts.device != q.device:
        raise ArgumentError(f"device of {name} ({starts.device}) must be q's, {q.device}")
