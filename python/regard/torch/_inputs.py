"""Arguments of PyTorch's function: what they may be, and [B,H,S,D] tensors out of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._call import autocast, require_type
from ._options import DROPOUT_STEPS, Options, kept_steps, mask_options, seed_of
from ._scopes import ArgumentError


class Arguments(NamedTuple):
    """What scaled_dot_product_attention was given."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool
    diagonal: str = "top_left"


class Problem(NamedTuple):
    """The same as a call of the operator, and what makes its result the caller's."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: Options
    lead: torch.Size       # the shape of the result but for its last two dimensions
    drops_all: bool        # dropout keeps nothing

    def of_caller(self, out: Tensor, given: Arguments) -> Tensor:
        if self.drops_all:
            out = out * 0.0
        depth = given.value.shape[-1]
        if out.shape[-1] != depth:
            out = out[..., :depth]
        return out if self.q is given.query else out.reshape(*self.lead, *out.shape[-2:])


def checked_numbers(given: Arguments) -> Arguments:
    """The arguments with numbers as floats; raises for one that is none."""
    for name, flag in (("is_causal", given.is_causal), ("enable_gqa", given.enable_gqa)):
        if not isinstance(flag, (bool, torch.SymBool)):
            raise TypeError(f"{name} ({flag!r}) must be True or False")
    dropout_p = _number("dropout_p", given.dropout_p)
    if not 0.0 <= dropout_p <= 1.0:
        raise ArgumentError(f"dropout_p ({dropout_p}) must be from 0 to 1")
    return given._replace(dropout_p=dropout_p, scale=checked_scale(given.scale))


def checked_scale(scale: Any) -> Any:
    """softmax's factor as a float; None where it is the default."""
    number = None if scale is None else _number("scale", scale)
    if type(number) is float and not math.isfinite(number):
        raise ArgumentError(f"scale ({number}) must be finite")
    return number


def checked(given: Arguments) -> Arguments:
    """The arguments as torch.autocast has them, with numbers as floats; raises where PyTorch
    does."""
    given = checked_numbers(given)
    query, key, value, attn_mask = autocast(*given[:4])
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tensor.dim() < 2:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must have at least 2 "
                                "dimensions, [..., positions, head_dim]")
        check_alike(name, tensor, "query", query)
    require_type("query", query)
    if attn_mask is not None:
        _check_mask(attn_mask, query, given.is_causal)
    return given._replace(query=query, key=key, value=value, attn_mask=attn_mask)


def _number(name: str, value: Any) -> Any:
    """A number, or a tensor of one, as PyTorch takes them."""
    if type(value) is float or isinstance(value, (torch.SymFloat, torch.SymInt)):
        return value
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} ({value!r}) must be a number")
    try:
        return float(value)
    except OverflowError as error:  # an int; its digits may be too many to print
        raise ArgumentError(f"{name} (an int) must be a number that float64 holds") from error


def check_alike(name: str, tensor: Tensor, first_name: str, first: Tensor) -> None:
    """Raises unless the tensor has the dtype and the device of the first."""
    if tensor.dtype != first.dtype:
        raise ArgumentError(f"dtype of {name} ({tensor.dtype}) must be {first_name}'s, {first.dtype}")
    if tensor.device != first.device:
        raise ArgumentError(f"device of {name} ({tensor.device}) must be {first_name}'s, "
                            f"{first.device}")


def check_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} ({type(tensor).__name__}) must be a torch.Tensor")
    if tensor.is_nested:
        raise TypeError(f"{name} (a nested tensor) must be dense; scaled_dot_product_attention "
                        "takes nested tensors")
    if tensor.layout != torch.strided:
        raise TypeError(f"layout of {name} ({tensor.layout}) must be torch.strided")


