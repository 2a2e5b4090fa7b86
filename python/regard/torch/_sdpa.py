"""torch.nn.functional.scaled_dot_product_attention, run by regard."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .. import _core
from .._selection import Selection
from ._call import are_plain, asks_numbers_alone, attend, numbers
from ._options import Options, native_keywords
from ._scopes import SdpaError, backend_name, current_backends, current_policy


def _check(query: Any, key: Any, value: Any, attn_mask: Any, is_causal: Any) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} ({type(tensor).__name__}) must be a torch.Tensor")
        if tensor.dim() < 2:
            raise SdpaError(f"{name} (of shape {tuple(tensor.shape)}) must have at least 2 "
                            "dimensions, [..., positions, head_dim]")
        if tensor.dtype != query.dtype:
            raise SdpaError(f"dtype of {name} ({tensor.dtype}) must be query's, {query.dtype}")
    if attn_mask is None:
        return
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask ({type(attn_mask).__name__}) must be a torch.Tensor or None")
    if is_causal:
        raise SdpaError("Explicit attn_mask should not be set when is_causal=True: is_causal "
                        "(True) must be False beside an attn_mask")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise SdpaError(f"dtype of attn_mask ({attn_mask.dtype}) must be torch.bool (True = may "
                        "attend) or a float type, which is added to the scores")


def _batch_shape(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> torch.Size:
    """The common dimensions in front of heads, or of positions where there are no heads."""
    at = -3 if enable_gqa or min(x.dim() for x in (query, key, value)) >= 3 else -2
    try:
        return torch.broadcast_shapes(*(x.shape[:at] for x in (query, key, value)))
    except RuntimeError:
        raise SdpaError(f"shapes of query {tuple(query.shape)}, key {tuple(key.shape)} and value "
                        f"{tuple(value.shape)} must broadcast in front of "
                        f"{'heads' if at == -3 else 'positions'}") from None


def _four_dims(x: Tensor, batch: torch.Size, heads: int | None) -> Tensor:
    """[B,H,S,D]; views, but for what a broadcast over two dimensions or more can not be."""
    if heads is None:  # no heads: each batch has one
        x = x.expand(*batch, *x.shape[-2:]).unsqueeze(-3)
    else:
        have = x.shape[-3] if x.dim() >= 3 else 1
        x = x if x.dim() >= 3 else x.unsqueeze(0)
        x = x.expand(*batch, heads if have == 1 and heads > 1 else have, *x.shape[-2:])
    if x.dim() == 4:
        return x
    return x.reshape(-1, *x.shape[-3:]) if x.dim() > 4 else x.view(1, *x.shape)


def _heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, int]:
    """Query heads and KV heads that the tensors have, or broadcast to."""
    hq, hk, hv = (x.shape[-3] if x.dim() >= 3 else 1 for x in (query, key, value))
    kv = max(hk, hv) if min(hk, hv) == 1 else hk
    if enable_gqa:
        if hk != hv or hk == 0 or hq % hk:
            raise SdpaError(f"number of heads in key ({hk}) and value ({hv}) must be equal and "
                            f"divide that of query ({hq}) with enable_gqa=True")
        return hq, hk
    if hk != hv and 1 not in (hk, hv) or kv != hq and 1 not in (kv, hq):
        raise SdpaError(f"number of heads in key ({hk}) and value ({hv}) must be query's ({hq}), "
                        "or 1; enable_gqa=True lets them divide it")
    return max(hq, kv) if 0 not in (hq, kv) else 0, kv


def _four_mask(mask: Tensor, batch: torch.Size, with_heads: bool) -> Tensor:
    """A mask of any number of dimensions as [1|B,1|H,1|Sq,1|Skv]."""
    if not with_heads:  # [..., Sq, Skv] of problems that got a dimension of one head
        mask = mask.unsqueeze(-3) if mask.dim() >= 3 else mask
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    if mask.dim() > 4:  # as the batch dimensions of the tensors, in one
        mask = mask.expand(*batch, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
    elif len(batch) > 1 and mask.shape[0] != 1:
        mask = mask.expand(*batch, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
    return mask


def _is_usual(q: torch.Size, k: torch.Size, v: torch.Size, enable_gqa: bool) -> bool:
    """Whether nothing broadcasts: [B,Hq,Sq,D] on [B,Hkv,Skv,D]."""
    if not len(q) == len(k) == len(v) == 4 or not q[0] == k[0] == v[0] or k[1] != v[1]:
        return False
    return q[1] == k[1] or enable_gqa and k[1] != 0 and q[1] % k[1] == 0


def _normal_form(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
                 enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None, torch.Size]:
    """[B,H,S,D] tensors, a mask of four dimensions, and the shape of the result but for its last
    two."""
    if attn_mask is None or attn_mask.dim() == 4:
        if _is_usual(query.shape, key.shape, value.shape, enable_gqa):
            return query, key, value, attn_mask, query.shape
    with_heads = enable_gqa or min(x.dim() for x in (query, key, value)) >= 3
    if with_heads:
        heads_q, heads_kv = _heads(query, key, value, enable_gqa)
        batch = _batch_shape(query, key, value, enable_gqa)
        lead: tuple[int, ...] = (*batch, heads_q)
        q, k, v = (_four_dims(query, batch, heads_q), _four_dims(key, batch, heads_kv),
                   _four_dims(value, batch, heads_kv))
    else:
        batch = _batch_shape(query, key, value, False)
        lead = (*batch,)
        q, k, v = (_four_dims(x, batch, None) for x in (query, key, value))
    if attn_mask is not None:
        attn_mask = _four_mask(attn_mask, batch, with_heads)
    return q, k, v, attn_mask, torch.Size(lead)


def _options(attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
             scale: float | None) -> Options:
    options = Options(is_causal=is_causal, softmax_scale=scale)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            options = options._replace(attn_mask=attn_mask)
        else:
            options = options._replace(attn_bias=attn_mask)
    if dropout_p:
        options = options._replace(dropout_p=dropout_p, rng=torch.randint(0, 2**63 - 1, (1,)))
    return options


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor,
                                 attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention on CPU tensors.

    The same arguments and the same meaning: is_causal counts from the top left corner, a boolean
    mask is True where a query may attend. A row that may attend to nothing is 0, with zero
    gradients.
    """
    if (attn_mask is None and not dropout_p and are_plain(query, key, value)
            and query.dtype == key.dtype == value.dtype
            and _is_usual(query.shape, key.shape, value.shape, enable_gqa)
            and asks_numbers_alone(query, key, value)):
        keywords: dict[str, Any] = {} if scale is None else {"softmax_scale": scale}
        if is_causal:
            keywords.update(is_causal=True, diagonal="top_left")
        return numbers(query, key, value, keywords, current_backends())
    _check(query, key, value, attn_mask, is_causal)
    if not 0.0 <= dropout_p <= 1.0:
        raise SdpaError(f"dropout_p ({dropout_p}) must be from 0 to 1")
    q, k, v, mask, lead = _normal_form(query, key, value, attn_mask, enable_gqa)
    drop_all = dropout_p == 1.0
    out, _ = attend(q, k, v, _options(mask, 0.0 if drop_all else dropout_p, is_causal, scale))
    if drop_all:
        out = out * 0.0
    return out if q is query else out.reshape(*lead, *out.shape[-2:])


