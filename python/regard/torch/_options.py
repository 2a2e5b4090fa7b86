"""What a call asks for, as one value."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Options(NamedTuple):
    """The options of an attention over [B,H,S,D] tensors, in the order of the operators' schema."""

    attn_mask: Tensor | None = None      # bool, broadcasting to [B,Hq,Sq,Skv] from 4 dimensions
    attn_bias: Tensor | None = None      # float, the same
    sinks: Tensor | None = None          # [Hq]
    alibi_slopes: Tensor | None = None   # [Hq] or [B,Hq]
    seqlens_q: Tensor | None = None      # int32 [B]
    seqlens_kv: Tensor | None = None     # int32 [B]
    rng: Tensor | None = None            # int64 [1]: the seed of dropout
    softmax_scale: float | None = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    is_causal: bool = False
    diagonal: str = "top_left"
    window_left: int = -1
    window_right: int = -1


def native_keywords(options: Options) -> dict[str, object]:
    """The options as keywords of regard.attention, those that say something."""
    keywords: dict[str, object] = {}
    if options.is_causal:
        keywords["is_causal"] = True
        keywords["diagonal"] = options.diagonal
    if options.softmax_scale is not None:
        keywords["softmax_scale"] = options.softmax_scale
    for name in ("attn_mask", "attn_bias", "sinks", "alibi_slopes", "seqlens_q", "seqlens_kv"):
        value = getattr(options, name)
        if value is not None:
            keywords[name] = value
    if options.window_left >= 0 or options.window_right >= 0:
        keywords["window"] = (options.window_left, options.window_right)
        keywords["diagonal"] = options.diagonal
    if options.alibi_slopes is not None:
        keywords["diagonal"] = options.diagonal
    if options.softcap:
        keywords["softcap"] = options.softcap
    if options.dropout_p:
        # Its rows are counted from the diagonal that is named, so it is always named.
        keywords["diagonal"] = options.diagonal
        keywords["dropout_p"] = options.dropout_p
        if options.rng is not None:
            keywords["seed"] = int(options.rng[0]) & 0xFFFFFFFFFFFFFFFF
    return keywords