def _check_mask(mask: Any, query: Tensor, is_causal: bool) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"attn_mask ({type(mask).__name__}) must be a torch.Tensor or None")
    check_tensor("attn_mask", mask)
    if is_causal:
        raise ArgumentError("Explicit attn_mask should not be set when is_causal=True: is_causal "
                            "(True) must be False beside an attn_mask")
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise ArgumentError(f"dtype of attn_mask ({mask.dtype}) must be torch.bool (True = may "
                            f"attend), or torch.float32 or query's, {query.dtype}, which is added to "
                            "the scores")
    if mask.device != query.device:
        raise ArgumentError(f"device of attn_mask ({mask.device}) must be query's, {query.device}")


def is_usual(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...],
             enable_gqa: bool) -> bool:
    """Whether nothing broadcasts: [B,Hq,Sq,D] on [B,Hkv,Skv,D], no extent of a head 0."""
    if not len(q) == len(k) == len(v) == 4 or not q[0] == k[0] == v[0] or k[1] != v[1]:
        return False
    if q[3] == 0 or v[3] == 0:
        return False
    return q[1] == k[1] or enable_gqa and k[1] != 0 and q[1] % k[1] == 0


def with_dims(x: Tensor, dims: int) -> Tensor:
    while x.dim() < dims:
        x = x.unsqueeze(0)
    return x


def problem(given: Arguments, draws: bool = True) -> Problem:
    """[B,H,S,D] tensors and the options of checked arguments; `draws`: the seed of dropout, too."""
    query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, diagonal = given
    if is_usual(query.shape, key.shape, value.shape, enable_gqa):
        _check_dims(mask, 4)
        q, k, v, lead = query, key, value, query.shape
        attn_mask = mask if mask is None else with_dims(mask, 4)
    else:
        q, k, v, attn_mask, lead = _broadcast(query, key, value, mask, enable_gqa)
    if mask is not None and attn_mask is not None:
        _check_extents(mask, attn_mask, (*q.shape[:3], k.shape[2]))
    options = Options(*mask_options(attn_mask), softmax_scale=scale, is_causal=is_causal,
                      diagonal=diagonal)
    kept = kept_steps(dropout_p)
    if 0 < kept < DROPOUT_STEPS:
        options = options._replace(dropout_p=dropout_p, rng=seed_of(q) if draws else None)
    return Problem(q, k, v, options, lead, kept == 0)


def _check_dims(mask: Tensor | None, most: int) -> None:
    if mask is not None and mask.dim() > most:
        raise ArgumentError(f"attn_mask (of shape {tuple(mask.shape)}) must have at most {most} "
                            "dimensions, those of the scores")


def _check_extents(given: Tensor, mask: Tensor, scores: tuple[int, ...]) -> None:
    """Here, for the library's message would name its own argument. Symbolic extents are left to it: a
    question about one would become a guard of the graph."""
    if any(type(extent) is not int for extent in (*mask.shape, *scores)):
        return
    if any(extent not in (1, full) for extent, full in zip(mask.shape, scores)):
        raise ArgumentError(f"attn_mask (of shape {tuple(given.shape)}) must broadcast to the scores, "
                            f"[batch, heads, queries, keys] = {list(scores)}")


def _broadcast(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
               enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None, torch.Size]:
    dims = [x.dim() for x in (query, key, value)]
    if enable_gqa and min(dims) < 3:
        raise ArgumentError(f"query, key and value (of {dims} dimensions) must have heads, "
                            "[..., heads, positions, head_dim], with enable_gqa=True")
    if query.shape[-1] == 0 and key.shape[-1] == 0:  # scores of 0: a column of zeros has them too
        query, key = _one_column(query), _one_column(key)
    if value.shape[-1] == 0:
        value = _one_column(value)
    with_heads = min(dims) >= 3
    _check_dims(mask, max(dims))
    heads: tuple[int, int] | tuple[None, None] = (None, None)
    if with_heads:
        if enable_gqa:
            key, value = _same_heads(query, key, value)
        heads = _heads(query, key, value, enable_gqa)
    batch = _batch_shape(query, key, value, with_heads)
    lead = batch if heads[0] is None else (*batch, heads[0])
    q, k, v = (_four_dims(x, batch, n) for x, n in zip((query, key, value),
                                                     (heads[0], heads[1], heads[1])))
    return (q, k, v, None if mask is None else _four_mask(mask, batch, with_heads),
            torch.Size(lead))