def explain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
            dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
            enable_gqa: bool = False) -> Selection:
    """The regard.Selection of scaled_dot_product_attention with these arguments."""
    _check(query, key, value, attn_mask, is_causal)
    wants_grad = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (query, key, value, attn_mask))
    with torch.no_grad():
        q, k, v, mask, _ = _normal_form(query, key, value, attn_mask, enable_gqa)
        keywords = native_keywords(_options(mask, 0.0, is_causal, scale))
        selection = _core.explain(q, k, v, policy=current_policy(),
                                  dropout_p=dropout_p, return_saved=wants_grad, **keywords)
    if wants_grad:
        selection.notes += ("second derivatives are those of regard.torch's explicit MATH formula "
                            "in ATen operators, whichever backend computes the first",)
    return selection


def can_use(backend: Any, query: Tensor, key: Tensor, value: Tensor,
            attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
            scale: float | None = None, enable_gqa: bool = False, debug: bool = False) -> bool:
    """Whether that backend can run the call here, whatever the policy; debug=True warns of each
    reason why it can not."""
    name = backend_name(backend, "backend")
    selection = explain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    (candidate,) = [c for c in selection.candidates if c["backend"] == name]
    usable = bool(candidate["usable"])
    if debug and not usable:
        for refusal in selection.refusals:
            if refusal.backend == name:
                warnings.warn(str(refusal), stacklevel=2)
    return usable
