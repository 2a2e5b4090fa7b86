"""Attention over padded sequences, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _core
from .._core import Lengths
from ._call import MORE, NUMBERS, autocast, is_traced, kind_of, require_type
from ._inputs import check_alike, check_tensor, with_dims
from ._options import TENSORS, Options, mask_options, native_keywords, seed_of
from ._scopes import (
    ArgumentError,
    call_policy,
    current_backends,
    drop_in_errors,
    is_exporting,
    refuse_ranks,
)


class _Recorded(torch.autograd.Function):
    """A call whose gradients are recorded: its backward computes the way that its forward did."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        *tensors, values, words, backends = rest
        keywords = {**native_keywords(Options(*tensors, *values)), **words}
        policy = call_policy(backends)
        with drop_in_errors:
            out, lse, saved = _core.attention(q, k, v, policy=policy, return_lse=True, return_saved=True,
                                              **keywords)
        ctx.save_for_backward(q, k, v, out, *tensors)
        ctx.values, ctx.words, ctx.saved = values, words, saved
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, *tensors = ctx.saved_tensors
        options = Options(*tensors, *ctx.values)
        keywords = native_keywords(options)
        keywords.pop("seed", None)  # saved has it
        d_out = torch.zeros_like(out) if d_out is None else d_out
        grads = list(_core.attention_backward(d_out, q, k, v, out, ctx.saved, d_lse=d_lse, **keywords,
                                              **ctx.words))
        for at, tensor in ((3, options.attn_bias), (4, options.sinks)):
            grads[at] = None if tensor is None else grads[at].to(tensor.dtype)
        return (*grads[:3], None, grads[3], grads[4], *[None] * TENSORS)


def _check(q: Any, k: Any, v: Any, lengths: Any, lengths_kv: Any) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor)
        if tensor.dim() != 4:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must have 4 dimensions")
        check_alike(name, tensor, "q", q)
    require_type("q", q)
    if q.device.type != "cpu":
        raise ArgumentError(f"device of q ({q.device}) must be cpu: no CUDA backend has padded sequences")
    for name, given in (("lengths", lengths), ("lengths_kv", lengths_kv)):
        if not isinstance(given, Lengths) and (given is not None or name == "lengths"):
            raise TypeError(f"{name} ({type(given).__name__}) must be a regard.Lengths")


def attention_padded(
        q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, *, lengths_kv: Lengths | None = None,
        padding: str = "auto", attn_mask: Tensor | None = None, is_causal: bool = False,
        diagonal: str = "top_left", window: tuple[int, int] = (-1, -1),
        softmax_scale: float | None = None, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None, dropout_p: float = 0.0, layout: str = "BHSD",
        return_lse: bool = False) -> Any:
    """Attention of padded sequences, regard.attention(lengths=), with gradients. Returns out, or (out,
    lse) with return_lse.

    q is [batch, heads, queries, head_dim], k and v [batch, kv heads, keys, head_dim]; layout="BSHD" swaps
    heads and positions, also of out. lengths says which positions of q, k and v hold rows; lengths_kv
    those of k and v where they are others. Padding is 0 in out and in the gradients, and -inf in lse
    [batch, heads, queries]; what it holds reaches no result. padding: "auto" computes with lengths, with
    a mask or packed, whichever is predicted to be the fastest; "padded" and "packed" force one.

    attn_mask is boolean (True = may attend) or added to the scores, and broadcasts to [batch, heads,
    queries, keys]. Gradients of q, k, v, an added mask and sinks, of the first order.

        >>> import torch, regard, regard.torch
        >>> q = torch.ones(2, 4, 5, 16, requires_grad=True)
        >>> lengths = regard.Lengths(seqlens=[3, 5], seqlen=5)
        >>> regard.torch.attention_padded(q, q, q, lengths, is_causal=True).sum().backward()
        >>> bool(q.grad[0, :, 3:].any())
        False

    Raises regard.torch.ArgumentError or TypeError for an argument, among others where a graph is traced
    or torch.func is active (regard.unpad, varlen_attn and regard.pad work there), and
    regard.NoBackendError where no backend can run the call.

    More: `python -m regard docs pytorch`.
    """
    refuse_ranks("attention_padded")
    mask, bias = mask_options(None if attn_mask is None else with_dims(attn_mask, 4))
    q, k, v, bias = autocast(q, k, v, bias)
    _check(q, k, v, lengths, lengths_kv)
    left, right = window
    options = Options(mask, bias, sinks, alibi_slopes, softmax_scale=softmax_scale, softcap=softcap,
                      is_causal=is_causal, diagonal=diagonal, window_left=left, window_right=right)
    tensors = [q, k, v, *[x for x in options[:TENSORS] if x is not None]]
    with torch.autocast("cpu", enabled=False):
        kind = kind_of(*tensors)
    if kind is MORE:
        traced = is_traced() or is_exporting()
        raise ArgumentError(f"{'this call (traced, or in torch.func)' if traced else 'q'} must be of "
                            "PyTorch's own CPU tensors, and run at once; expected regard.unpad, "
                            "regard.torch.varlen_attn and regard.pad")
    if dropout_p:
        options = options._replace(dropout_p=float(dropout_p), rng=seed_of(q))
    words: dict[str, Any] = {"lengths": lengths, "padding": padding, "layout": layout}
    if lengths_kv is not None:
        words["lengths_kv"] = lengths_kv
    backends = current_backends()
    if kind is NUMBERS:
        with drop_in_errors:
            return _core.attention(q, k, v, policy=call_policy(backends), return_lse=return_lse,
                                   **native_keywords(options), **words)
    made: Any = _Recorded.apply(q, k, v, *options[:TENSORS], options[TENSORS:], words, backends)
    return made if return_lse else made[0]
