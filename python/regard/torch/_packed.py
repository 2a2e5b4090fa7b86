"""Attention over packed sequences: the rows of all sequences one behind another."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from . import _call
from ._inputs import check_alike, check_tensor
from ._options import Options
from ._scopes import ArgumentError

try:
    from torch.nn.attention.varlen import AuxRequest as AuxRequest
except ImportError:  # PyTorch before 2.10
    from typing import NamedTuple

    class AuxRequest(NamedTuple):  # type: ignore[no-redef]
        """Which results varlen_attn returns besides out."""

        lse: bool = False

_INDEX_TYPES = (torch.int32, torch.int64)
NAMES = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv")


def attend_packed(q: Tensor, k: Tensor, v: Tensor, options: Options, return_lse: bool = False,
                  backends: str = "") -> tuple[Tensor, Tensor | None]:
    """out [total_q,Hq,Dv] and lse [Hq,total_q] of q [total_q,Hq,D], k and v [total_kv,Hkv,.].

    options.cu_seqlens_q and cu_seqlens_kv say where each sequence begins, and max_seqlen_q and
    max_seqlen_kv the longest lengths (0: read from cu_seqlens). Masks and biases are those of the
    padded call. lse may be None where it was not requested. check_packed checks the arguments.
    """
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    out, lse = _call.attend(q, k, v, options, return_lse, backends)
    return out.squeeze(0).transpose(0, 1), None if lse is None else lse.squeeze(0)


def _check_starts(name: str, starts: Any, device: torch.device) -> None:
    if not isinstance(starts, Tensor):
        raise TypeError(f"{name} ({type(starts).__name__}) must be a torch.Tensor of int32 or int64")
    if starts.dtype not in _INDEX_TYPES:
        raise ArgumentError(f"dtype of {name} ({starts.dtype}) must be torch.int32 or torch.int64")
    if starts.dim() != 1 or starts.shape[0] == 0:
        raise ArgumentError(f"{name} (of shape {tuple(starts.shape)}) must be [sequences + 1]")
    if starts.device != device:
        raise ArgumentError(f"device of {name} ({starts.device}) must be that of the tensors, {device}")


def check_packed(tensors: tuple[Any, Any, Any], starts: tuple[Any, Any],
                 names: tuple[str, ...] = NAMES) -> None:
    """Raises for q, k, v and their cu_seqlens what needs no look at values; `names`: the caller's.
    """
    q, k, v = tensors
    for name, tensor in zip(names, tensors):
        check_tensor(name, tensor)
        if tensor.dim() != 3:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must be [total, heads, "
                                "head_dim], the rows of all sequences one behind another")
        check_alike(name, tensor, names[0], q)
    _call.require_type(names[0], q)
    if k.shape[:2] != v.shape[:2]:
        raise ArgumentError(f"{names[2]} (of shape {tuple(v.shape)}) must have the rows and heads of "
                            f"{names[1]}, {tuple(k.shape[:2])}")
    heads, heads_kv = q.shape[1], k.shape[1]
    if heads_kv == 0 or heads % heads_kv:
        raise ArgumentError(f"number of heads in {names[1]} ({heads_kv}) must divide that of {names[0]} "
                            f"({heads})")
    if k.shape[2] != q.shape[2]:
        raise ArgumentError(f"head_dim of {names[1]} ({k.shape[2]}) must be {names[0]}'s, {q.shape[2]}")
    for name, each in zip(names[3:], starts):
        _check_starts(name, each, q.device)
    if starts[0].shape != starts[1].shape:
        raise ArgumentError(f"{names[4]} (of shape {tuple(starts[1].shape)}) must be of as many "
                            f"sequences as {names[3]}, {tuple(starts[0].shape)}")


def _check_longest(name: str, value: Any) -> None:
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        raise TypeError(f"{name} ({value!r}) must be an integer, the longest length")
    if type(value) is int and value < 0:
        raise ArgumentError(f"{name} ({value}) must be at least 0")


def _check_varlen(scale: Any, window_size: Any, enable_gqa: Any, seqused_k: Any, block_table: Any,
                  num_splits: Any) -> None:
    if block_table is not None:
        raise ArgumentError("block_table is not supported: keys and values must be packed rows, not "
                            "pages; expected None")
    if num_splits not in (None, 1):
        raise ArgumentError(f"num_splits ({num_splits!r}) is not supported: expected None or 1, which "
                            "are the same here, for no result depends on other sequences")
    if scale is not None and not isinstance(scale, (int, float, torch.SymFloat)):
        raise TypeError(f"scale ({scale!r}) must be a number or None")
    if not isinstance(enable_gqa, bool):
        raise TypeError(f"enable_gqa ({enable_gqa!r}) must be True or False")
    if (not isinstance(window_size, (tuple, list)) or len(window_size) != 2
            or not all(isinstance(side, (int, torch.SymInt)) for side in window_size)):
        raise TypeError(f"window_size ({window_size!r}) must be a pair of integers (left, right), "
                        "-1 where it is unlimited")
    if seqused_k is not None and not isinstance(seqused_k, Tensor):
        raise TypeError(f"seqused_k ({type(seqused_k).__name__}) must be a torch.Tensor of "
                        "[sequences], or None")


@overload
def varlen_attn(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor,
                cu_seq_k: Tensor | None, max_q: int, max_k: int, *, return_aux: None = None,
                scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
                enable_gqa: bool = False, seqused_k: Tensor | None = None,
                block_table: Tensor | None = None, num_splits: int | None = None) -> Tensor: ...
@overload
def varlen_attn(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor,
                cu_seq_k: Tensor | None, max_q: int, max_k: int, *,
                return_aux: AuxRequest | None, scale: float | None = None,
                window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
                seqused_k: Tensor | None = None, block_table: Tensor | None = None,
                num_splits: int | None = None) -> Tensor | tuple[Tensor, Tensor]: ...
def varlen_attn(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor,
                cu_seq_k: Tensor | None, max_q: int, max_k: int, *,
                return_aux: AuxRequest | None = None, scale: float | None = None,
                window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
                seqused_k: Tensor | None = None, block_table: Tensor | None = None,
                num_splits: int | None = None) -> Any:
    """torch.nn.attention.varlen.varlen_attn, computed by regard.

    query [total_q, Hq, D], key and value [total_k, Hkv, D] hold the rows of all sequences; sequence
    b has the rows from element b of cu_seq_q and cu_seq_k (int32 or int64) up to element b + 1.
    window_size is (left, right), (-1, 0) for causal attention, and counts from the bottom right
    corner of each sequence, where the last query stands at the last key. seqused_k [sequences]
    shortens the keys. Returns out [total_q, Hq, D], and with return_aux=AuxRequest(lse=True)
    also lse [Hq, total_q]. Any dtype and head_dim that regard has, with gradients.

        >>> import torch, regard.torch
        >>> rows = torch.ones(12, 2, 64)
        >>> starts = torch.tensor([0, 5, 12])  # a sequence of 5 rows, then one of 7
        >>> regard.torch.varlen_attn(rows, rows, rows, starts, starts, 7, 7, window_size=(-1, 0)).shape
        torch.Size([12, 2, 64])

    Raises regard.torch.ArgumentError or TypeError for an argument, and regard.NoBackendError, with
    every reason, where no backend can run the call.

    More: `python -m regard docs pytorch`.
    """
    _check_varlen(scale, window_size, enable_gqa, seqused_k, block_table, num_splits)
    query, key, value = _call.autocast(query, key, value)
    check_packed((query, key, value), (cu_seq_q, cu_seq_k),
                 ("query", "key", "value", "cu_seq_q", "cu_seq_k"))
    _check_longest("max_q", max_q)
    _check_longest("max_k", max_k)
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ArgumentError(f"number of heads in key ({key.shape[1]}) must be query's "
                            f"({query.shape[1]}); enable_gqa=True lets it divide them")
    left, right = window_size
    options = Options(softmax_scale=scale, is_causal=right == 0 and left < 0,
                      diagonal="bottom_right", window_left=max(left, -1),
                      window_right=-1 if right == 0 and left < 0 else max(right, -1),
                      seqlens_kv=seqused_k, cu_seqlens_q=cu_seq_q, cu_seqlens_kv=cu_seq_k,
                      max_seqlen_q=max_q, max_seqlen_kv=max_k)
    with_lse = return_aux is not None and return_aux.lse
    out, lse = attend_packed(query, key, value, options, return_lse=with_lse)
    return (out, lse) if with_lse else out
