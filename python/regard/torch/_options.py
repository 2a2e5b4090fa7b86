"""The options of a call, as one value."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy
import torch
from torch import Tensor

from .. import _core
from .._selection import Selection

DROPOUT_STEPS = 65536  # probabilities of dropout are multiples of 1 / DROPOUT_STEPS


class Options(NamedTuple):
    """The options of an attention over [B,H,S,D] tensors, in the order of the operators' schema."""

    attn_mask: Tensor | None = None      # bool, broadcasting to [B,Hq,Sq,Skv] from 4 dimensions
    attn_bias: Tensor | None = None      # float, the same
    sinks: Tensor | None = None          # [Hq]
    alibi_slopes: Tensor | None = None   # [Hq] or [B,Hq]
    seqlens_q: Tensor | None = None      # int32 [B]
    seqlens_kv: Tensor | None = None     # int32 [B]
    cu_seqlens_q: Tensor | None = None   # int32 or int64 [B+1]: q is packed, [1,Hq,total,D]
    cu_seqlens_kv: Tensor | None = None  # the same of k and v
    rng: Tensor | None = None            # int64 [1]: the seed of dropout
    softmax_scale: float | None = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    is_causal: bool = False
    diagonal: str = "top_left"
    window_left: int = -1
    window_right: int = -1
    max_seqlen_q: int = 0   # of packed sequences, no length is more; 0: read from cu_seqlens
    max_seqlen_kv: int = 0


# The same fields in the schema of an operator.
OPTIONS_SCHEMA = ("Tensor? attn_mask, Tensor? attn_bias, Tensor? sinks, Tensor? alibi_slopes, "
                  "Tensor? seqlens_q, Tensor? seqlens_kv, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, "
                  "Tensor? rng, float? softmax_scale, float softcap, float dropout_p, bool is_causal, "
                  "str diagonal, int window_left, int window_right, SymInt max_seqlen_q, "
                  "SymInt max_seqlen_kv")
TENSORS: Final = 8  # the fields before rng: tensors that lie where q does


def is_packed(options: Options) -> bool:
    return options.cu_seqlens_q is not None


def mask_options(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as attn_mask and attn_bias: boolean, or added to the scores."""
    return (mask, None) if mask is None or mask.dtype == torch.bool else (None, mask)


def kept_steps(dropout_p: float) -> int:
    """How many of DROPOUT_STEPS dropout keeps."""
    return math.floor((1 - dropout_p) * DROPOUT_STEPS + 0.5) if dropout_p else DROPOUT_STEPS


def seed_of(q: Tensor) -> Tensor:
    """A seed from torch's CPU generator. The host would have to wait for a device's own one."""
    return torch.randint(0, 2**63 - 1, (1,), device="meta" if q.is_meta else "cpu")


def native_keywords(options: Options) -> dict[str, Any]:
    """The options that are set, as keywords of regard.attention."""
    (mask, bias, sinks, slopes, seqlens_q, seqlens_kv, cu_q, cu_kv, rng, scale, softcap, dropout_p,
     is_causal, diagonal, left, right, max_q, max_kv) = options
    keywords: dict[str, Any] = {}
    if is_causal:
        keywords["is_causal"] = True
        keywords["diagonal"] = diagonal
    if scale is not None:
        keywords["softmax_scale"] = scale
    if mask is not None:
        keywords["attn_mask"] = mask
    if bias is not None:
        keywords["attn_bias"] = bias
    if sinks is not None:
        keywords["sinks"] = sinks
    if slopes is not None:
        keywords["alibi_slopes"] = slopes
        keywords["diagonal"] = diagonal
    if seqlens_q is not None:
        keywords["seqlens_q"] = seqlens_q
    if seqlens_kv is not None:
        keywords["seqlens_kv"] = seqlens_kv
    if cu_q is not None:
        keywords.update(cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, max_seqlen_q=max_q,
                        max_seqlen_kv=max_kv)
    if left >= 0 or right >= 0:
        keywords["window"] = (left, right)
        keywords["diagonal"] = diagonal
    if softcap:
        keywords["softcap"] = softcap
    if dropout_p:
        # Dropout numbers its rows from the named diagonal, so the diagonal is always named.
        keywords["diagonal"] = diagonal
        keywords["dropout_p"] = dropout_p
        if rng is not None:
            keywords["seed"] = int(rng[0]) & 0xFFFFFFFFFFFFFFFF
    return keywords


def stand_in(tensor: Tensor, is_written: bool = False, has_scales: bool = False) -> Any:
    """An array of the tensor's shape, of a type that NumPy has, for explain: without memory of its own,
    or with memory that nothing touches where the call writes to the tensor. 8-bit floats with scales
    count as int8, others as float32."""
    kinds: dict[torch.dtype, Any] = {torch.bool: numpy.bool_, torch.float64: numpy.float64,
                                     torch.int32: numpy.int32, torch.int64: numpy.int64,
                                     torch.int8: numpy.int8, torch.uint8: numpy.uint8}
    is_f8 = tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point
    other = numpy.int8 if has_scales and is_f8 else numpy.float32
    kind, shape = kinds.get(tensor.dtype, other), tuple(tensor.shape)
    return numpy.empty(shape, kind) if is_written else numpy.broadcast_to(numpy.zeros((), kind), shape)


def explain_shapes(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Selection:
    """The Selection of a call on such shapes, whatever the tensors are; 16-bit types count as
    float32."""
    given = {name: stand_in(x) for name, x in zip(Options._fields, options[:TENSORS])
             if x is not None}
    keywords = native_keywords(options._replace(rng=None, **given))
    return _core.explain(stand_in(q), stand_in(k), stand_in(v), **keywords)