def _one_column(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, 1))


def _batch_shape(query: Tensor, key: Tensor, value: Tensor, with_heads: bool) -> torch.Size:
    """The common dimensions in front of heads, or of positions where there are no heads."""
    at = -3 if with_heads else -2
    shapes = [x.shape[:at] for x in (query, key, value)]
    if shapes[0] == shapes[1] == shapes[2]:
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)  # takes as long as a small attention
    except RuntimeError:
        raise ArgumentError(f"shapes of query {tuple(query.shape)}, key {tuple(key.shape)} and value "
                            f"{tuple(value.shape)} must broadcast in front of "
                            f"{'heads' if with_heads else 'positions'}") from None


def _four_dims(x: Tensor, batch: torch.Size, heads: int | None) -> Tensor:
    """[B,H,S,D]; views, but for what a broadcast over two dimensions or more can not be."""
    if heads is None:  # no heads: each batch has one
        shape = torch.Size((*batch, *x.shape[-2:]))
    else:
        x = with_dims(x, 3)
        have = x.shape[-3]
        shape = torch.Size((*batch, heads if have == 1 and heads > 1 else have, *x.shape[-2:]))
    if x.shape != shape:
        x = x.expand(shape)
    if heads is None:
        x = x.unsqueeze(-3)
    return with_dims(x, 4) if x.dim() <= 4 else x.flatten(0, -4)


def _heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, int]:
    """Query heads and KV heads that the tensors have, or broadcast to."""
    hq, hk, hv = (x.shape[-3] for x in (query, key, value))
    kv = max(hk, hv) if min(hk, hv) == 1 else hk
    if enable_gqa:
        return hq, hk
    if hk != hv and 1 not in (hk, hv) or kv != hq and 1 not in (kv, hq):
        raise ArgumentError(f"number of heads in key ({hk}) and value ({hv}) must be query's ({hq}), "
                            "or 1; enable_gqa=True lets them divide it")
    return max(hq, kv) if 0 not in (hq, kv) else 0, kv


def _same_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value of as many heads, each head repeated for those that it stands for."""
    hq, hk, hv = (x.shape[-3] for x in (query, key, value))
    if hk == 0 or hv == 0 or hq % hk or hq % hv:
        raise ArgumentError(f"number of heads in key ({hk}) and value ({hv}) must each divide that of "
                            f"query ({hq}) with enable_gqa=True")
    if hk == hv:
        return key, value
    heads = math.lcm(hk, hv)
    return (key if hk == heads else key.repeat_interleave(heads // hk, -3),
            value if hv == heads else value.repeat_interleave(heads // hv, -3))


def _four_mask(mask: Tensor, batch: torch.Size, with_heads: bool) -> Tensor:
    """A mask of any number of dimensions as [1|B,1|H,1|Sq,1|Skv]."""
    if not with_heads:  # [..., Sq, Skv] of problems that got a dimension of one head
        mask = mask.unsqueeze(-3) if mask.dim() >= 3 else mask
    mask = with_dims(mask, 4)
    if mask.dim() > 4 or len(batch) > 1 and mask.shape[0] != 1:
        # as the batch dimensions of the tensors, in one
        mask = _expanded(mask, batch).flatten(0, -4)
    return mask


def _expanded(mask: Tensor, batch: torch.Size) -> Tensor:
    try:
        return mask.expand(*batch, *mask.shape[-3:])
    except RuntimeError:
        raise ArgumentError(f"attn_mask (of shape {tuple(mask.shape)}, heads included) must broadcast "
                            f"to the batch dimensions, {tuple(batch)}") from None
